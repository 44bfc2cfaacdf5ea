package schema

import (
	"github.com/canopyfs/canopy/internal/base"
)

// Session is one client's session at the shard (PROTOCOLS C3).
type Session struct {
	Host     string
	PID      uint32
	Mount    string
	OpenedNS int64
	OpenSeq  base.Seq // of the request that opened it
	Base     base.Seq // what lies below is refused in every subtree
}

// Append appends the encoding to dst.
func (s *Session) Append(dst []byte) []byte {
	dst = putString(append(dst, valueVersion), s.Host)
	dst = putString(putU64(dst, uint64(s.PID)), s.Mount)
	return putU64(putU64(putI64(dst, s.OpenedNS), uint64(s.OpenSeq)), uint64(s.Base))
}

// DecodeSession reads what Session.Append wrote.
func DecodeSession(b []byte) (*Session, error) {
	d := decode(b)
	s := &Session{Host: string(d.bytes()), PID: d.u32(), Mount: string(d.bytes()), OpenedNS: d.i64(),
		OpenSeq: base.Seq(d.u64()), Base: base.Seq(d.u64())}
	return s, d.done("session")
}

// Ended is what is remembered of an ended session, so that a request of it that
// comes late is refused even when the client has opened a session again.
type Ended struct {
	EndedNS int64
	MaxSeq  base.Seq // largest sequence number that was executed
}

// Append appends the encoding to dst.
func (e *Ended) Append(dst []byte) []byte {
	return putU64(putI64(append(dst, valueVersion), e.EndedNS), uint64(e.MaxSeq))
}

// DecodeEnded reads what Ended.Append wrote.
func DecodeEnded(b []byte) (*Ended, error) {
	d := decode(b)
	e := &Ended{EndedNS: d.i64(), MaxSeq: base.Seq(d.u64())}
	return e, d.done("ended session")
}

// Results are the results that one entry of the log made for one client in one
// subtree, with the client's floor after them. One value for many operations
// keeps the cost of PROTOCOLS C2 to one write per entry and client.
type Results struct {
	Floor base.Seq
	Items []StoredResult
}

// StoredResult is the encoded Result of one request.
type StoredResult struct {
	Seq   base.Seq
	Bytes []byte
}

// Append appends the encoding to dst.
func (r *Results) Append(dst []byte) []byte {
	dst = putU64(append(dst, valueVersion), uint64(r.Floor))
	dst = putU64(dst, uint64(len(r.Items)))
	for _, i := range r.Items {
		dst = putBytes(putU64(dst, uint64(i.Seq)), i.Bytes)
	}
	return dst
}

// DecodeResults reads what Results.Append wrote.
func DecodeResults(b []byte) (*Results, error) {
	d := decode(b)
	r := &Results{Floor: base.Seq(d.u64())}
	if n := d.count(); n > 0 {
		r.Items = make([]StoredResult, n)
		for i := range r.Items {
			r.Items[i] = StoredResult{base.Seq(d.u64()), d.bytes()}
		}
	}
	return r, d.done("results record")
}
