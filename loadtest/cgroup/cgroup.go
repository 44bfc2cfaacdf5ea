// Package cgroup gives processes a share of a CPU, so that a small machine can stand
// for several.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// period is over what a share is dealt out: short, so that a process that has used its
// own up goes on soon.
const period = 20 * time.Millisecond

// Group is a control group for the CPU, of version 1 or 2.
type Group struct {
	dir string
	v2  bool
}

// Usage is what the processes of a group used, and how often they were kept from more.
type Usage struct {
	Periods   int64 // in which one of them ran
	Throttled int64 // in which they used their share up
	CPU       time.Duration
}

// Less returns what came since u0.
func (u Usage) Less(u0 Usage) Usage {
	return Usage{u.Periods - u0.Periods, u.Throttled - u0.Throttled, u.CPU - u0.CPU}
}

// root returns where groups for the CPU are made.
func root() (dir string, v2 bool, err error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", false, err
	}
	defer f.Close()
	unified := ""
	for s := bufio.NewScanner(f); s.Scan(); {
		left, right, ok := strings.Cut(s.Text(), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 3 {
			continue
		}
		switch {
		case r[0] == "cgroup" && has(r[len(r)-1], "cpu"):
			return l[4], false, nil
		case r[0] == "cgroup2":
			unified = l[4]
		}
	}
	if unified != "" {
		controllers, err := os.ReadFile(filepath.Join(unified, "cgroup.controllers"))
		if err == nil && strings.Contains(" "+strings.TrimSpace(string(controllers))+" ", " cpu ") {
			return unified, true, nil
		}
	}
	return "", false, errors.New("no control groups for the CPU are mounted (cgroup version 1 or 2 with the controller cpu)")
}

func has(options, want string) bool {
	for o := range strings.SplitSeq(options, ",") {
		if o == want {
			return true
		}
	}
	return false
}

// New makes a group whose processes together get share of one CPU. It needs root.
func New(name string, share float64) (*Group, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("control groups need root")
	}
	dir, v2, err := root()
	if err != nil {
		return nil, err
	}
	g := &Group{filepath.Join(dir, name), v2}
	if v2 {
		// It fails where it is so already, and what matters fails below.
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+cpu"), 0o644)
	}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, err
	}
	quota := strconv.FormatInt(max(time.Duration(share*float64(period)), time.Millisecond).Microseconds(), 10)
	every := strconv.FormatInt(period.Microseconds(), 10)
	if v2 {
		err = g.write("cpu.max", quota+" "+every)
	} else {
		err = errors.Join(g.write("cpu.cfs_period_us", every), g.write("cpu.cfs_quota_us", quota))
	}
	if err != nil {
		return nil, errors.Join(err, g.Remove())
	}
	return g, nil
}

func (g *Group) write(file, text string) error {
	return os.WriteFile(filepath.Join(g.dir, file), []byte(text), 0o644)
}

// Add puts a process, with all its threads, into the group.
func (g *Group) Add(pid int) error { return g.write("cgroup.procs", strconv.Itoa(pid)) }

// Usage returns what the group has used.
func (g *Group) Usage() (u Usage, err error) {
	b, err := os.ReadFile(filepath.Join(g.dir, "cpu.stat"))
	if err != nil {
		return u, err
	}
	values := map[string]int64{}
	for line := range strings.Lines(string(b)) {
		var key string
		var n int64
		if _, err := fmt.Sscan(line, &key, &n); err == nil {
			values[key] = n
		}
	}
	u = Usage{Periods: values["nr_periods"], Throttled: values["nr_throttled"], CPU: time.Duration(values["usage_usec"]) * time.Microsecond}
	return u, nil
}

// removeTimeout is how long the kernel may take to let go of processes that have
// ended.
const removeTimeout = 5 * time.Second

// Remove removes the group, whose processes have ended.
func (g *Group) Remove() error {
	for deadline := time.Now().Add(removeTimeout); ; time.Sleep(10 * time.Millisecond) {
		err := os.Remove(g.dir)
		if err == nil || !errors.Is(err, syscall.EBUSY) || time.Now().After(deadline) {
			return err
		}
	}
}
