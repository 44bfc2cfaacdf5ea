// Package pids finds the processes of a cluster that run on this machine, so
// that a report can say what CPU time they used.
package pids

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/canopyfs/canopy/client/inspect"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/local"
	"github.com/canopyfs/canopy/loadtest/proc"
)

// askTimeout bounds each question: a report without CPU times is better than a
// run that hangs before it starts.
const askTimeout = 3 * time.Second

// Ask says where to look.
type Ask struct {
	Servers, Mount []int  // given by hand; then nothing else is looked for
	Cluster        string // address, empty if not known
	MountDir       string // mount point that the load goes through, if one does
}

// Found is groups of processes, and what a report should add.
type Found struct {
	Groups   []proc.Group
	Notes    []string
	Replicas int // of the shard with the most, 0 if not known
}

// Find returns the processes. What cannot be found is a note, no error.
func Find(ctx context.Context, a Ask) *Found {
	f := &Found{}
	servers, mount := slices.Clone(a.Servers), slices.Clone(a.Mount)
	if a.Cluster != "" {
		found, err := f.ask(ctx, a, &mount)
		if err != nil {
			f.Notes = append(f.Notes, "CPU time of servers is not known: "+err.Error())
		}
		if len(servers) == 0 {
			servers = found
		}
		if len(servers) == 0 && err == nil {
			f.Notes = append(f.Notes, "no server of the cluster runs on this machine: their CPU time is not known")
		}
	}
	if a.MountDir != "" && len(mount) == 0 {
		f.Notes = append(f.Notes, "the process that serves "+a.MountDir+" was not found: give it by --mount-pids to see its CPU time")
	}
	f.group(unique(servers), unique(mount))
	return f
}

func unique(list []int) []int {
	slices.Sort(list)
	return slices.Compact(list)
}

// group tells apart what can be told apart.
func (f *Found) group(servers, mount []int) {
	both := slices.DeleteFunc(slices.Clone(mount), func(p int) bool { return !slices.Contains(servers, p) })
	only := func(list []int) []int {
		return slices.DeleteFunc(slices.Clone(list), func(p int) bool { return slices.Contains(both, p) })
	}
	add := func(who string, list []int) {
		if len(list) > 0 {
			f.Groups = append(f.Groups, proc.Group{Who: who, Pids: list})
		}
	}
	add("mount", only(mount))
	add("servers", only(servers))
	add("mount and servers", both)
	if len(both) > 0 {
		f.Notes = append(f.Notes, fmt.Sprintf("mount and servers are one process (%v): their CPU times cannot be told apart", both))
	}
}

// ask returns the local servers of the cluster, and adds the mount's process.
func (f *Found) ask(ctx context.Context, a Ask, mount *[]int) (servers []int, err error) {
	here, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	c, err := inspect.Connect(ctx, a.Cluster, inspect.Options{Timeout: askTimeout})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	add := func(host string, pid uint32, alive bool) {
		if host == here && pid != 0 && alive {
			servers = append(servers, int(pid))
		}
	}
	for _, n := range c.Map().GetNodes() {
		add(n.GetHost(), n.GetPid(), n.GetAlive())
	}
	for _, s := range c.Map().GetServices() {
		add(s.GetHost(), s.GetPid(), true)
	}
	for _, s := range c.Map().GetShards() {
		f.Replicas = max(f.Replicas, len(s.GetReplicas()))
	}
	if pools, err := c.Pools(ctx); err == nil {
		for _, s := range pools.GetServers() {
			add(s.GetHost(), s.GetPid(), s.GetAlive())
		}
	} else {
		f.Notes = append(f.Notes, "CPU time of data servers is not known: "+err.Error())
	}
	if a.MountDir != "" && len(*mount) == 0 {
		*mount = findMount(ctx, c, a.MountDir, here)
	}
	return servers, nil
}

// findMount looks at the `canopy up` of this machine and at sessions.
func findMount(ctx context.Context, c *inspect.Cluster, dir, here string) []int {
	instances, err := local.Running()
	if err == nil {
		for _, in := range instances {
			if slices.Contains(in.Mounts, dir) {
				return []int{in.Pid}
			}
		}
	}
	for _, s := range c.Map().GetShards() {
		sessions, err := c.Sessions(ctx, base.ShardID(s.GetShard()))
		if err != nil {
			continue
		}
		for _, x := range sessions {
			if x.GetMount() == dir && x.GetHost() == here {
				return []int{int(x.GetPid())}
			}
		}
	}
	return nil
}

// MountOf returns the Canopy mount that path lies in.
func MountOf(path string, mounts []local.Mount) (local.Mount, bool) {
	best := -1
	for i, m := range mounts {
		if m.Source == "memory" {
			continue // the file system that Canopy is compared with
		}
		under := path == m.Dir || m.Dir == "/" || len(path) > len(m.Dir) && path[:len(m.Dir)] == m.Dir && path[len(m.Dir)] == '/'
		if under && (best < 0 || len(m.Dir) > len(mounts[best].Dir)) {
			best = i
		}
	}
	if best < 0 {
		return local.Mount{}, false
	}
	return mounts[best], true
}
