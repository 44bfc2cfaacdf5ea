package link

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// pool hands out memory for payloads in sizes of powers of two. gRPC's own pool
// clears what it gives; here every byte is overwritten by its user.
type pool struct {
	classes [maxClass - minClass + 1]sync.Pool
}

const (
	minClass = 12 // 4 KiB
	maxClass = 23 // 8 MiB
)

// NewPool returns a pool for payloads. Share one per process part: it only
// caches memory.
func NewPool() mem.BufferPool { return &pool{} }

// Get returns a buffer of the length, with any contents.
func (p *pool) Get(length int) *[]byte {
	class := max(bits.Len(uint(max(length, 1)-1)), minClass)
	if class > maxClass {
		b := make([]byte, length)
		return &b
	}
	if b, ok := p.classes[class-minClass].Get().(*[]byte); ok {
		*b = (*b)[:length]
		return b
	}
	b := make([]byte, length, 1<<class)
	return &b
}

// Put takes a buffer back.
func (p *pool) Put(b *[]byte) {
	class := bits.Len(uint(cap(*b))) - 1
	if cap(*b) != 1<<class || class < minClass || class > maxClass {
		return
	}
	p.classes[class-minClass].Put(b)
}
