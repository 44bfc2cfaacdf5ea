package archtest

import (
	"go/ast"
	"strings"
	"testing"
)

// pure packages decide; they never touch the world, so that every replica and
// every simulation sees the same.
var pure = []string{"shard", "shard/schema", "shard/edge", "shard/heat", "shard/namespace", "shard/txn", "shard/migrate", "layoutsvc/stripe", "layoutsvc/policy", "balancer/policy", "balancer/sim"}

var impureImports = []string{"os", "os/exec", "net", "net/http", "math/rand", "math/rand/v2", "crypto/rand", "log", "syscall"}

func checkPurePackages(t *testing.T, files []file) {
	for _, f := range files {
		if f.test || !contains(pure, f.pkg) {
			continue
		}
		_, others := f.imports()
		for _, imported := range others {
			if contains(impureImports, imported) && imported != "syscall" {
				t.Errorf("%s imports %s: package %s is pure", f.name, imported, f.pkg)
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: a go statement in pure package %s", f.position(n), f.pkg)
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && contains([]string{"Now", "Since", "Until", "Sleep", "After", "NewTimer", "Tick"}, n.Sel.Name) {
					t.Errorf("%s: time.%s in pure package %s", f.position(n), n.Sel.Name, f.pkg)
				}
			}
			return true
		})
	}
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

const (
	maxFileLines     = 500
	maxTestFileLines = 800
	maxFuncLines     = 70
)

func checkSizes(t *testing.T, files []file) {
	for _, f := range files {
		if f.generated {
			continue
		}
		limit := maxFileLines
		if f.test {
			limit = maxTestFileLines
		}
		if f.lines > limit {
			t.Errorf("%s has %d lines, the limit is %d: which concept is missing?", f.name, f.lines, limit)
		}
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil || f.test {
				continue
			}
			lines := f.fset.Position(fn.End()).Line - f.fset.Position(fn.Pos()).Line + 1
			if lines > maxFuncLines {
				t.Errorf("%s: %s has %d lines, the limit is %d", f.position(fn), fn.Name.Name, lines, maxFuncLines)
			}
		}
	}
}

func checkPackageComments(t *testing.T, files []file) {
	commented, seen := map[string]bool{}, map[string]bool{}
	for _, f := range files {
		if f.test || f.generated {
			continue
		}
		seen[f.pkg] = true
		commented[f.pkg] = commented[f.pkg] || f.ast.Doc != nil
	}
	for pkg := range seen {
		if !commented[pkg] {
			t.Errorf("package %s has no package comment", pkg)
		}
	}
}

func checkNames(t *testing.T, files []file) {
	vague := []string{"util", "utils", "common", "helper", "helpers", "manager", "misc"}
	for _, f := range files {
		if f.generated {
			continue
		}
		for _, part := range strings.Split(f.pkg, "/") {
			if contains(vague, part) {
				t.Errorf("%s: package name %q says nothing", f.name, part)
			}
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: init function: register nothing behind the caller's back", f.position(fn))
			}
		}
	}
}
