package capability

import (
	"bytes"
	"errors"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

// ring returns keys of the ids in a period.
func ring(t testing.TB, version uint64, period uint32, ids ...uint32) *Keyring {
	t.Helper()
	m := &canopyv1.CapabilityRing{Version: version, Period: period, PeriodMs: 15_000}
	for _, id := range ids {
		m.Keys = append(m.Keys, &canopyv1.CapabilityKey{Id: id, Secret: bytes.Repeat([]byte{byte(id), 7}, SecretBytes/2)})
	}
	k, err := NewKeyring(m)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

var start = time.Unix(1_700_000_000, 0)

// sign returns a client's capability as a node with the ring grants it.
func sign(t testing.TB, k *Keyring, client, data uint64, rights Rights) []byte {
	t.Helper()
	var s Signer
	s.Update(k, start)
	token, ok := s.Sign(client, data, rights, start)
	if !ok {
		t.Fatal("nothing was signed")
	}
	return token[:]
}

// TestCheck: J4: a capability is for one client, one file, its rights and its time.
func TestCheck(t *testing.T) {
	k := ring(t, 1, 10, 3, 4)
	own := sign(t, k, 1, 2, Read|Write)
	reader := sign(t, k, 1, 2, Read)
	changed := func(i int, b byte) []byte {
		c := bytes.Clone(own)
		c[i] ^= b
		return c
	}
	otherSecret := ring(t, 1, 10, 3, 4)
	otherSecret.keys[1] = newKey(4, make([]byte, SecretBytes))
	service := k.Service(Member)
	for _, x := range []struct {
		name         string
		ring         *Keyring
		token        []byte
		client, data uint64
		want         Rights
		refusal      error
	}{
		{"its file", k, own, 1, 2, Write, nil},
		{"to read", k, reader, 1, 2, Read, nil},
		{"one of two rights", k, reader, 1, 2, Read | Write, nil},
		{"the next period", ring(t, 2, 11, 3, 4), own, 1, 2, Write, nil},
		{"after a rotation", ring(t, 2, 10, 3, 4, 5), own, 1, 2, Write, nil},
		{"none", k, nil, 1, 2, Read, Missing},
		{"cut short", k, own[:TokenBytes-1], 1, 2, Read, Malformed},
		{"longer", k, append(bytes.Clone(own), 0), 1, 2, Read, Malformed},
		{"of no scope", k, changed(0, 8), 1, 2, Read, Malformed},
		{"no client", k, own, 0, 2, Read, Malformed},
		{"no file", k, own, 1, 0, Read, Malformed},
		{"read capability to write", k, reader, 1, 2, Write, NotAllowed},
		{"to delete", k, own, 1, 2, Purge, NotAllowed},
		{"as a member", k, own, 1, 2, Member, NotAllowed},
		{"another file", k, own, 1, 3, Read, Forged},
		{"another client", k, own, 9, 2, Read, Forged},
		{"more rights", k, func() []byte { c := bytes.Clone(reader); c[1] |= byte(Write); return c }(), 1, 2, Write, Forged},
		{"a longer life", k, changed(9, 64), 1, 2, Read, Forged},
		{"of a service", k, changed(0, scopeFile^scopeService), 1, 2, Read, Forged},
		{"another MAC", k, changed(TokenBytes-1, 1), 1, 2, Read, Forged},
		{"signed with another secret", otherSecret, own, 1, 2, Read, Forged},
		{"an older key's", ring(t, 3, 10, 5), own, 1, 2, Read, UnknownKey},
		{"a newer key's", ring(t, 1, 10, 3), own, 1, 2, Read, FutureKey},
		{"two periods later", ring(t, 3, 12, 3, 4), own, 1, 2, Read, Expired},
		{"a service's, as a member", k, service[:], 1, 2, Member, nil},
		{"a service's, to read", k, service[:], 1, 2, Read, NotAllowed},
		{"a service's, later", ring(t, 3, 12, 3, 4), service[:], 0, 0, Member, Expired},
	} {
		if err := x.ring.Check(x.token, x.client, x.data, x.want); !errors.Is(err, x.refusal) {
			t.Errorf("%s: %v, want %v", x.name, err, x.refusal)
		}
	}
}

// TestSignerRotation: J4: keys rotate without a pause: a new key is used when data
// servers have it, and at once when the old one is revoked.
func TestSignerRotation(t *testing.T) {
	var s Signer
	if _, ok := s.Sign(1, 2, Read, start); ok {
		t.Error("signed without a key")
	}
	keyAt := func(now time.Time) byte {
		t.Helper()
		token, ok := s.Sign(1, 2, Read, now)
		if !ok {
			t.Fatal("nothing was signed")
		}
		return token[5]
	}
	s.Update(ring(t, 1, 10, 1), start)
	if k := keyAt(start); k != 1 {
		t.Errorf("the only key is 1, signed with %d", k)
	}
	s.Update(ring(t, 2, 10, 1, 2), start.Add(time.Second))
	if k := keyAt(start.Add(2 * time.Second)); k != 1 {
		t.Errorf("signed with key %d before data servers can have it", k)
	}
	if k := keyAt(start.Add(time.Second + settle)); k != 2 {
		t.Errorf("signed with key %d when the new one is everywhere", k)
	}
	s.Update(ring(t, 3, 11, 1, 2, 3), start.Add(time.Minute))
	if k := keyAt(start.Add(time.Minute)); k != 2 {
		t.Errorf("after the second rotation signed with key %d, not with the one before", k)
	}
	s.Update(ring(t, 4, 11, 4), start.Add(time.Minute))
	if k := keyAt(start.Add(time.Minute)); k != 4 {
		t.Errorf("signed with key %d, which is revoked", k)
	}
	s.Update(ring(t, 3, 11, 1, 2, 3), start.Add(time.Minute))
	if k := keyAt(start.Add(time.Minute)); k != 4 {
		t.Errorf("an older ring came late: signed with key %d", k)
	}
}

// TestBlindSigner: a node that hears of no new period counts on by itself, within a
// bound: what it signs is accepted where the time went on, and ends where it did
// not.
func TestBlindSigner(t *testing.T) {
	var s Signer
	s.Update(ring(t, 1, 10, 1), start)
	later := start.Add(10 * DefaultPeriod)
	token, _ := s.Sign(1, 2, Read, later)
	if err := ring(t, 9, 20, 1).Check(token[:], 1, 2, Read); err != nil {
		t.Errorf("ten periods later: %v", err)
	}
	token, _ = s.Sign(1, 2, Read, start.Add(24*time.Hour))
	if err := ring(t, 9, 10+uint32(MaxLife(DefaultPeriod)/DefaultPeriod), 1).Check(token[:], 1, 2, Read); !errors.Is(err, Expired) {
		t.Errorf("longer than MaxLife after the last period that was known: %v", err)
	}
}

// TestRingRefused: a ring that nothing can be checked with is none.
func TestRingRefused(t *testing.T) {
	good := func() *canopyv1.CapabilityRing {
		return &canopyv1.CapabilityRing{Version: 1, Period: 1, PeriodMs: 1, Keys: []*canopyv1.CapabilityKey{
			{Id: 1, Secret: make([]byte, SecretBytes)}, {Id: 2, Secret: make([]byte, SecretBytes)}}}
	}
	if _, err := NewKeyring(good()); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(*canopyv1.CapabilityRing){
		"no key":        func(r *canopyv1.CapabilityRing) { r.Keys = nil },
		"no period":     func(r *canopyv1.CapabilityRing) { r.Period = 0 },
		"no length":     func(r *canopyv1.CapabilityRing) { r.PeriodMs = 0 },
		"twice an id":   func(r *canopyv1.CapabilityRing) { r.Keys[1].Id = 1 },
		"short secrets": func(r *canopyv1.CapabilityRing) { r.Keys[1].Secret = r.Keys[1].Secret[1:] },
	} {
		r := good()
		spoil(r)
		if _, err := NewKeyring(r); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// FuzzCheck: nothing crashes the decoder, and nothing but what was signed is
// accepted.
func FuzzCheck(f *testing.F) {
	k := ring(f, 1, 10, 3, 4)
	good := sign(f, k, 1, 2, Read|Write)
	service := k.Service(Member)
	f.Add(good, uint64(1), uint64(2))
	f.Add(service[:], uint64(1), uint64(2))
	f.Add([]byte{}, uint64(0), uint64(0))
	f.Fuzz(func(t *testing.T, token []byte, client, data uint64) {
		if k.Check(token, client, data, 0xff) != nil {
			return
		}
		if bytes.Equal(token, good) && client == 1 && data == 2 || bytes.Equal(token, service[:]) {
			return
		}
		t.Fatalf("%x was accepted for client %d, file %d", token, client, data)
	})
}

func BenchmarkSign(b *testing.B) {
	var s Signer
	s.Update(ring(b, 1, 10, 1), start)
	for b.Loop() {
		s.Sign(1, 2, Read, start)
	}
}

func BenchmarkCheck(b *testing.B) {
	k := ring(b, 1, 10, 1)
	token := sign(b, k, 1, 2, Read)
	for b.Loop() {
		if err := k.Check(token, 1, 2, Read); err != nil {
			b.Fatal(err)
		}
	}
}
