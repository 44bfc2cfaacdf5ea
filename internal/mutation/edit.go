package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// broken returns the sources of m's files with its edits made, by file.
func broken(root string, m mutation) (map[string][]byte, error) {
	sources := map[string][]byte{}
	for _, e := range m.edits {
		src, ok := sources[e.file]
		if !ok {
			var err error
			if src, err = os.ReadFile(filepath.Join(root, e.file)); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", m.at, m.rule, err)
			}
		}
		src, err := e.apply(src)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", m.at, m.rule, err)
		}
		sources[e.file] = src
	}
	return sources, nil
}

// apply makes the edit in the file's source. The text is looked for in the
// function; if that is gone, or the text has moved out of it, in the whole file.
func (e *edit) apply(src []byte) ([]byte, error) {
	at, n := e.find(src, 0, len(src))
	if e.fn != "" {
		from, to, err := function(e.file, src, e.fn)
		if err != nil {
			return nil, err
		}
		if in, once := e.find(src, from, to); once == 1 {
			at, n = in, once
		}
	}
	if n != 1 {
		return nil, fmt.Errorf("%s %s: the old text occurs %d times, want once: %s", e.file, e.fn, n, strings.Join(e.old, " / "))
	}
	out := append([]byte(nil), src[:at[0]]...)
	out = append(out, strings.Join(e.new, "\n")...)
	return append(out, src[at[1]:]...), nil
}

// find returns where the old text is first between two offsets, and how often.
func (e *edit) find(src []byte, from, to int) (at [2]int, n int) {
	found := e.pattern().FindAllIndex(src[from:to], -1)
	if len(found) > 0 {
		at = [2]int{from + found[0][0], from + found[0][1]}
	}
	return at, len(found)
}

// pattern matches the old lines, whatever their indentation.
func (e *edit) pattern() *regexp.Regexp {
	var quoted []string
	for _, line := range e.old {
		quoted = append(quoted, regexp.QuoteMeta(line))
	}
	return regexp.MustCompile(strings.Join(quoted, `\s*\n\s*`))
}

// function returns where the function or method of that name stands in src:
// nowhere if there is none.
func function(file string, src []byte, name string) (from, to int, err error) {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, file, src, parser.SkipObjectResolution)
	if err != nil {
		return 0, 0, err
	}
	for _, d := range tree.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if ok && funcName(fn) == name {
			return fset.Position(fn.Pos()).Offset, fset.Position(fn.End()).Offset, nil
		}
	}
	return 0, 0, nil
}

// funcName returns Name, or Type.Name of a method.
func funcName(fn *ast.FuncDecl) string {
	if fn.Recv == nil || len(fn.Recv.List) != 1 {
		return fn.Name.Name
	}
	of := fn.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if generic, ok := of.(*ast.IndexExpr); ok {
		of = generic.X
	}
	if id, ok := of.(*ast.Ident); ok {
		return id.Name + "." + fn.Name.Name
	}
	return fn.Name.Name
}
