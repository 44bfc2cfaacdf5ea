package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/canopyfs/canopy"

// file is one parsed Go file of the tree.
type file struct {
	name      string // path from the root
	pkg       string // folder from the root
	test      bool
	generated bool
	lines     int
	fset      *token.FileSet
	ast       *ast.File
}

// imports returns the file's imports: those of the module as folders.
func (f file) imports() (ours, others []string) {
	for _, spec := range f.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		if rest, ok := strings.CutPrefix(p, module+"/"); ok {
			ours = append(ours, rest)
		} else {
			others = append(others, p)
		}
	}
	return ours, others
}

func (f file) position(n ast.Node) string {
	return f.name + ":" + strconv.Itoa(f.fset.Position(n.Pos()).Line)
}

// TestArchitecture reads the tree once and holds every rule.
func TestArchitecture(t *testing.T) {
	files := parseTree(t)
	for name, rule := range map[string]func(*testing.T, []file){
		"Imports":                 checkImports,
		"SoleUsers":               checkSoleUsers,
		"PurePackages":            checkPurePackages,
		"Sizes":                   checkSizes,
		"EveryPackageHasAComment": checkPackageComments,
		"NoInitAndNoVagueNames":   checkNames,
	} {
		t.Run(name, func(t *testing.T) { rule(t, files) })
	}
}

// parseTree parses every Go file of the repository.
func parseTree(t *testing.T) []file {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	var files []file
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || (name != root && strings.HasPrefix(d.Name(), "."))) {
			return filepath.SkipDir
		}
		if !d.IsDir() && strings.HasSuffix(name, ".go") {
			f, err := parseFile(root, name)
			if err != nil {
				return err
			}
			files = append(files, f)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Fatalf("only %d Go files found: the tree was not read", len(files))
	}
	return files
}

func parseFile(root, name string) (file, error) {
	src, err := os.ReadFile(name)
	if err != nil {
		return file{}, err
	}
	rel, err := filepath.Rel(root, name)
	if err != nil {
		return file{}, err
	}
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return file{}, err
	}
	rel = filepath.ToSlash(rel)
	return file{
		name:      rel,
		pkg:       path.Dir(rel),
		test:      strings.HasSuffix(rel, "_test.go"),
		generated: ast.IsGenerated(parsed),
		lines:     strings.Count(string(src), "\n"),
		fset:      fset,
		ast:       parsed,
	}, nil
}
