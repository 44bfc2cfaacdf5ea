package wire

import (
	"context"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

// LocalMetadata is a metadata node as the other parts of its process reach it:
// by calls of functions.
type LocalMetadata interface {
	// OperateLocal is the rpc Operate without a network. It lasts until ctx ends or
	// the node stops. deliver gets the answers; it must not block, nor keep the
	// message or its outcomes, but the results in them are its own.
	OperateLocal(ctx context.Context, caller Caller, deliver func(*canopyv1.OperateResponse)) (LocalStream, error)
}

// LocalStream is a stream of operations within one process. The node reads the
// operations that it is given, until they are answered, and does not change them;
// nor may the caller. Requests and slices of operations are the caller's again
// when a call returns.
type LocalStream interface {
	// Send starts the operations of a request, by one goroutine at a time.
	Send(*canopyv1.OperateRequest) error
	// Recv waits for the end of the stream, and says why it ended: answers are
	// delivered.
	Recv() (*canopyv1.OperateResponse, error)
	// Query answers a few reads on the caller's goroutine, from one snapshot, with
	// encoded Results. Not ok: nothing was done; send them. Any number of
	// goroutines may query at once, also while one sends.
	Query(shard uint64, ops []*canopyv1.Op) (results [][]byte, ok bool)
}

// Offer lets the parts of this process reach the one that listens at the address
// by calls of functions; part implements LocalMetadata or another interface that
// they ask for with Local. It ends when the listener is closed.
func (m *Memory) Offer(address string, part any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := m.listeners[address]; l != nil {
		l.part = part
	}
}

// Local returns the part of this process that listens at the address, if there is
// one that was offered and is a T.
func Local[T any](m *Memory, address string) (part T, ok bool) {
	if m == nil {
		return part, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := m.listeners[address]; l != nil {
		part, ok = l.part.(T)
	}
	return part, ok
}
