package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// mutation is one way to break one rule.
type mutation struct {
	at     string // file:line of the entry
	rule   string
	breaks string
	edits  []edit
	target target
	dies   string // the process's last words, where the rule prevents its end
}

// edit replaces the one occurrence of old in a function of a file.
type edit struct {
	file string // from the module's root
	fn   string // Name or Type.Name; empty: anywhere in the file
	old  []string
	new  []string
}

// target is a test.
type target struct {
	pkg  string // folder from the module's root
	test string // TestX or TestX/sub
}

var errNoModule = errors.New("no go.mod here or above: run it inside the repository")

// moduleRoot returns the folder of the go.mod at or above the working directory.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errNoModule
		}
		dir = up
	}
}

// readRules reads all tables, sorted by rule.
func readRules(root string) ([]mutation, error) {
	files, err := filepath.Glob(filepath.Join(root, "internal", "mutation", "rules", "*.txt"))
	if err != nil {
		return nil, err
	}
	var all []mutation
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		some, err := parse(filepath.Base(name), f)
		f.Close()
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	slices.SortStableFunc(all, func(a, b mutation) int {
		return cmp.Or(cmp.Compare(a.rule[0], b.rule[0]), cmp.Compare(number(a.rule), number(b.rule)))
	})
	return all, nil
}

// number returns the number behind the letter of a rule.
func number(rule string) int {
	n, _ := strconv.Atoi(rule[1:]) // parse has seen to it
	return n
}

// isRule says whether it is a letter and a number.
var isRule = regexp.MustCompile(`^[A-Z][0-9]+$`)

// parse reads one table.
func parse(name string, r io.Reader) ([]mutation, error) {
	var all []mutation
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		at := fmt.Sprintf("%s:%d", name, n)
		switch {
		case strings.TrimSpace(line) == "" || line[0] == '#':
		case line[0] != ' ' && line[0] != '\t':
			rule, breaks, ok := strings.Cut(line, ": ")
			if !ok || !isRule.MatchString(rule) {
				return nil, fmt.Errorf("%s: an entry starts with RULE: what is broken", at)
			}
			all = append(all, mutation{at: at, rule: rule, breaks: breaks})
		case len(all) == 0:
			return nil, fmt.Errorf("%s: a line before the first entry", at)
		default:
			word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			if err := all[len(all)-1].take(word, strings.TrimSpace(rest)); err != nil {
				return nil, fmt.Errorf("%s: %w", at, err)
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	for _, m := range all {
		if m.target.test == "" || len(m.edits) == 0 {
			return nil, fmt.Errorf("%s: %s needs in, old and test", m.at, m.rule)
		}
		for _, e := range m.edits {
			if len(e.old) == 0 {
				return nil, fmt.Errorf("%s: %s: an edit of %s without old", m.at, m.rule, e.file)
			}
		}
	}
	return all, nil
}

// take adds one line to the entry.
func (m *mutation) take(word, rest string) error {
	fields := strings.Fields(rest)
	switch word {
	case "in":
		if len(fields) == 0 || len(fields) > 2 {
			return errors.New("in FILE [FUNCTION]")
		}
		m.edits = append(m.edits, edit{file: fields[0], fn: strings.Join(fields[1:], "")})
		return nil
	case "test":
		if len(fields) != 2 || m.target.test != "" {
			return errors.New("one test PACKAGE NAME")
		}
		m.target = target{fields[0], fields[1]}
		return nil
	case "dies":
		if rest == "" {
			return errors.New("dies TEXT")
		}
		m.dies = rest
		return nil
	case "old", "new":
		if len(m.edits) == 0 {
			return errors.New(word + " comes after in")
		}
		e := &m.edits[len(m.edits)-1]
		if word == "new" {
			e.new = append(e.new, rest)
			return nil
		}
		if len(e.new) > 0 || rest == "" {
			return errors.New("old comes before new and says something")
		}
		e.old = append(e.old, rest)
		return nil
	}
	return fmt.Errorf("no word %q here", word)
}

// printTable prints the rules, how many breakages of each are tried and which tests
// find them, as docs/testing.md has it.
func printTable(w io.Writer, all []mutation) {
	fmt.Fprintln(w, "| rule | breakages | found by |\n|---|---|---|")
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].rule == all[0].rule {
			n++
		}
		fmt.Fprintf(w, "| %s | %d | %s |\n", all[0].rule, n, testsOf(all[:n]))
		all = all[n:]
	}
}

// testsOf returns the tests of some entries by package.
func testsOf(some []mutation) string {
	var pkgs []string
	tests := map[string][]string{}
	for _, m := range some {
		pkg, name := m.target.pkg, "`"+m.target.test+"`"
		if tests[pkg] == nil {
			pkgs = append(pkgs, pkg)
		}
		if !slices.Contains(tests[pkg], name) {
			tests[pkg] = append(tests[pkg], name)
		}
	}
	var parts []string
	for _, pkg := range pkgs {
		parts = append(parts, pkg+": "+strings.Join(tests[pkg], ", "))
	}
	return strings.Join(parts, "; ")
}
