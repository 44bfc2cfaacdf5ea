package mds_test

import (
	"bytes"
	"errors"
	"testing"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/capability"
	"github.com/canopyfs/canopy/placement"
)

// testKeys are keys of capabilities in the cluster's etcd, as a layout service
// writes them.
type testKeys struct {
	c        *cluster
	store    *placement.Store
	message  *canopyv1.CapabilityRing
	revision placement.Revision
}

func (c *cluster) keys() *testKeys {
	c.t.Helper()
	store, err := placement.Open(c.t.Context(), placement.Config{Endpoints: []string{c.etcd.Address()}})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { store.Close() })
	return &testKeys{c: c, store: store, message: &canopyv1.CapabilityRing{Period: 10, PeriodMs: 15_000}}
}

// put writes a new version with the keys.
func (k *testKeys) put(ids ...uint32) {
	k.c.t.Helper()
	next := &canopyv1.CapabilityRing{Version: k.message.Version + 1, Period: k.message.Period, PeriodMs: k.message.PeriodMs}
	for _, id := range ids {
		next.Keys = append(next.Keys, &canopyv1.CapabilityKey{Id: id, Secret: bytes.Repeat([]byte{byte(id)}, capability.SecretBytes)})
	}
	var err error
	if k.revision, err = k.store.PutCapabilities(k.c.t.Context(), nil, next, k.revision); err != nil {
		k.c.t.Fatal(err)
	}
	k.message = next
}

// rights returns what a capability proves to data servers; 0 without one.
func (k *testKeys) rights(token []byte, client, ino uint64) (rights capability.Rights) {
	k.c.t.Helper()
	ring, err := capability.NewKeyring(k.message)
	if err != nil {
		k.c.t.Fatal(err)
	}
	for r := capability.Read; r <= capability.Member; r <<= 1 {
		switch err := ring.Check(token, client, ino, r); {
		case err == nil:
			rights |= r
		case !errors.Is(err, capability.NotAllowed) && !errors.Is(err, capability.Missing):
			k.c.t.Errorf("capability %x: %v", token, err)
		}
	}
	return rights
}

// TestCapabilities: J4: lookup and create answer what the caller may do with a
// file's bytes, signed for its client with the keys in etcd; and go on while etcd is
// away.
func TestCapabilities(t *testing.T) {
	c := newCluster(t, placement.Bootstrap{Nodes: 1, Replicas: 1, Shards: 1}, nil)
	k := c.caller(7).open(1)
	owner := &canopyv1.Credential{Uid: 1000, Gid: 100}
	if r := k.must(1, k.write(create(1, "before"))); r.Capability != nil {
		t.Errorf("a capability without a key: %x", r.Capability)
	}
	if r := k.must(1, lookup(1, "before")); r.Capability != nil {
		t.Errorf("a capability without a key: %x", r.Capability)
	}
	keys := c.keys()
	keys.put(1)
	eventually(t, "the node has the key", func() bool { return k.must(1, lookup(1, "before")).Capability != nil })

	k.must(1, k.write(&canopyv1.Op{Subtree: 1, Cred: root, Call: &canopyv1.Op_SetAttr{SetAttr: &canopyv1.SetAttrCall{
		Place: &canopyv1.Place{Ino: 1}, Mask: uint32(canopyv1.SetAttrMask_SET_ATTR_MODE), Mode: 0o777}}}))
	made := k.write(create(1, "f"))
	made.Cred, made.GetCreate().Mode = owner, 0o440
	r := k.must(1, made)
	ino := r.Attr.Ino
	const both = capability.Read | capability.Write
	if got := keys.rights(r.Capability, 7, ino); got != both {
		t.Errorf("who makes a file was granted %b", got)
	}
	again := k.must(1, made)
	if got := keys.rights(again.Capability, 7, ino); got != both {
		t.Errorf("the repetition of a create was granted %b", got)
	}
	k.must(1, k.write(&canopyv1.Op{Subtree: 1, Cred: root, Call: &canopyv1.Op_Mkdir{Mkdir: &canopyv1.MkdirCall{Dir: 1, Name: []byte("d")}}}))
	for _, x := range []struct {
		who  string
		cred *canopyv1.Credential
		want capability.Rights
	}{
		{"root", root, both},
		{"the owner, by the mode", owner, capability.Read},
		{"the group", &canopyv1.Credential{Uid: 2000, Gid: 100}, capability.Read},
		{"a member of the group", &canopyv1.Credential{Uid: 2000, Gid: 7, Groups: []uint32{100}}, capability.Read},
		{"another", &canopyv1.Credential{Uid: 2000, Gid: 7}, 0},
		{"nobody", nil, 0},
	} {
		op := lookup(1, "f")
		op.Cred = x.cred
		if got := keys.rights(k.must(1, op).Capability, 7, ino); got != x.want {
			t.Errorf("%s was granted %b, want %b", x.who, got, x.want)
		}
	}
	if r := k.must(1, lookup(1, "d")); r.Capability != nil || r.DataRights != 0 {
		t.Errorf("a directory has a capability: %v", r)
	}
	getAttr := func(rights capability.Rights) *canopyv1.Op {
		return &canopyv1.Op{Subtree: 1, Cred: root, Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{
			Place: &canopyv1.Place{Ino: ino, Dir: 1, Name: []byte("f")}, DataRights: uint32(rights)}}}
	}
	for _, rights := range []capability.Rights{0, capability.Read, both, 0xff} {
		if got := keys.rights(k.must(1, getAttr(rights)).Capability, 7, ino); got != rights&both {
			t.Errorf("asked for %b, granted %b", rights, got)
		}
	}
	grant, err := canopyv1.NewAdminClient(connect(t, c.nodes[0].Addr())).GrantInspection(t.Context(), &canopyv1.GrantInspectionRequest{})
	if err != nil || keys.rights(grant.Capability, 0, 0) != capability.Inspect {
		t.Errorf("an operator's tool is granted %v, %v", grant, err)
	}

	// A revoked key is used no more; the result of the session is as it was.
	keys.put(2)
	eventually(t, "the node has the new key", func() bool { return k.must(1, lookup(1, "before")).Capability[5] == 2 })
	if got := keys.rights(k.must(1, made).Capability, 7, ino); got != both {
		t.Errorf("a late repetition of a create was granted %b", got)
	}
	c.etcd.Close()
	c.etcd = nil
	if got := keys.rights(k.must(1, lookup(1, "f")).Capability, 7, ino); got != both {
		t.Errorf("while etcd is away, granted %b", got)
	}
}
