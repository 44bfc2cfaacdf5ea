// Package meta runs mdtest's phases on a target: mkdir, create, stat,
// open+close, readdir, rename, unlink and rmdir, in one directory that all
// workers share and in one directory per worker.
//
// A crew is a number of workers (goroutines, each one operation at a time) in
// one process. A run has one crew in this process, or several in processes of
// their own that it starts and speaks with over pipes; every phase starts in
// all of them at the same moment and ends when the last worker is done.
package meta

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// The kinds of directory. Warm-up works in one per worker, and is not measured.
const (
	Shared = "shared"
	Own    = "own"
	warmUp = "warmup"
)

// The phases, in the order in which they run.
const (
	Mkdir   = "mkdir"
	Create  = "create"
	Stat    = "stat"
	Open    = "open+close"
	ReadDir = "readdir"
	List    = "ls -l"
	Rename  = "rename"
	Unlink  = "unlink"
	Rmdir   = "rmdir"
)

// Phases are those that run by default.
func Phases() []string {
	return []string{Mkdir, Create, Stat, Open, ReadDir, Rename, Unlink, Rmdir}
}

// order is that of all phases.
var order = [...]string{Mkdir, Create, Stat, Open, ReadDir, List, Rename, Unlink, Rmdir}

// Bounds of what a run may ask for: every worker holds a histogram of some
// 200 KiB, and every name that it made a few bytes.
const (
	MaxWorkers   = 4096
	MaxProcesses = 1024
	MaxItems     = 50_000_000
)

// Config says what a run does. It crosses a pipe as JSON.
type Config struct {
	// Path is a directory of any file system; else Cluster is an address and
	// Root the path in its namespace.
	Path    string        `json:"path,omitempty"`
	Cluster string        `json:"cluster,omitempty"`
	Root    string        `json:"root,omitempty"`
	Relaxed time.Duration `json:"relaxed,omitempty"` // library only
	// Base is the directory below the target that the run makes and removes.
	Base string `json:"base"`

	Workers   int           `json:"workers"`   // of each process
	Processes int           `json:"processes"` // 0: the workers are in this process
	Items     int           `json:"items"`     // files and directories of each worker
	Warmup    int           `json:"warmup"`    // the same, not measured
	Rounds    int           `json:"rounds"`    // of stat, open and listings
	Limit     time.Duration `json:"limit"`     // of mkdir and create; 0: none
	Dirs      []string      `json:"dirs"`
	Phases    []string      `json:"phases"`
	Verify    bool          `json:"verify"` // list after each change and compare
	Keep      bool          `json:"keep"`   // leave what unlink and rmdir left
}

// Crews returns how many groups of workers there are.
func (c *Config) Crews() int { return max(c.Processes, 1) }

// Total returns how many workers there are.
func (c *Config) Total() int { return c.Crews() * c.Workers }

// Check returns what is wrong with the settings.
func (c *Config) Check() error {
	switch {
	case (c.Path == "") == (c.Cluster == ""):
		return fmt.Errorf("give either --path DIR or --cluster HOST:PORT")
	case c.Base == "" || strings.Contains(c.Base, "/"):
		return fmt.Errorf("%q is no name for the directory of a run", c.Base)
	case c.Processes < 0 || c.Processes > MaxProcesses:
		return fmt.Errorf("--processes %d: want 0 to %d", c.Processes, MaxProcesses)
	case c.Workers < 1 || c.Total() > MaxWorkers:
		return fmt.Errorf("--workers %d in %d processes: want at least 1, and at most %d in all", c.Workers, c.Crews(), MaxWorkers)
	case c.Items < 1 || c.Items*c.Total() > MaxItems:
		return fmt.Errorf("--items %d for each of %d workers: want at least 1, and at most %d in all", c.Items, c.Total(), MaxItems)
	case c.Warmup < 0 || c.Warmup > c.Items:
		return fmt.Errorf("--warmup %d: want 0 to --items (%d)", c.Warmup, c.Items)
	case c.Rounds < 1:
		return fmt.Errorf("--rounds %d: want at least 1", c.Rounds)
	case c.Limit < 0:
		return fmt.Errorf("--limit %v: want a positive time, or 0 for none", c.Limit)
	case len(c.Dirs) == 0:
		return fmt.Errorf("--dirs: want shared, own or both")
	}
	for _, d := range c.Dirs {
		if d != Shared && d != Own {
			return fmt.Errorf("--dirs %q: want shared, own or both", d)
		}
	}
	return c.checkPhases()
}

func (c *Config) checkPhases() error {
	if len(c.Phases) == 0 {
		return fmt.Errorf("--phases: name at least one of %s", strings.Join(order[:], ", "))
	}
	for _, p := range c.Phases {
		if !slices.Contains(order[:], p) {
			return fmt.Errorf("--phases %q: want some of %s", p, strings.Join(order[:], ", "))
		}
		need := ""
		switch p {
		case Stat, Open, ReadDir, List, Rename, Unlink:
			need = Create
		case Rmdir:
			need = Mkdir
		}
		if need != "" && !slices.Contains(c.Phases, need) {
			return fmt.Errorf("--phases %s needs what %s makes: add it", p, need)
		}
	}
	return nil
}

// dirName returns the directory of a worker, below the target.
func (c *Config) dirName(dirs string, worker int) string {
	if dirs == Shared {
		return c.Base + "/" + Shared
	}
	return fmt.Sprintf("%s/%s.%d", c.Base, dirs, worker)
}

// itemName returns a name that no other worker uses.
func itemName(letter byte, worker, item int) string {
	return fmt.Sprintf("%c.%04d.%07d", letter, worker, item)
}

// The first letters of names.
const (
	letterDir     = 'd'
	letterFile    = 'f'
	letterRenamed = 'r'
)
