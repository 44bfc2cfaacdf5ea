// Command mutation shows that the tests which stand for the protocols' rules
// fail when a rule is broken. Each entry of rules/*.txt names a rule, says how to
// break it in the source, and which test must then fail:
//
//	A1: apply runs a request of a client without a session
//	  in    shard/namespace/batch.go runClient
//	  old   return encode(failure(fserr.SessionExpired))
//	  new   session = &schema.Session{}
//	  test  shard/namespace TestScripts/a1_apply
//
// "in" names a file and a function (Name or Type.Name) in which "old" occurs
// exactly once; if it does not any more, then in the file. Several old or new lines are one
// text; indentation does not count. No new line: the old text goes. Further
// in/old/new lines are further edits of the same entry. Lines that start with #
// are comments.
//
// "dies TEXT" stands in an entry whose breakage ends the process, with these words,
// instead of failing the test: the rule is there to prevent just that.
//
// The tree is never changed: the broken file is laid over it by go's -overlay,
// also over binaries that a test builds. The test has to fail by an assertion; a
// source that does not compile, a panic, a time-out or a test that passes is
// reported and makes the command fail, and so is a test that fails unbroken.
//
//	go run ./internal/mutation                 all of it, some minutes (make rules)
//	go run ./internal/mutation -rule B         rules that start with B
//	go run ./internal/mutation -rule A1,C5 -v  with the failing tests' own words
//	go run ./internal/mutation -pkg client     entries whose test is there or below
//	go run ./internal/mutation -list           the table of docs/testing.md
//
// That every text is still there and every test still exists is checked by this
// package's own tests, which are quick and part of make check.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	rules := flag.String("rule", "", "only rules that start with one of these, separated by commas")
	pkg := flag.String("pkg", "", "only entries whose test is in this folder or below")
	list := flag.Bool("list", false, "print the table and run nothing")
	verbose := flag.Bool("v", false, "print what the failing tests say")
	timeout := flag.Duration("timeout", 2*time.Minute, "bound on one run of one test")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, *rules, *pkg, *list, *verbose, *timeout); err != nil {
		fmt.Fprintln(os.Stderr, "mutation:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, rules, pkg string, list, verbose bool, timeout time.Duration) error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	all, err := readRules(root)
	if err != nil {
		return err
	}
	chosen := choose(all, rules, pkg)
	if len(chosen) == 0 {
		return fmt.Errorf("no entry of a rule that starts with %q has its test in %q", rules, pkg)
	}
	if list {
		printTable(os.Stdout, chosen)
		return nil
	}
	dir, err := os.MkdirTemp("", "mutation")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r := &runner{root: root, dir: dir, timeout: timeout, sound: map[target]verdict{}}
	return report(ctx, r, chosen, verbose)
}

// choose returns the entries of the rules that start with one of the prefixes, and
// whose test is in pkg or below.
func choose(all []mutation, prefixes, pkg string) []mutation {
	var chosen []mutation
	for _, m := range all {
		if pkg != "" && m.target.pkg != pkg && !strings.HasPrefix(m.target.pkg, pkg+"/") {
			continue
		}
		for p := range strings.SplitSeq(prefixes, ",") {
			if strings.HasPrefix(m.rule, p) {
				chosen = append(chosen, m)
				break
			}
		}
	}
	return chosen
}

// report runs the entries and prints a line for each.
func report(ctx context.Context, r *runner, chosen []mutation, verbose bool) error {
	failed := 0
	begun := time.Now()
	for _, m := range chosen {
		started := time.Now()
		v := r.try(ctx, m)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		mark := "ok  "
		if !v.good {
			mark = "BAD "
			failed++
		}
		fmt.Printf("%s %-5s %-70s %s %s: %s (%.1f s)\n", mark, m.rule, m.breaks, m.target.pkg, m.target.test, v.what, time.Since(started).Seconds())
		switch {
		case verbose:
			fmt.Print(indent(v.output))
		case !v.good:
			fmt.Print(indent(tail(v.output, 20)))
		}
	}
	fmt.Printf("%d breakages of %d rules, %d found, %d not (%.0f s)\n",
		len(chosen), countRules(chosen), len(chosen)-failed, failed, time.Since(begun).Seconds())
	if failed > 0 {
		return fmt.Errorf("%d of %d breakages were not found by the test that stands for the rule", failed, len(chosen))
	}
	return nil
}

func countRules(all []mutation) int {
	rules := map[string]bool{}
	for _, m := range all {
		rules[m.rule] = true
	}
	return len(rules)
}

// tail returns the last n lines of s.
func tail(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func indent(s string) string {
	s = strings.TrimRight(s, "\n")
	if s == "" {
		return ""
	}
	return "       " + strings.ReplaceAll(s, "\n", "\n       ") + "\n"
}
