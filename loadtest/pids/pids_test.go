package pids

import (
	"fmt"
	"testing"

	"github.com/canopyfs/canopy/internal/local"
)

func TestGroups(t *testing.T) {
	for _, c := range []struct {
		servers, mount []int
		want           string
	}{
		{[]int{1, 2}, []int{3}, "[{mount [3]} {servers [1 2]}]"},
		{[]int{1}, []int{1}, "[{mount and servers [1]}]"},
		{[]int{1, 2, 3}, []int{2}, "[{servers [1 3]} {mount and servers [2]}]"},
		{nil, nil, "[]"},
	} {
		f := &Found{}
		f.group(c.servers, c.mount)
		if got := fmt.Sprint(f.Groups); got != c.want {
			t.Errorf("servers %v, mount %v: %s, want %s", c.servers, c.mount, got, c.want)
		}
	}
}

func TestFindWithoutCluster(t *testing.T) {
	f := Find(t.Context(), Ask{MountDir: "/mnt"})
	if len(f.Groups) != 0 || len(f.Notes) != 1 {
		t.Errorf("%+v", f)
	}
	f = Find(t.Context(), Ask{Servers: []int{7, 7, 5}})
	if fmt.Sprint(f.Groups) != "[{servers [5 7]}]" || len(f.Notes) != 0 {
		t.Errorf("%+v", f)
	}
	f = Find(t.Context(), Ask{Cluster: "127.0.0.1:1"})
	if len(f.Groups) != 0 || len(f.Notes) != 1 {
		t.Errorf("%+v", f)
	}
}

func TestMountOf(t *testing.T) {
	mounts := []local.Mount{{Dir: "/mnt/a"}, {Dir: "/mnt/a/b", Source: "x"}, {Dir: "/tmp/m", Source: "memory"}}
	for path, want := range map[string]string{"/mnt/a": "/mnt/a", "/mnt/a/x": "/mnt/a", "/mnt/a/b/c": "/mnt/a/b", "/mnt/ab": "", "/tmp/m/x": "", "/": ""} {
		if m, ok := MountOf(path, mounts); m.Dir != want || ok != (want != "") {
			t.Errorf("%s: %q, want %q", path, m.Dir, want)
		}
	}
}
