package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/canopyfs/canopy/cmd/internal/cli"
	"github.com/canopyfs/canopy/internal/local"
)

// TestBadInput: one clear line, exit status 1, and nothing is mounted.
func TestBadInput(t *testing.T) {
	t.Setenv(local.EnvCluster, "")
	empty, full := t.TempDir(), t.TempDir()
	file := filepath.Join(full, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		says string
	}{
		{nil, "want one MOUNTPOINT"},
		{[]string{"--nonsense", empty}, "unknown flag"},
		{[]string{"-o", "ro,nonsense", empty}, `unknown mount option "nonsense"`},
		{[]string{"-o", "consistency=relaxed", empty}, "want strict or relaxed=DURATION"},
		{[]string{"--subdir", "relative", empty}, "absolute path"},
		{[]string{"--log-level", "loud", empty}, "--log-level"},
		{[]string{"--log-file", filepath.Join(full, "no", "log"), empty}, "--log-file"},
		{[]string{filepath.Join(empty, "absent")}, "does not exist"},
		{[]string{file}, "is not a directory"},
		{[]string{full}, "is not empty"},
		{[]string{"/proc"}, "is not empty"},
		{[]string{"--cluster", "127.0.0.1:1", "--http", "nowhere:http:", empty}, "--http"},
		{[]string{"--cluster", "not an address", empty}, "not an address"},
	} {
		cmd := newCommand()
		var out bytes.Buffer
		cmd.SetErr(&out)
		cmd.SetOut(io.Discard)
		cmd.SetArgs(append([]string{}, c.args...))
		if code := cli.Main(cmd); code != 1 {
			t.Errorf("%q: exit status %d", c.args, code)
		}
		if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, c.says) {
			t.Errorf("%q says %q, want one line with %q", c.args, got, c.says)
		}
	}
}

// TestParseHelper: the argument vectors are those that mount(8) of util-linux
// 2.38 was seen to execute its helper with.
func TestParseHelper(t *testing.T) {
	for _, c := range []struct {
		args string
		want request
	}{
		{"127.0.0.1:7000:/data /mnt -o ro,consistency=relaxed=1s",
			request{source: "127.0.0.1:7000:/data", cluster: "127.0.0.1:7000", subdir: "/data", dir: "/mnt", options: []string{"ro", "consistency=relaxed=1s"}}},
		{"h1:1,h2:2 /mnt -n -v -o rw",
			request{source: "h1:1,h2:2", cluster: "h1:1,h2:2", dir: "/mnt", options: []string{"rw"}}},
		{"h1:1 /mnt -s -f -o rw,noexec,_netdev,http=:80,log=/l,log-level=debug",
			request{source: "h1:1", cluster: "h1:1", dir: "/mnt", fake: true, options: []string{"rw", "noexec", "_netdev"},
				flags: []string{"--http=:80", "--log-file=/l", "--log-level=debug"}}},
		{"local /mnt", request{source: "local", dir: "/mnt"}},
	} {
		got, err := parseHelper(strings.Fields(c.args))
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\n%+v, %v, want\n%+v", c.args, got, err, c.want)
		}
	}
	for _, bad := range []string{"", "h:1", "h:1 /mnt extra", "h:1 /mnt -o", "h:1 /mnt -z"} {
		if _, err := parseHelper(strings.Fields(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestHelperArguments(t *testing.T) {
	r := request{source: "h:1:/d", cluster: "h:1", subdir: "/d", dir: "-mnt", options: []string{"ro", "noatime"}, flags: []string{"--http=:80"}}
	got := strings.Join(r.arguments(), " ")
	if want := "--source=h:1:/d --http=:80 --cluster=h:1 --subdir=/d --options=ro,noatime -- -mnt"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestHelperReportsFailure: what the background process dies of reaches mount(8).
func TestHelperReportsFailure(t *testing.T) {
	var out bytes.Buffer
	code := helperMain([]string{"/sbin/" + mountHelper, "h:1", filepath.Join(t.TempDir(), "absent")}, &out)
	if got := out.String(); code != mountFailed || strings.Count(got, "\n") != 1 || !strings.Contains(got, "does not exist") {
		t.Errorf("exit status %d, says %q", code, got)
	}
}

// TestMain lets the test binary stand in for clientfuse when the helper starts it.
func TestMain(m *testing.M) {
	if os.Args[0] == "clientfuse" {
		os.Exit(cli.Main(newCommand()))
	}
	os.Exit(m.Run())
}
