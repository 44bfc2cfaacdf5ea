package shard

import (
	"bytes"

	"github.com/canopyfs/canopy/internal/base"
)

// The three fields of a 63-bit listing position, from the top (PROTOCOLS F2).
const (
	BorderBits    = 28 // hash of the name without temporary decoration; fragment borders fall only here
	FullBits      = 28 // hash of the full name
	CollisionBits = 7  // given at insert

	// Collisions is how many names can share the 56 bits of hash before an
	// insert probes the next full-name hash.
	Collisions = 1 << CollisionBits

	borderMax = 1<<BorderBits - 1
	fullMax   = 1<<FullBits - 1
)

// Hash is the 56 bits of a name's hash: border bits above full-name bits. It
// is never zero, so that no listing position falls on the fixed ones (0-2).
type Hash uint64

// NameHash returns the hash of name: FNV-1a (Fowler, Noll, Vo) over the bytes,
// spread by the finalizer of MurmurHash3 (Appleby), the border bits of the name
// without its decoration and the full bits of the whole.
func NameHash(name []byte) Hash {
	full := mix(fnv1a(name))
	border := full
	if plain := Undecorated(name); len(plain) != len(name) {
		border = mix(fnv1a(plain))
	}
	return makeHash(border>>(64-BorderBits), full>>(64-BorderBits-FullBits)&fullMax)
}

func makeHash(border, full uint64) Hash {
	if border == 0 && full == 0 {
		full = 1
	}
	return Hash(border<<FullBits | full)
}

// Border returns the bits by which fragments are cut.
func (h Hash) Border() uint32 { return uint32(h>>FullBits) & borderMax }

// Next returns the hash that an insert probes when all collision values of h
// are taken: the next full-name hash within the same border bits.
func (h Hash) Next() Hash { return makeHash(uint64(h)>>FullBits, (uint64(h)+1)&fullMax) }

// Cookie returns the listing position of h with a collision value.
func (h Hash) Cookie(collision int) base.Cookie {
	return base.Cookie(uint64(h)<<CollisionBits | uint64(collision)&(Collisions-1))
}

// HashOf returns the hash part of a listing position.
func HashOf(c base.Cookie) Hash { return Hash(c >> CollisionBits) }

func fnv1a(b []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// Undecorated returns name without the decoration of a temporary name, so that
// "write temporary, rename to final" stays within one fragment. Only the forms
// below are known; one layer is taken off, and never all of the name, so that a
// directory of mkstemp names stays splittable. The result shares name's memory.
//
//	name.tmp name.temp name.part name.partial name.new name.lock   (tools, browsers, git)
//	name~                                                          (editors)
//	.name.XXXXXX    six letters or digits                          (rsync)
//	.#name                                                         (emacs)
func Undecorated(name []byte) []byte {
	if n := len(name); n > 1 && name[n-1] == '~' {
		return name[:n-1]
	}
	if i := bytes.LastIndexByte(name, '.'); i > 0 {
		switch string(name[i+1:]) {
		case "tmp", "temp", "part", "partial", "new", "lock":
			return name[:i]
		}
		if i > 1 && name[0] == '.' && isRandomSuffix(name[i+1:]) {
			return name[1:i]
		}
	}
	if len(name) > 2 && name[0] == '.' && name[1] == '#' {
		return name[2:]
	}
	return name
}

func isRandomSuffix(s []byte) bool {
	if len(s) != 6 {
		return false
	}
	for _, c := range s {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}
