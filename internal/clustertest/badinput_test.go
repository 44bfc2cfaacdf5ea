package clustertest

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestBadInput: one clear line and a non-zero exit, and nothing is left.
func TestBadInput(t *testing.T) {
	t.Parallel()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	notEmpty := t.TempDir()
	if err := os.WriteFile(filepath.Join(notEmpty, "thesis.tex"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	newer := t.TempDir()
	if err := os.WriteFile(filepath.Join(newer, "canopy-up.json"), []byte(`{"format":99}`), 0o644); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(notEmpty, "thesis.tex")
	fresh := func() string { return filepath.Join(t.TempDir(), "data") }
	for _, c := range []struct {
		name string
		args []string // the binary first
		want string
	}{
		{"unknown flag", []string{"canopy", "up", "--nonsense"}, "nonsense"},
		{"unknown command", []string{"canopy", "down"}, "down"},
		{"replicas", []string{"canopy", "up", "--data", fresh(), "--replicas", "2"}, "1, 3 or 5"},
		{"too few nodes", []string{"canopy", "up", "--data", fresh(), "--replicas", "3"}, "--nodes 3"},
		{"address in use", []string{"canopy", "up", "--data", fresh(), "--listen", busy.Addr().String()}, "in use"},
		{"foreign directory", []string{"canopy", "up", "--data", notEmpty}, "not empty"},
		{"newer data", []string{"canopy", "up", "--data", newer}, "newer"},
		{"mount point not empty", []string{"canopy", "up", "--data", fresh(), "--mount", notEmpty}, "not empty"},
		{"mount point a file", []string{"canopy", "up", "--data", fresh(), "--mount", file}, "directory"},
		{"mount option", []string{"canopy", "up", "--data", fresh(), "--mount", t.TempDir(), "-o", "nonsense"}, "nonsense"},
		{"no etcd there", []string{"mds", "--data", fresh(), "--etcd", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--raft-listen", "127.0.0.1:7"}, "etcd"},
		{"mds without data", []string{"mds", "--etcd", "127.0.0.1:1"}, "--data"},
		{"layoutsvc without etcd", []string{"layoutsvc"}, "--etcd"},
		{"dataserver without layoutsvc", []string{"dataserver", "--data", fresh()}, "--layoutsvc"},
		{"mount of nobody", []string{"clientfuse", "--cluster", "127.0.0.1:1", t.TempDir()}, "127.0.0.1:1"},
		{"no mount point", []string{"clientfuse", "--cluster", "127.0.0.1:1", "/does/not/exist"}, "/does/not/exist"},
		{"mdsctl without cluster", []string{"mdsctl", "--cluster", "127.0.0.1:1", "status"}, "127.0.0.1:1"},
		{"mdsctl nonsense", []string{"mdsctl", "--cluster", "127.0.0.1:1", "nonsense"}, "nonsense"},
		{"loadtest nonsense", []string{"loadtest", "meta", "--path", "/does/not/exist"}, "/does/not/exist"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, stderr, code := command(t, c.args[0], c.args[1:]...)
			if code == 0 {
				t.Errorf("exit 0")
			}
			if !strings.Contains(stderr, c.want) || strings.Count(strings.TrimSpace(stderr), "\n") > 0 {
				t.Errorf("want one line with %q, got:\n%s", c.want, stderr)
			}
		})
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "x" {
		t.Errorf("the foreign file was touched: %q, %v", b, err)
	}
}

// TestSecondStartIsRefused: a second mount at the same place is refused, and so is a
// second cluster on the same data.
func TestSecondStartIsRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t, true)
	_, stderr, code := command(t, "clientfuse", "--cluster", c.address, c.mount)
	if code == 0 || !strings.Contains(stderr, "mounted") {
		t.Errorf("mount over a mount: exit %d, %s", code, stderr)
	}
	_, stderr, code = command(t, "canopy", "up", "--data", c.data)
	if code == 0 || !strings.Contains(stderr, "in use") {
		t.Errorf("second cluster on the same data: exit %d, %s", code, stderr)
	}
	c.stop(t)
	_ = syscall.Unmount(c.mount, syscall.MNT_DETACH) // gone already if all is well
}

// TestOtherClustersData: a data server's or node's directory of another cluster
// is refused and left alone.
func TestOtherClustersData(t *testing.T) {
	t.Parallel()
	a, b := newCluster(t, false), newCluster(t, false)
	a.stop(t)
	b.stop(t)
	for _, part := range []string{"dataserver1", "node1"} {
		own, foreign := filepath.Join(b.data, part), filepath.Join(a.data, part)
		if err := os.Rename(own, own+".own"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(foreign, own); err != nil {
			t.Fatal(err)
		}
		_, stderr, code := command(t, "canopy", "up", "--data", b.data)
		if code == 0 || !strings.Contains(stderr, "cluster") {
			t.Errorf("%s of another cluster: exit %d, %s", part, code, stderr)
		}
		if err := os.Rename(own, foreign); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(own+".own", own); err != nil {
			t.Fatal(err)
		}
	}
	b.start(t)
	b.stop(t)
}
