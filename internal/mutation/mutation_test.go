package main

import (
	"bytes"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestTableIsCurrent: every old text still occurs exactly once, every test still
// exists, and what the edits make still parses. A table that nobody can run any
// more would prove nothing.
func TestTableIsCurrent(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	all, err := readRules(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		sources, err := broken(root, m)
		if err != nil {
			t.Errorf("%v", err)
		}
		for file, src := range sources {
			if _, err := parser.ParseFile(token.NewFileSet(), file, src, parser.SkipObjectResolution); err != nil {
				t.Errorf("%s: %s: the broken source does not parse: %v", m.at, m.rule, err)
			}
		}
		if err := findTest(root, m.target); err != "" {
			t.Errorf("%s: %s: %s", m.at, m.rule, err)
		}
	}
}

// findTest returns what is wrong with a test's name.
func findTest(root string, of target) string {
	dir := filepath.Join(root, of.pkg)
	files, _ := filepath.Glob(filepath.Join(dir, "*_test.go"))
	var src []byte
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return err.Error()
		}
		src = append(src, b...)
	}
	name, sub, isSub := strings.Cut(of.test, "/")
	if !regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(name) + `\(t \*testing\.T\)`).Match(src) {
		return "no test " + name + " in " + of.pkg
	}
	if !isSub || bytes.Contains(src, []byte(`"`+strings.ReplaceAll(sub, "_", " ")+`"`)) || bytes.Contains(src, []byte(`"`+sub+`"`)) {
		return ""
	}
	if _, err := os.Stat(filepath.Join(dir, "testdata", sub)); err != nil {
		return "no part " + sub + " of " + of.test + " in " + of.pkg
	}
	return ""
}

// rulesOfOneSubtree are the rules that one subtree needs: each has to be broken by
// at least one entry.
const rulesOfOneSubtree = "A1 A2 A3 A4 A5 A6 A7 A8 A9 B1 B2 B3 B4 B5 B6 C1 C2 C3 C4 C5 D6 E8 F2 F3 H1 H2 H3 J1 J2 J3 J4"

func TestEveryRuleIsBroken(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	all, err := readRules(root)
	if err != nil {
		t.Fatal(err)
	}
	broken := map[string]bool{}
	for _, m := range all {
		broken[m.rule] = true
	}
	for rule := range strings.FieldsSeq(rulesOfOneSubtree) {
		if !broken[rule] {
			t.Errorf("rule %s is broken by no entry", rule)
		}
	}
}

// TestDocumentIsCurrent: docs/testing.md shows the table that -list prints.
func TestDocumentIsCurrent(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	all, err := readRules(root)
	if err != nil {
		t.Fatal(err)
	}
	document, err := os.ReadFile(filepath.Join(root, "docs", "testing.md"))
	if err != nil {
		t.Fatal(err)
	}
	var table bytes.Buffer
	printTable(&table, all)
	for line := range strings.Lines(table.String()) {
		if !bytes.Contains(document, []byte(line)) {
			t.Errorf("docs/testing.md lacks the line\n%s(go run ./internal/mutation -list prints the table)", line)
		}
	}
}

// TestRunner runs the runner on a module of its own.
func TestRunner(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":  "module trial\n\ngo 1.26\n",
		"sum.go":  "package trial\n\nfunc sum(a, b int) int {\n\tif a < 0 {\n\t\treturn 0\n\t}\n\treturn a + b\n}\n\nfunc other() int { return 1 }\n",
		"sub.txt": "",
		"sum_test.go": "package trial\n\nimport \"testing\"\n\nfunc TestSum(t *testing.T) {\n\tt.Run(\"of two\", func(t *testing.T) {\n" +
			"\t\tif sum(1, 2) != 3 {\n\t\t\tt.Error(\"wrong\")\n\t\t}\n\t})\n}\n\nfunc TestWrong(t *testing.T) { t.Error(\"always\") }\n",
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := parse("trial", strings.NewReader(trials))
	if err != nil {
		t.Fatal(err)
	}
	r := &runner{root: root, dir: t.TempDir(), timeout: time.Minute, sound: map[target]verdict{}}
	for _, m := range all {
		m.target.pkg = "."
		v := r.try(t.Context(), m)
		if !strings.HasPrefix(v.what, m.breaks) || v.good != (m.breaks == "found") {
			t.Errorf("%s: %+v, want %q", m.rule, v, m.breaks)
		}
	}
}

const trials = `
# An entry's text is the verdict that it must get.
R1: found
  in    sum.go sum
  old   return a + b
  new   return a - b
  test  . TestSum
R2: found
  in    sum.go
  old   if a < 0 {
  old   return 0
  new   if a < 10 {
  new   return 0
  test  . TestSum/of_two
R3: NOT FOUND
  in    sum.go
  old   if a < 0
  new   if a < -5
  test  . TestSum
R4: the broken source does not build
  in    sum.go sum
  old   return a + b
  new   return a + c
  test  . TestSum
R5: the test panics
  in    sum.go sum
  old   return a + b
  new   panic("here")
  test  . TestSum
R6: the test fails unbroken
  in    sum.go sum
  old   return a + b
  new   return a - b
  test  . TestWrong
R7: there is no such test
  in    sum.go sum
  old   return a + b
  new   return a - b
  test  . TestNone
R9: found
  in    sum.go sum
  old   return a + b
  new   panic("the end")
  dies  the end
  test  . TestSum
R8: trial:
  in    sum.go
  old   return
  new   return
  test  . TestSum
`

// TestParseRefuses: a table that says nothing is an error, not an empty trial.
func TestParseRefuses(t *testing.T) {
	for _, text := range []string{
		"A1 no colon\n", "  in f.go\n", "A1: x\n", "A1: x\n  in f.go\n  test p T\n", "A1: x\n  in f.go\n  old a\n",
		"A1: x\n  old a\n  test p T\n", "A1: x\n  in f.go\n  old a\n  new b\n  old c\n  test p T\n", "A1: x\n  what f.go\n",
		"A1: x\n  in f.go\n  old a\n  test p T\n  test p U\n",
	} {
		if all, err := parse("table", strings.NewReader(text)); err == nil {
			t.Errorf("%q was taken: %+v", text, all)
		}
	}
}
