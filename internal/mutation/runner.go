package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// runner builds and runs tests, unbroken and broken.
type runner struct {
	root    string
	dir     string // scratch
	timeout time.Duration
	sound   map[target]verdict // of the unbroken tests that were run
}

// verdict is what a trial showed.
type verdict struct {
	good   bool
	what   string // in a few words
	output string
}

func bad(output, format string, args ...any) verdict {
	return verdict{false, fmt.Sprintf(format, args...), output}
}

// try breaks the rule and demands that the test fails, and that it passes
// otherwise.
func (r *runner) try(ctx context.Context, m mutation) verdict {
	sound, ok := r.sound[m.target]
	if !ok {
		sound = r.unbroken(ctx, m.target)
		r.sound[m.target] = sound
	}
	if !sound.good {
		return sound
	}
	sources, err := broken(r.root, m)
	if err != nil {
		return bad("", "%v", err)
	}
	overlay, err := r.overlay(sources)
	if err != nil {
		return bad("", "%v", err)
	}
	env := append(os.Environ(), "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay))
	if out, err := r.build(ctx, m.target.pkg, env); err != nil {
		return bad(out, "the broken source does not build: %v", err)
	}
	out, err := r.test(ctx, m.target, env)
	return judge(m, out, err)
}

// judge says whether a run of the broken source is a failed assertion, or the end
// of the process that the entry foretells.
func judge(m mutation, out string, err error) verdict {
	test := m.target.test
	var exit *exec.ExitError
	switch {
	case m.dies != "" && errors.As(err, &exit) && strings.Contains(out, m.dies):
		return verdict{true, "found, the process ends", out}
	case err == nil:
		return bad(out, "NOT FOUND: the test passes")
	case !errors.As(err, &exit):
		return bad(out, "the test did not run: %v", err)
	case regexp.MustCompile(`(?m)^(panic: |fatal error: |SIG|signal: )`).MatchString(out):
		return bad(out, "the test panics or hangs instead of failing")
	case !regexp.MustCompile(`(?m)^\s*--- FAIL: ` + regexp.QuoteMeta(test) + ` \(`).MatchString(out):
		return bad(out, "something else failed: %v", err)
	}
	return verdict{true, "found", out}
}

// unbroken runs the test on the source as it is.
func (r *runner) unbroken(ctx context.Context, t target) verdict {
	env := os.Environ()
	if out, err := r.build(ctx, t.pkg, env); err != nil {
		return bad(out, "the source does not build: %v", err)
	}
	out, err := r.test(ctx, t, env)
	if err != nil { // on a busy machine a test of processes and leases can be too late, once
		out, err = r.test(ctx, t, env)
	}
	if err != nil {
		return bad(out, "the test fails unbroken, twice: %v", err)
	}
	if !strings.Contains(out, "--- PASS: "+t.test+" (") {
		return bad(out, "there is no such test")
	}
	return verdict{good: true}
}

// overlay writes the sources and the file that lays them over the tree.
func (r *runner) overlay(sources map[string][]byte) (string, error) {
	replace := map[string]string{}
	n := 0
	for file, src := range sources {
		n++
		at := filepath.Join(r.dir, fmt.Sprintf("broken%d.go", n))
		if err := os.WriteFile(at, src, 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(r.root, file)] = at
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	name := filepath.Join(r.dir, "overlay.json")
	return name, os.WriteFile(name, text, 0o600)
}

func (r *runner) binary() string { return filepath.Join(r.dir, "test.bin") }

// build compiles the package's tests.
func (r *runner) build(ctx context.Context, pkg string, env []string) (string, error) {
	c := exec.CommandContext(ctx, "go", "test", "-c", "-o", r.binary(), "./"+pkg)
	c.Dir, c.Env = r.root, env
	out, err := c.CombinedOutput()
	return string(out), err
}

// test runs one test of the built binary in its package's folder.
func (r *runner) test(ctx context.Context, t target, env []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout+10*time.Second) // the test's own limit comes first
	defer cancel()
	args := []string{"-test.run", pattern(t.test), "-test.v", "-test.count=1", "-test.timeout", r.timeout.String()}
	dir := filepath.Join(r.root, t.pkg)
	if usesRapid(dir) {
		// Nothing is to be left in the tree, and nobody reads the smallest example.
		args = append(args, "-rapid.nofailfile", "-rapid.shrinktime=1s")
	}
	c := exec.CommandContext(ctx, r.binary(), args...)
	c.Dir, c.Env = dir, env
	// What the test starts must not outlive it.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.String(), err
}

// pattern makes -run's pattern of a test's name.
func pattern(test string) string {
	parts := strings.Split(test, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// usesRapid tells whether the tests in dir know rapid's flags.
func usesRapid(dir string) bool {
	files, _ := filepath.Glob(filepath.Join(dir, "*_test.go"))
	for _, f := range files {
		if src, err := os.ReadFile(f); err == nil && bytes.Contains(src, []byte(`"pgregory.net/rapid"`)) {
			return true
		}
	}
	return false
}
