package capability

import "encoding/binary"

// Rights are what a capability allows.
type Rights uint8

// The rights. Those of clients are canopyv1's DataRight bits.
const (
	Read    Rights = 1
	Write   Rights = 2
	Inspect Rights = 4  // list what a data server holds
	Purge   Rights = 8  // cut and delete: metadata nodes
	Member  Rights = 16 // what members of a placement group ask of each other
)

// Grant is what a capability says, and the two that it is bound to.
type Grant struct {
	Client uint64 // 0 in one of a service
	Data   uint64 // data id; 0: all, in one of a service
	Rights Rights
	Until  uint32 // the last period in which it is valid
}

// TokenBytes is the length of a capability.
const TokenBytes = headBytes + macBytes

const (
	headBytes = 10 // scope 1, rights 1, key 4, until 4
	macBytes  = 16

	scopeFile    = 1
	scopeService = 2
)

// Token is an encoded capability.
type Token [TokenBytes]byte

// Rights returns what the token says that it allows.
func (t *Token) Rights() Rights { return Rights(t[1]) }

func head(key uint32, g Grant) (h [headBytes]byte) {
	h[0] = scopeFile
	if g.Data == 0 {
		h[0] = scopeService
	}
	h[1] = byte(g.Rights)
	binary.BigEndian.PutUint32(h[2:], key)
	binary.BigEndian.PutUint32(h[6:], g.Until)
	return h
}

// message is what the MAC is over: one block of SHA-256, with a domain of its own
// in front.
func message(h []byte, client, data uint64) (m [messageBytes]byte) {
	n := copy(m[:], domain)
	n += copy(m[n:], h)
	binary.BigEndian.PutUint64(m[n:], client)
	binary.BigEndian.PutUint64(m[n+8:], data)
	return m
}

const (
	domain       = "canopy capability 1:"
	messageBytes = len(domain) + headBytes + 16
)
