package wire

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
)

// memoryBufferBytes is what a connection holds that was written and not yet read,
// in each direction.
const memoryBufferBytes = 1 << 20

// Memory connects the servers and clients of one process through memory, by the
// addresses that they have on the network: what crosses the loopback between two
// processes costs four system calls and as many changes of thread a request,
// which parts of one process need not pay. Everything above the connection is the
// same. An address that no server of this process has is dialled by TCP, as
// everything is with a nil Memory.
//
// It is safe for concurrent use.
type Memory struct {
	mu        sync.Mutex
	listeners map[string]*memoryListener
}

// NewMemory returns a Memory without servers.
func NewMemory() *Memory { return &Memory{listeners: map[string]*memoryListener{}} }

// Listen returns a listener for the address, which this process also serves by
// TCP. A later one for the same address replaces it.
func (m *Memory) Listen(address string) net.Listener {
	l := &memoryListener{Listener: bufconn.Listen(memoryBufferBytes), memory: m, address: address}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listeners[address] = l
	return l
}

func (m *Memory) dial(ctx context.Context, address string) (net.Conn, error) {
	m.mu.Lock()
	l := m.listeners[address]
	m.mu.Unlock()
	if l == nil {
		return (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	conn, err := l.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	return memoryConn{conn, memoryAddr(address)}, nil
}

// DialOption makes connections through memory where that is possible.
func (m *Memory) DialOption() grpc.DialOption {
	if m == nil {
		return grpc.EmptyDialOption{}
	}
	return grpc.WithContextDialer(m.dial)
}

type memoryListener struct {
	*bufconn.Listener
	memory  *Memory
	address string
	part    any // that was offered; guarded by memory.mu
}

func (l *memoryListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return memoryConn{conn, "this process"}, nil
}

func (l *memoryListener) Addr() net.Addr { return memoryAddr(l.address) }

func (l *memoryListener) Close() error {
	l.memory.mu.Lock()
	if l.memory.listeners[l.address] == l {
		delete(l.memory.listeners, l.address)
	}
	l.memory.mu.Unlock()
	return l.Listener.Close()
}

// memoryConn is a connection that says who is at the other end.
type memoryConn struct {
	net.Conn
	remote memoryAddr
}

func (c memoryConn) RemoteAddr() net.Addr { return c.remote }

type memoryAddr string

func (memoryAddr) Network() string  { return "memory" }
func (a memoryAddr) String() string { return string(a) }
