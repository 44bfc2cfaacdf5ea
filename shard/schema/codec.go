package schema

import (
	"encoding/binary"
	"fmt"
)

// valueVersion is the first byte of every value of this format version.
const valueVersion = 1

// decoder reads a value. After the first failure all further reads return zero
// values, so that a caller checks once, by done.
type decoder struct {
	b   []byte
	bad bool
}

// decode starts reading b: its version byte must be known.
func decode(b []byte) *decoder {
	d := &decoder{b: b}
	if d.byte() != valueVersion {
		d.fail()
	}
	return d
}

func (d *decoder) fail() { d.bad, d.b = true, nil }

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail()
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *decoder) u64() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) i64() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) u32() uint32 {
	v := d.u64()
	if v > 1<<32-1 {
		d.fail()
		return 0
	}
	return uint32(v)
}

// count reads the length of a list whose elements take at least one byte each.
func (d *decoder) count() int {
	v := d.u64()
	if v > uint64(len(d.b)) {
		d.fail()
		return 0
	}
	return int(v)
}

// bytes reads a counted string into memory of its own.
func (d *decoder) bytes() []byte {
	n := d.count()
	if n == 0 {
		return nil
	}
	v := append([]byte(nil), d.b[:n]...)
	d.b = d.b[n:]
	return v
}

// done returns an error if anything was wrong or is left over.
func (d *decoder) done(what string) error {
	if d.bad || len(d.b) != 0 {
		return fmt.Errorf("schema: damaged value of a %s", what)
	}
	return nil
}

func putU64(dst []byte, v uint64) []byte { return binary.AppendUvarint(dst, v) }
func putI64(dst []byte, v int64) []byte  { return binary.AppendVarint(dst, v) }

func putBytes(dst, v []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(v))), v...)
}

func putString(dst []byte, v string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(v))), v...)
}
