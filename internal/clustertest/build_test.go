package clustertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// binDir has the built binaries while the tests run.
var binDir string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "canopy-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	for _, args := range [][]string{
		{"build", "-o", dir, "./cmd/..."},
		{"test", "-c", "-vet=off", "-o", filepath.Join(dir, "posix.test"), "./clientfuse/posix"},
	} {
		build := exec.Command("go", args...)
		build.Dir = repository()
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "the binaries do not build:", err)
			return 1
		}
	}
	binDir = dir
	return m.Run()
}

// repository returns the root of the source tree.
func repository() string {
	root, err := filepath.Abs("../..")
	if err != nil {
		panic(err)
	}
	return root
}

func bin(name string) string { return filepath.Join(binDir, name) }
