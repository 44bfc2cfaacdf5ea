package link

import (
	"context"

	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/fserr"
)

// Local is a data server of this process, which is called instead of connected
// to: payloads then pass from one to the other without a copy.
type Local interface {
	// DoLocal executes a request, of which it takes over one reference to the
	// payload, and which it does not change. The caller frees the response. What the
	// server answers is in the response, an error kind too; an error means that it is
	// not there: it starts or stops. A read ends with ctx. Anything else goes on
	// behind ctx's end, as it would behind the end of a connection.
	DoLocal(ctx context.Context, caller wire.Caller, request *Request) (*Response, error)
}

func (l *Link) doLocal(ctx context.Context, server Local, request *Request) (*Response, error) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		request.Free()
		return nil, fserr.New(fserr.NotConnected, "data", nil)
	}
	l.wg.Add(1)
	l.mu.Unlock()
	if request.GetRead() != nil {
		defer l.wg.Done()
		return server.DoLocal(ctx, l.config.Caller(), request)
	}
	type outcome struct {
		response *Response
		err      error
	}
	done := make(chan outcome)
	go func() {
		defer l.wg.Done()
		response, err := server.DoLocal(ctx, l.config.Caller(), request)
		select {
		case done <- outcome{response, err}:
		case <-ctx.Done():
			response.Free()
		}
	}()
	select {
	case o := <-done:
		return o.response, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
