package layoutsvc

import (
	"slices"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/await"
	"github.com/canopyfs/canopy/internal/capability"
	"github.com/canopyfs/canopy/internal/fserr"
)

// keys asks until the leader answers, at whichever instance leads.
func keys(t *testing.T, request *canopyv1.KeysRequest, instances ...*running) *canopyv1.KeysResponse {
	t.Helper()
	var answer *canopyv1.KeysResponse
	await.Until(t, patience, "a leader tells of the keys", func() bool {
		for _, i := range instances {
			var err error
			if answer, err = i.client.Keys(background(t), request); err != nil {
				t.Fatal(err)
			}
			if kind := fserr.Kind(answer.Error); kind != fserr.NotHolder && kind != fserr.NotReady {
				return true
			}
		}
		return false
	})
	return answer
}

func keyIDs(ring *canopyv1.CapabilityRing) (ids []uint32) {
	for _, k := range ring.Keys {
		ids = append(ids, k.Id)
	}
	return ids
}

// TestKeys: J4: the leader makes the first key, time goes on, keys rotate with
// overlap or are revoked, and data servers get them with their lease; nobody else
// sees a secret.
func TestKeys(t *testing.T) {
	f := newFixture(t)
	s := f.start(func(c *Config) { c.KeyPeriod = time.Second })
	first := keys(t, &canopyv1.KeysRequest{}, s)
	if ids := keyIDs(first.Ring); !slices.Equal(ids, []uint32{1}) || first.Ring.Period == 0 || len(first.Ring.Keys[0].Secret) != 0 {
		t.Fatalf("the first ring is %v", first.Ring)
	}
	registered := register(t, &canopyv1.RegisterServerRequest{Incarnation: 1}, s)
	if k := registered.CapabilityRing.GetKeys(); len(k) != 1 || len(k[0].Secret) != capability.SecretBytes {
		t.Fatalf("a data server got the ring %v", registered.CapabilityRing)
	}
	rotated := keys(t, &canopyv1.KeysRequest{Rotate: true}, s)
	if ids := keyIDs(rotated.Ring); !slices.Equal(ids, []uint32{1, 2}) || rotated.Ring.Keys[0].ReplacedPeriod == 0 {
		t.Errorf("after a rotation the ring is %v", rotated.Ring)
	}
	beat := func(version uint64) *canopyv1.CapabilityRing {
		answer, err := s.client.HeartbeatServer(background(t), &canopyv1.HeartbeatServerRequest{Server: registered.Server, Incarnation: 1, CapabilityVersion: version})
		if err != nil || answer.Error != 0 {
			t.Fatalf("heartbeat: %v, %v", answer, err)
		}
		return answer.CapabilityRing
	}
	got := beat(registered.CapabilityRing.Version)
	if got == nil || !slices.Equal(keyIDs(got), []uint32{1, 2}) {
		t.Fatalf("a heartbeat brought %v", got)
	}
	await.Until(t, patience/3, "time goes on, and heartbeats bring nothing twice", func() bool {
		next := beat(got.Version)
		if next == nil {
			return false
		}
		passed := next.Period > got.Period
		got = next
		return passed
	})
	revoked := keys(t, &canopyv1.KeysRequest{Rotate: true, Revoke: true}, s)
	if ids := keyIDs(revoked.Ring); !slices.Equal(ids, []uint32{3}) {
		t.Errorf("after the old keys were revoked there are %v", ids)
	}
	if answer := keys(t, &canopyv1.KeysRequest{Revoke: true}, s); fserr.Kind(answer.Error) != fserr.Invalid {
		t.Errorf("revoke without rotate: %v", answer)
	}
	for len(revoked.Ring.Keys) < capability.MaxKeys {
		if revoked = keys(t, &canopyv1.KeysRequest{Rotate: true}, s); revoked.Error != 0 {
			t.Fatal(revoked.Detail)
		}
	}
	if answer := keys(t, &canopyv1.KeysRequest{Rotate: true}, s); fserr.Kind(answer.Error) != fserr.Busy {
		t.Errorf("more keys than there can be: %v", answer)
	}
}

// TestKeysOutliveALeader: J4: the next leader goes on with the keys and the time
// that are there, and keys are replaced by themselves.
func TestKeysOutliveALeader(t *testing.T) {
	f := newFixture(t)
	s := f.start(nil)
	before := keys(t, &canopyv1.KeysRequest{Rotate: true}, s)
	s.stop()
	after := f.start(func(c *Config) { c.KeyPeriod, c.KeyRotation = time.Second, 10*time.Second })
	now := keys(t, &canopyv1.KeysRequest{}, after)
	if !slices.Equal(keyIDs(now.Ring), keyIDs(before.Ring)) || now.Ring.Period < before.Ring.Period {
		t.Fatalf("keys %v of period %d became %v of period %d", keyIDs(before.Ring), before.Ring.Period, keyIDs(now.Ring), now.Ring.Period)
	}
	await.Until(t, patience, "the key is old and replaced", func() bool {
		ids := keyIDs(keys(t, &canopyv1.KeysRequest{}, after).Ring)
		return slices.Equal(ids, []uint32{1, 2, 3})
	})
}

// TestOldKeysGo: J4: a replaced key is accepted for as long as somebody can sign
// with it, and not longer.
func TestOldKeysGo(t *testing.T) {
	ring := &canopyv1.CapabilityRing{Period: 500, Keys: []*canopyv1.CapabilityKey{
		{Id: 1, ReplacedPeriod: 500 - capability.KeepPeriods},
		{Id: 2, ReplacedPeriod: 501 - capability.KeepPeriods},
		{Id: 3, CreatedPeriod: 1},
	}}
	dropOld(ring)
	if ids := keyIDs(ring); !slices.Equal(ids, []uint32{2, 3}) {
		t.Errorf("kept %v, want 2 and 3", ids)
	}
}
