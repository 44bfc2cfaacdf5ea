package capability

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
	"hash"
	"sync"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

// SecretBytes is the length of a key's secret.
const SecretBytes = 32

// Refusal is why a capability was refused.
type Refusal uint8

// The reasons.
const (
	Missing    Refusal = iota + 1 // there is none
	Malformed                     // no capability at all
	UnknownKey                    // its key is not accepted any more, or never was
	FutureKey                     // its key is newer than what is known here: soon it will be
	Forged                        // the MAC is another: changed, or of another client or file
	Expired                       // its time is over
	NotAllowed                    // it does not allow this
)

var reasons = [...]string{
	Missing: "missing", Malformed: "malformed", UnknownKey: "unknown key", FutureKey: "key not known yet",
	Forged: "forged, or of another client or file", Expired: "expired", NotAllowed: "not for this",
}

// String returns the reason as metrics and logs have it.
func (r Refusal) String() string {
	if int(r) < len(reasons) && reasons[r] != "" {
		return reasons[r]
	}
	return "refused"
}

// Error says it in words.
func (r Refusal) Error() string { return "capability: " + r.String() }

// key is one secret, with hashes ready for use.
type key struct {
	id   uint32
	macs sync.Pool // of *macState
}

// macState is a hash, and the memory for one use of it.
type macState struct {
	hash    hash.Hash
	message [messageBytes]byte
	sum     [sha256.Size]byte
}

func newKey(id uint32, secret []byte) *key {
	secret = append([]byte(nil), secret...)
	return &key{id: id, macs: sync.Pool{New: func() any { return &macState{hash: hmac.New(sha256.New, secret)} }}}
}

// mac returns the MAC of a capability.
func (k *key) mac(h []byte, client, data uint64) (out [macBytes]byte) {
	x := k.macs.Get().(*macState)
	x.message = message(h, client, data)
	x.hash.Reset()
	x.hash.Write(x.message[:])
	x.hash.Sum(x.sum[:0])
	copy(out[:], x.sum[:])
	k.macs.Put(x)
	return out
}

// Keyring is one version of the keys and of the time. It does not change.
type Keyring struct {
	ring *canopyv1.CapabilityRing
	keys []*key // by ascending id
}

// NewKeyring makes a Keyring of a ring, which must not change any more.
func NewKeyring(ring *canopyv1.CapabilityRing) (*Keyring, error) {
	if len(ring.GetKeys()) == 0 || ring.Period == 0 || ring.PeriodMs == 0 {
		return nil, fmt.Errorf("capability: a ring of %d keys, period %d of %d ms", len(ring.GetKeys()), ring.GetPeriod(), ring.GetPeriodMs())
	}
	k := &Keyring{ring: ring}
	last := uint32(0)
	for _, x := range ring.Keys {
		if x.Id <= last || len(x.Secret) != SecretBytes {
			return nil, fmt.Errorf("capability: key %d behind key %d, %d bytes", x.Id, last, len(x.Secret))
		}
		last = x.Id
		k.keys = append(k.keys, newKey(x.Id, x.Secret))
	}
	return k, nil
}

// Version returns the ring's version.
func (k *Keyring) Version() uint64 { return k.ring.Version }

// Period returns the time.
func (k *Keyring) Period() uint32 { return k.ring.Period }

func (k *Keyring) newest() *key { return k.keys[len(k.keys)-1] }

func (k *Keyring) find(id uint32) *key {
	for _, x := range k.keys {
		if x.id == id {
			return x
		}
	}
	return nil
}

// Service returns a capability of a service, signed with the newest key, valid
// until the end of the next period.
func (k *Keyring) Service(rights Rights) Token {
	return k.newest().sign(Grant{Rights: rights, Until: k.ring.Period + lifePeriods})
}

func (k *key) sign(g Grant) (t Token) {
	h := head(k.id, g)
	copy(t[:], h[:])
	mac := k.mac(t[:headBytes], g.Client, g.Data)
	copy(t[headBytes:], mac[:])
	return t
}

// Check returns nil if the token allows at least one of the wanted rights to the
// client on the data id, now. Any error is a Refusal.
func (k *Keyring) Check(token []byte, client, data uint64, want Rights) error {
	switch {
	case len(token) == 0:
		return Missing
	case len(token) != TokenBytes:
		return Malformed
	}
	switch token[0] {
	case scopeFile:
		if client == 0 || data == 0 {
			return Malformed
		}
	case scopeService:
		client, data = 0, 0
	default:
		return Malformed
	}
	id := binary.BigEndian.Uint32(token[2:])
	x := k.find(id)
	switch {
	case x == nil && id > k.newest().id:
		return FutureKey
	case x == nil:
		return UnknownKey
	}
	mac := x.mac(token[:headBytes], client, data)
	switch {
	case subtle.ConstantTimeCompare(mac[:], token[headBytes:]) != 1:
		return Forged
	case binary.BigEndian.Uint32(token[6:]) < k.ring.Period:
		return Expired
	case Rights(token[1])&want == 0:
		return NotAllowed
	}
	return nil
}
