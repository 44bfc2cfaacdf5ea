package scale

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/canopyfs/canopy/loadtest/cgroup"
)

const (
	startTimeout = time.Minute
	stopTimeout  = 30 * time.Second
)

// cluster is a cluster on this machine: etcd, a metadata node that has nothing but the
// root, a layout service and a data server as one process without bounds, and
// metadata nodes of one shard each in control groups.
type cluster struct {
	cfg     *Config
	dir     string
	address string // of a metadata node
	etcd    string
	base    *program
	nodes   []*node
}

// node is a metadata node with a share of a CPU.
type node struct {
	id    int
	shard uint64
	group *cgroup.Group
	run   *program
}

// firstNode is the id of the first node in a group: 1 is the base's.
const firstNode = 2

func startCluster(ctx context.Context, cfg *Config) (_ *cluster, err error) {
	c := &cluster{cfg: cfg}
	if c.dir, err = os.MkdirTemp(cfg.Dir, "canopy-scale-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	c.base, err = c.start("canopy", "up", "--data", filepath.Join(c.dir, "base"), "--listen", "127.0.0.1:0", "--data-servers", "1", "--log-level", "warn")
	if err != nil {
		return nil, err
	}
	if err := c.base.wait(ctx, "Ctrl-C ends it"); err != nil {
		return nil, err
	}
	c.address, c.etcd = c.base.field("metadata node 1"), c.base.field("etcd")
	if c.address == "" || c.etcd == "" {
		return nil, fmt.Errorf("canopy up does not say where it listens:\n%s", c.base.said())
	}
	for i := range cfg.Nodes[len(cfg.Nodes)-1] {
		if err := c.addNode(ctx, firstNode+i); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// addNode starts a metadata node in a group and makes a shard on it.
func (c *cluster) addNode(ctx context.Context, id int) error {
	group, err := cgroup.New(fmt.Sprintf("%s-%d", filepath.Base(c.dir), id), c.cfg.Share)
	if err != nil {
		return err
	}
	n := &node{id: id, group: group}
	c.nodes = append(c.nodes, n)
	grpc, err := freeAddress()
	if err != nil {
		return err
	}
	raft, err := freeAddress()
	if err != nil {
		return err
	}
	n.run, err = c.start("mds", "--data", filepath.Join(c.dir, fmt.Sprint("mds", id)), "--node", fmt.Sprint(id), "--etcd", c.etcd,
		"--listen", grpc, "--raft-listen", raft, "--log-level", "warn")
	if err != nil {
		return err
	}
	if err := n.run.wait(ctx, "ready"); err != nil {
		return err
	}
	if err := group.Add(n.run.cmd.Process.Pid); err != nil {
		return err
	}
	var made struct {
		Shard uint64 `json:"shard"`
	}
	out, err := c.ctl(ctx, "shard", "create", "--nodes", fmt.Sprint(id), "-o", "json")
	if err == nil {
		err = json.Unmarshal(out, &made)
	}
	n.shard = made.Shard
	return err
}

// ctl runs mdsctl.
func (c *cluster) ctl(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.cfg.Bin, "mdsctl"), append([]string{"--cluster", c.address}, args...)...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("mdsctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(said.String()))
	}
	return out.Bytes(), nil
}

// close ends all processes, the nodes first, and removes what they left.
func (c *cluster) close() error {
	var errs []error
	for _, n := range c.nodes {
		errs = append(errs, n.run.stop())
		errs = append(errs, n.group.Remove())
	}
	errs = append(errs, c.base.stop(), os.RemoveAll(c.dir))
	return errors.Join(errs...)
}

// freeAddress returns an address of this machine that nobody listens at.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// program is a process of the cluster.
type program struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}

	mu  sync.Mutex
	out bytes.Buffer
}

// Write takes in what the process says.
func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

func (p *program) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

func (c *cluster) start(name string, args ...string) (*program, error) {
	p := &program{name: name, cmd: exec.Command(filepath.Join(c.cfg.Bin, name), args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	// A terminal's Ctrl-C is for this program, which ends the others in order.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// wait returns when the process has said text.
func (p *program) wait(ctx context.Context, text string) error {
	timeout := time.NewTimer(startTimeout)
	defer timeout.Stop()
	for !strings.Contains(p.said(), text) {
		select {
		case <-p.done:
			return fmt.Errorf("%s ended: %s", p.name, strings.TrimSpace(p.said()))
		case <-timeout.C:
			return fmt.Errorf("%s is not ready after %v: %s", p.name, startTimeout, strings.TrimSpace(p.said()))
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// field returns the address that a line of canopy up's table has behind name.
func (p *program) field(name string) string {
	for line := range strings.Lines(p.said()) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), name); ok {
			if f := strings.Fields(rest); len(f) > 0 {
				return f[0]
			}
		}
	}
	return ""
}

// stop ends the process.
func (p *program) stop() error {
	if p == nil {
		return nil
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
	case <-time.After(stopTimeout):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	return nil
}
