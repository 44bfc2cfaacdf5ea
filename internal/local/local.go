// Package local lets programs on one machine find the `canopy up` that runs
// there: it publishes a small file in the run directory, which mdsctl,
// clientfuse and loadtest look for when no cluster address was given.
//
// A file whose process is gone is ignored, and removed by the next Publish.
package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
)

// Instance describes one running `canopy up`.
type Instance struct {
	Cluster string   `json:"cluster"` // cluster id
	Address string   `json:"address"` // host:port[,host:port...] of metadata nodes
	Data    string   `json:"data"`    // data directory, absolute
	Mounts  []string `json:"mounts"`  // mount points, absolute
	Pid     int      `json:"pid"`
}

// EnvCluster is the environment variable that names a cluster address.
const EnvCluster = "CANOPY_CLUSTER"

// rootRunDir is where root publishes. Everybody looks there too.
const rootRunDir = "/run/canopy"

// RunDir returns where instances are published: /run/canopy for root, else
// canopy below XDG_RUNTIME_DIR or the temporary directory.
func RunDir() string {
	if os.Geteuid() == 0 {
		return rootRunDir
	}
	if d := os.Getenv("XDG_RUNTIME_DIR"); d != "" {
		return filepath.Join(d, "canopy")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("canopy-%d", os.Geteuid()))
}

// Publish writes the instance's file into dir and returns a function that
// removes it.
func Publish(dir string, in Instance) (remove func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if _, err := list(dir, true); err != nil {
		return nil, err
	}
	b, err := json.MarshalIndent(in, "", "  ")
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, in.Cluster+".json")
	tmp, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return nil, err
	}
	defer os.Remove(tmp.Name()) // fails after the rename, as it should
	_, err = tmp.Write(append(b, '\n'))
	if err = errors.Join(err, tmp.Chmod(0o644), tmp.Close()); err != nil {
		return nil, err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return nil, err
	}
	return func() { os.Remove(path) }, nil
}

// List returns the instances published in dir whose process lives.
func List(dir string) ([]Instance, error) { return list(dir, false) }

// Running returns the instances of this machine that this user may find: root's
// and the user's own.
func Running() ([]Instance, error) {
	found, err := List(RunDir())
	if err != nil || RunDir() == rootRunDir {
		return found, err
	}
	roots, err := List(rootRunDir)
	return append(found, roots...), err
}

func list(dir string, clean bool) ([]Instance, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	sort.Strings(names)
	var found []Instance
	for _, name := range names {
		b, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var in Instance
		if json.Unmarshal(b, &in) == nil && alive(in.Pid) {
			found = append(found, in)
		} else if clean {
			os.Remove(name)
		}
	}
	return found, nil
}

func alive(pid int) bool {
	return pid > 0 && !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// Find returns the address of the cluster to talk to: flag if it is not empty,
// else $CANOPY_CLUSTER, else the one `canopy up` that runs on this machine.
func Find(flag string) (address string, err error) {
	if flag != "" {
		return flag, nil
	}
	if env := os.Getenv(EnvCluster); env != "" {
		return env, nil
	}
	found, err := Running()
	if err != nil {
		return "", err
	}
	switch len(found) {
	case 0:
		return "", errors.New("no cluster address: give --cluster HOST:PORT, set " + EnvCluster + ", or start `canopy up` on this machine")
	case 1:
		return found[0].Address, nil
	}
	var dirs []string
	for _, in := range found {
		dirs = append(dirs, in.Data+" at "+in.Address)
	}
	return "", fmt.Errorf("several clusters run on this machine; choose one with --cluster: %s", strings.Join(dirs, "; "))
}
