package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// planFormat is the version of the plan file. A newer one is refused.
const planFormat = 1

// planFile is where a data directory keeps its plan.
const planFile = "canopy-up.json"

// plan is the shape of the cluster in one data directory: fixed by its first
// start, since replicas and addresses are part of what other replicas know.
type plan struct {
	Format      int      `json:"format"`
	Nodes       int      `json:"nodes"`
	Replicas    int      `json:"replicas"`
	Shards      int      `json:"shards"`
	DataServers int      `json:"dataServers"`
	Listen      string   `json:"listen"`
	Etcd        []string `json:"etcd,omitempty"` // empty: embedded
	// Addresses by role: "node1", "node1.raft", "node1.http", "layoutsvc", ...
	Addresses map[string]string `json:"addresses"`
}

// defaults of `canopy up`.
const (
	defaultListen      = "127.0.0.1:7400"
	defaultDataServers = 3
)

func (p *plan) validate() error {
	switch {
	case p.Replicas != 1 && p.Replicas != 3 && p.Replicas != 5:
		return fmt.Errorf("--replicas %d: want 1, 3 or 5", p.Replicas)
	case p.Nodes < 1 || p.Nodes > 64:
		return fmt.Errorf("--nodes %d: want 1 to 64", p.Nodes)
	case p.Nodes < p.Replicas:
		return fmt.Errorf("--replicas %d needs at least as many nodes: give --nodes %d", p.Replicas, p.Replicas)
	case p.Shards < 1 || p.Shards > 1024:
		return fmt.Errorf("--shards %d: want 1 to 1024", p.Shards)
	case p.DataServers < 1 || p.DataServers > 64:
		return fmt.Errorf("--data-servers %d: want 1 to 64", p.DataServers)
	}
	if _, _, err := net.SplitHostPort(p.Listen); err != nil {
		return fmt.Errorf("--listen %q: want HOST:PORT", p.Listen)
	}
	return nil
}

// nodeRole and the like name the roles of plan.Addresses.
func nodeRole(i int) string       { return "node" + strconv.Itoa(i) }
func dataServerRole(i int) string { return "dataserver" + strconv.Itoa(i) }

// roles lists what needs an address, in the order of the ports.
func (p *plan) roles() []string {
	var roles []string
	for i := 1; i <= p.Nodes; i++ {
		roles = append(roles, nodeRole(i), nodeRole(i)+".raft", nodeRole(i)+".http")
	}
	roles = append(roles, "layoutsvc", "layoutsvc.http")
	for i := 1; i <= p.DataServers; i++ {
		roles = append(roles, dataServerRole(i), dataServerRole(i)+".http")
	}
	if len(p.Etcd) == 0 {
		roles = append(roles, "etcd")
	}
	return roles
}

// assign gives every role an address: consecutive ports from the one of
// --listen, or free ones if that is 0. It fails if one is taken.
func (p *plan) assign() error {
	host, portText, err := net.SplitHostPort(p.Listen)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(portText)
	if err != nil || port < 0 || port > 65535 {
		return fmt.Errorf("--listen %q: the port must be 0 to 65535", p.Listen)
	}
	p.Addresses = map[string]string{}
	var held []net.Listener // all at once, so that no free port is given twice
	defer func() {
		for _, l := range held {
			l.Close()
		}
	}()
	for i, role := range p.roles() {
		want := 0
		if port != 0 {
			want = port + i
		}
		address := net.JoinHostPort(host, strconv.Itoa(want))
		l, err := net.Listen("tcp", address)
		if err != nil {
			return fmt.Errorf("address %s for %s cannot be had (%w): choose another --listen", address, role, rootCause(err))
		}
		held = append(held, l)
		p.Addresses[role] = l.Addr().String()
	}
	return nil
}

// checkFree fails with one clear line if an address of the plan is taken.
func (p *plan) checkFree() error {
	for _, role := range p.roles() {
		l, err := net.Listen("tcp", p.Addresses[role])
		if err != nil {
			return fmt.Errorf("address %s of %s cannot be had (%w): is another canopy up running?", p.Addresses[role], role, rootCause(err))
		}
		l.Close()
	}
	return nil
}

func rootCause(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

// loadPlan reads the plan of a data directory; nil if there is none.
func loadPlan(dir string) (*plan, error) {
	b, err := os.ReadFile(filepath.Join(dir, planFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var p plan
	if err := json.Unmarshal(b, &p); err != nil {
		return nil, fmt.Errorf("%s in %s is damaged: %w", planFile, dir, err)
	}
	if p.Format > planFormat {
		return nil, fmt.Errorf("%s was made by a newer version of canopy (format %d, this one reads up to %d)", dir, p.Format, planFormat)
	}
	return &p, nil
}

// save writes the plan so that it is there whole or not at all.
func (p *plan) save(dir string) error {
	b, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, planFile+".new")
	f, err := os.Create(tmp)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, planFile))
}

// settle returns the plan to run: the stored one if there is one, which must
// agree with the flags that were given, else a new one from the flags. An outside
// etcd's addresses may change. reach tells whether one answers: a plan with a
// wrong address is not kept.
func settle(dir string, flags plan, given func(flag string) bool, reach func(etcd []string) error) (*plan, error) {
	stored, err := loadPlan(dir)
	if err != nil {
		return nil, err
	}
	if stored == nil {
		return newPlan(dir, flags, reach)
	}
	if given("etcd") && len(stored.Etcd) > 0 && len(flags.Etcd) > 0 && !slices.Equal(stored.Etcd, flags.Etcd) {
		if err := reach(flags.Etcd); err != nil {
			return nil, err
		}
		stored.Etcd = flags.Etcd // that it is the same cluster's, the nodes check
		if err := stored.save(dir); err != nil {
			return nil, err
		}
	}
	for _, c := range []struct {
		flag       string
		have, want any
	}{
		{"nodes", stored.Nodes, flags.Nodes},
		{"replicas", stored.Replicas, flags.Replicas},
		{"shards", stored.Shards, flags.Shards},
		{"data-servers", stored.DataServers, flags.DataServers},
		{"listen", stored.Listen, flags.Listen},
	} {
		if given(c.flag) && c.have != c.want {
			return nil, fmt.Errorf("%s was made with --%s %v: leave the flag out, or use another --data", dir, c.flag, c.have)
		}
	}
	if given("etcd") && (len(stored.Etcd) > 0) != (len(flags.Etcd) > 0) {
		how := "an embedded etcd"
		if len(stored.Etcd) > 0 {
			how = "--etcd " + strings.Join(stored.Etcd, ",")
		}
		return nil, fmt.Errorf("%s was made with %s: leave the flag out, or use another --data", dir, how)
	}
	return stored, stored.checkFree()
}

func newPlan(dir string, flags plan, reach func(etcd []string) error) (*plan, error) {
	p := flags
	p.Format = planFormat
	if err := p.validate(); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Name() != lockFile {
			return nil, fmt.Errorf("%s is not empty and is no data directory of canopy up (it has %s): choose another --data", dir, e.Name())
		}
	}
	if err := p.assign(); err != nil {
		return nil, err
	}
	if len(p.Etcd) > 0 {
		if err := reach(p.Etcd); err != nil {
			return nil, err
		}
	}
	return &p, p.save(dir)
}
