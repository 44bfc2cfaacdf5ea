package clustertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestPrograms: everyday programs work on one and on two mounts, all at the same
// time. What each does, and what has to come out, its script says.
func TestPrograms(t *testing.T) {
	t.Parallel()
	c := newCluster(t, true)
	other := c.secondMount(t)
	// here returns a directory for one program, through both mounts.
	here := func(t *testing.T, name string) (string, string) {
		t.Helper()
		dir := filepath.Join(c.mount, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		return dir, filepath.Join(other, name)
	}
	script := func(t *testing.T, name string, args ...string) {
		t.Helper()
		out, err := exec.Command(filepath.Join("programs", name), args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	programs := map[string]func(t *testing.T, dir, other string){
		"npm":       npmInstall,
		"sqliteWAL": func(t *testing.T, dir, other string) { script(t, "sqlite.py", "wal", "40", dir, dir) },
		"sqlite":    func(t *testing.T, dir, other string) { script(t, "sqlite.py", "delete", "40", dir, other) },
		"make":      func(t *testing.T, dir, other string) { script(t, "cproject.sh", dir, other) },
		"mmap":      func(t *testing.T, dir, other string) { script(t, "mapped.py", dir, other) },
		"shutil":    func(t *testing.T, dir, other string) { script(t, "copied.py", dir, other, t.TempDir()) },
		"rm":        func(t *testing.T, dir, other string) { script(t, "removed.sh", dir, other) },
		"tar":       func(t *testing.T, dir, other string) { script(t, "archived.sh", dir, other) },
	}
	t.Run("programs", func(t *testing.T) {
		for name, run := range programs {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				dir, there := here(t, name)
				run(t, dir, there)
			})
		}
	})
	c.mdsctl(t, "fsck", "--data")
}
