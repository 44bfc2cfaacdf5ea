package mds_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/inspect"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/placement"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
	"github.com/canopyfs/canopy/shard/store"
)

// inspector returns a connection as operators' tools have it.
func (c *cluster) inspector() *inspect.Cluster {
	c.t.Helper()
	cl, err := inspect.Connect(c.t.Context(), c.nodes[0].Addr(), inspect.Options{})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { cl.Close() })
	return cl
}

// orderedRepair is a repair and the shard where it is made.
type orderedRepair struct {
	shard  base.ShardID
	repair *canopyv1.Repair
}

// fsck checks the whole cluster and returns what is found and what mends it.
func fsck(t *testing.T, cl *inspect.Cluster) (found []string, plan []orderedRepair) {
	t.Helper()
	r, err := cl.Tree(t.Context(), inspect.TreeOptions{Settle: 100 * time.Millisecond, Shard: func(at base.ShardID, _ *canopyv1.FsckFinding, all []*canopyv1.FsckFinding) {
		for _, f := range all {
			found = append(found, f.Object+": "+f.Problem)
			if f.Repair != nil {
				plan = append(plan, orderedRepair{at, f.Repair})
			}
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Findings {
		found = append(found, "inode "+f.Ino.String()+": "+f.Problem)
		if f.Mend != nil {
			plan = append(plan, orderedRepair{f.Mend.Shard, f.Mend.Repair()})
		}
	}
	return found, plan
}

func mend(t *testing.T, cl *inspect.Cluster, plan []orderedRepair) (made int) {
	t.Helper()
	for _, p := range plan {
		outcomes, err := cl.Repair(t.Context(), p.shard, []*canopyv1.Repair{p.repair})
		if err != nil {
			t.Fatal(err)
		}
		if outcomes[0].Repaired {
			made++
		}
	}
	return made
}

// equalReplicas holds that all replicas of a shard have the same bytes.
func equalReplicas(t *testing.T, cl *inspect.Cluster, shard base.ShardID) {
	t.Helper()
	_, all, err := cl.Checksum(t.Context(), shard)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.Err != nil || !bytes.Equal(s.Answer.Checksum, all[0].Answer.Checksum) {
			t.Fatalf("replica %v: %v; replicas differ: %+v", s.Replica, s.Err, all)
		}
	}
}

// damage changes the rows of shard 1 in the store of every node; all are stopped.
func (c *cluster) damage(name string, change func(w shard.Writer) error) {
	c.t.Helper()
	for i := range c.nodes {
		s, err := store.Open(store.Options{Dir: filepath.Join(c.nodeDir(i), "store"), Cluster: name, Node: base.NodeID(i + 1)})
		if err != nil {
			c.t.Fatal(err)
		}
		b := s.NewBatch()
		if err := change(b); err != nil {
			c.t.Fatal(err)
		}
		if _, err := b.Commit(); err != nil {
			c.t.Fatal(err)
		}
		if err := b.Close(); err != nil {
			c.t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			c.t.Fatal(err)
		}
	}
}

// harm does what no operation does: a directory counts names that it has not, another
// one loses its name, a list of names has no file, the subtree counts nothing.
func harm(counted, lost base.Ino) func(w shard.Writer) error {
	return func(w shard.Writer) error {
		key := schema.HeaderKey(1, 1, counted)
		b, found, err := w.Get(key)
		if err != nil || !found {
			return fmt.Errorf("header: %v %v", found, err)
		}
		h, err := schema.DecodeHeader(b)
		if err != nil {
			return err
		}
		h.Entries += 3
		if err := w.Set(key, h.Append(nil)); err != nil {
			return err
		}
		if err := w.Delete(schema.DentryKey(1, 1, 1, shard.NameHash([]byte("lost")).Cookie(0))); err != nil {
			return err
		}
		if err := w.Set(schema.NamesKey(1, 1, 1<<50), (&schema.Names{Dirs: []base.Ino{1}}).Append(nil)); err != nil {
			return err
		}
		return w.Set(schema.CountersKey(1, 1), (&schema.Counters{Files: 1}).Append(nil))
	}
}

// Damage of several kinds, the same in all replicas: a look changes nothing, the repairs
// mend all of it while the cluster is in use, replicas stay equal, and once more there
// is nothing to repair. What the lost directory held is in /lost+found.
func TestACheckedClusterIsRepaired(t *testing.T) {
	t.Parallel()
	c := newCluster(t, placement.Bootstrap{Nodes: 3, Replicas: 3, Shards: 2}, nil)
	k := c.caller(7).open(1)
	counted := k.must(1, k.write(mkdir(1, "counted"))).Attr.Ino
	lost := k.must(1, k.write(mkdir(1, "lost"))).Attr.Ino
	k.must(1, k.write(create(lost, "precious")))
	c.holding(2)
	cl := c.inspector()
	if found, _ := fsck(t, cl); len(found) > 0 {
		t.Fatalf("before any damage: %q", found)
	}
	name := cl.Map().GetCluster()
	for i := range c.nodes {
		c.kill(i)
	}
	c.damage(name, harm(base.Ino(counted), base.Ino(lost)))
	for i := range c.nodes {
		c.start(i)
	}
	for i := range c.nodes {
		c.waitReady(i)
	}
	c.holding(1)
	c.holding(2)
	cl = c.inspector()
	found, plan := fsck(t, cl)
	all := strings.Join(found, "\n")
	for _, want := range []string{"its count of names is 3 more than its names", "no name in directory 1", "its names are listed, but it has no record", "counters of subtree 1 say"} {
		if !strings.Contains(all, want) {
			t.Errorf("not found: %q in\n%s", want, all)
		}
	}
	if again, _ := fsck(t, cl); !slices.Equal(found, again) {
		t.Errorf("a look changed something:\n%s\nand then:\n%s", all, strings.Join(again, "\n"))
	}
	k = c.caller(8).open(1)
	var made []orderedRepair
	for round := 0; len(plan) > 0; round++ {
		if round == 0 { // what a repair of "/" was to compare is no more: it waits for the next round
			k.must(1, k.write(create(1, "meanwhile")))
		}
		if mend(t, cl, plan) == 0 {
			t.Fatalf("nothing was repaired of:\n%s", strings.Join(found, "\n"))
		}
		made = append(made, plan...)
		found, plan = fsck(t, cl)
	}
	if len(found) > 0 {
		t.Errorf("after the repairs:\n%s", strings.Join(found, "\n"))
	}
	if again := mend(t, cl, made); again != 0 {
		t.Errorf("%d repairs were made again", again)
	}
	equalReplicas(t, cl, 1)
	there := k.must(1, lookup(1, "lost+found")).Attr.Ino
	if dir := k.must(1, lookup(there, fmt.Sprint("#", lost))).Attr.Ino; dir != lost {
		t.Errorf("#%d is %d", lost, dir)
	}
	k.must(1, lookup(lost, "precious"))
	if r := k.do(1, lookup(1, "lost")); fserr.Kind(r.Error) != fserr.NotFound {
		t.Errorf("the name that was lost: %v", r)
	}
}

// A route with an epoch that no owner had would make clients wait for ever, and no owner
// can publish over it (PROTOCOLS E8): it is found, and repaired from the shard's log; so
// is one that is not there.
func TestRoutesAreRepaired(t *testing.T) {
	t.Parallel()
	c := newCluster(t, placement.Bootstrap{Nodes: 1, Replicas: 1, Shards: 1}, nil)
	c.holding(1)
	place, err := placement.Open(t.Context(), placement.Config{Endpoints: []string{c.etcd.Address()}})
	if err != nil {
		t.Fatal(err)
	}
	defer place.Close()
	cl := c.inspector()
	route := func() *canopyv1.SubtreeRoute {
		if err := cl.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, r := range cl.Map().GetSubtrees() {
			if r.Subtree == 1 {
				return r
			}
		}
		return nil
	}
	eventually(t, "the route is published", func() bool { return route() != nil })
	right := route()
	for what, damage := range map[string]func() error{
		"which no owner has had": func() error {
			_, err := place.PutRoute(t.Context(), &canopyv1.SubtreeRoute{Subtree: 1, Shard: 1, Epoch: right.Epoch + 7, RootIno: 1})
			return err
		},
		"has no route of it": func() error { return place.DeleteRoute(t.Context(), 1, 1) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the node hears of it", func() bool { return route().GetEpoch() != right.Epoch })
		found, plan := fsck(t, cl)
		if len(plan) != 1 || !strings.Contains(strings.Join(found, "\n"), what) {
			t.Fatalf("%s: %q, %v", what, found, plan)
		}
		if made := mend(t, cl, plan); made != 1 {
			t.Fatalf("%s: not repaired", what)
		}
		eventually(t, "the map says so", func() bool { return route().GetEpoch() == right.Epoch })
		if found, _ := fsck(t, cl); len(found) > 0 {
			t.Errorf("%s: after the repair: %q", what, found)
		}
		if made := mend(t, cl, plan); made != 0 {
			t.Errorf("%s: repaired twice", what)
		}
	}
}
