package local

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPublishListRemove(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	in := Instance{Cluster: "c1", Address: "127.0.0.1:1", Data: "/d", Pid: os.Getpid()}
	remove, err := Publish(dir, in)
	if err != nil {
		t.Fatal(err)
	}
	found, err := List(dir)
	if err != nil || len(found) != 1 || found[0].Address != in.Address {
		t.Fatalf("List: %v, %v", found, err)
	}
	remove()
	if found, _ := List(dir); len(found) != 0 {
		t.Fatalf("still there: %v", found)
	}
}

func TestDeadInstanceIsIgnoredAndCleaned(t *testing.T) {
	dir := t.TempDir()
	// No process has this pid: it is above the kernel's largest.
	dead := filepath.Join(dir, "dead.json")
	if err := os.WriteFile(dead, []byte(`{"cluster":"dead","pid":99999999}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if found, err := List(dir); err != nil || len(found) != 0 {
		t.Fatalf("List: %v, %v", found, err)
	}
	if _, err := Publish(dir, Instance{Cluster: "new", Pid: os.Getpid()}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead); !os.IsNotExist(err) {
		t.Fatalf("the dead instance's file is still there: %v", err)
	}
}

func TestFindPrefersFlagThenEnvironment(t *testing.T) {
	t.Setenv(EnvCluster, "env:1")
	if a, err := Find("flag:1"); err != nil || a != "flag:1" {
		t.Errorf("flag: %q, %v", a, err)
	}
	if a, err := Find(""); err != nil || a != "env:1" {
		t.Errorf("environment: %q, %v", a, err)
	}
}

const mountinfo = `22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 22 0:50 / /mnt/a\040b rw,nosuid - fuse.canopy canopy:1a2b rw,user_id=0
41 22 0:51 / /mnt/sub rw - fuse.canopy 127.0.0.1:7000#/data/set rw
43 22 0:53 / /mnt/as\040given rw - fuse.canopy h1:7000,h2:7000:/data/ rw
42 22 0:52 / /mnt/other rw - fuse.other x rw
`

func TestNamespacePath(t *testing.T) {
	mounts, err := Mounts(strings.NewReader(mountinfo))
	if err != nil || len(mounts) != 3 {
		t.Fatalf("Mounts: %v, %v", mounts, err)
	}
	for _, c := range []struct{ typed, wd, want string }{
		{"/data", "/", "/data"},
		{"/mnt/a b/x/y", "/", "/x/y"},
		{"/mnt/a b", "/", "/"},
		{"y", "/mnt/a b/x", "/x/y"},
		{"/mnt/sub/q", "/", "/data/set/q"},
		{"/mnt/as given/q", "/", "/data/q"},
		{"/mnt/submarine", "/", "/mnt/submarine"},
	} {
		if got, err := namespacePath(c.typed, c.wd, mounts); err != nil || got != c.want {
			t.Errorf("%q in %q: %q, %v; want %q", c.typed, c.wd, got, err, c.want)
		}
	}
	if _, err := namespacePath("relative", "/tmp", mounts); err == nil {
		t.Error("a relative path outside a mount was taken")
	}
}

func TestClusterOf(t *testing.T) {
	mounts := []Mount{
		{Dir: "/mnt/a", Source: "canopy:1a2b"}, {Dir: "/mnt/a/b", Source: "canopy:ffff"},
		{Dir: "/mnt/c", Source: "h1:7000,h2:7000"}, {Dir: "/mnt/d", Source: "local"},
	}
	instances := []Instance{{Cluster: "ffff", Address: "f:1"}, {Cluster: "1a2b", Address: "a:1"}}
	for path, want := range map[string]string{"/mnt/a": "a:1", "/mnt/a/x": "a:1", "/mnt/a/b/x": "f:1", "/mnt": "", "/mnt/ab": "",
		"/mnt/c/x": "h1:7000,h2:7000", "/mnt/d": ""} {
		if address, ok := clusterOf(path, mounts, instances); address != want || ok != (want != "") {
			t.Errorf("%s: %q, want %q", path, address, want)
		}
	}
	if _, ok := clusterOf("/mnt/a", mounts, instances[:1]); ok {
		t.Error("a mount of a cluster that does not run here has an instance")
	}
}
