package data

import (
	"context"

	"google.golang.org/grpc/metadata"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
)

// permit gets the capabilities for the attempts of one request (PROTOCOLS J4). One
// goroutine uses it.
type permit struct {
	access   Access
	last     []byte // what the last attempt showed
	refused  bool   // a data server refused it
	refusals int
}

// show puts a capability into the request of the next attempt. Without an Access
// there is none, and the server says that it wants one.
func (p *permit) show(ctx context.Context, r *canopyv1.DataRequest) (err error) {
	if p.access == nil {
		return nil
	}
	var refused []byte
	if p.refused {
		refused = p.last
	}
	p.refused = false
	p.last, err = p.access.Capability(ctx, writes(r), refused)
	r.Capability = p.last
	return err
}

// refuse notes that the last one was refused. It reports whether there can be
// another, and whether to ask for that at once.
func (p *permit) refuse() (again, atOnce bool) {
	p.refused = true
	p.refusals++
	return p.access != nil, p.refusals == 1
}

// writes reports whether a call needs the right to write.
func writes(r *canopyv1.DataRequest) bool {
	switch r.Call.(type) {
	case *canopyv1.DataRequest_Write, *canopyv1.DataRequest_Punch, *canopyv1.DataRequest_Reserve:
		return true
	}
	return false
}

// permit returns how a request about the file gets its capabilities.
func (d *Data) permit(f File) *permit {
	if f.Access != nil {
		return &permit{access: f.Access}
	}
	return &permit{access: d.config.Access}
}

// inspecting returns ctx with the capability of this Data itself.
func (d *Data) inspecting(ctx context.Context) (context.Context, error) {
	ctx = d.caller().Context(ctx)
	if d.config.Access == nil {
		return ctx, nil
	}
	c, err := d.config.Access.Capability(ctx, false, nil)
	return metadata.AppendToOutgoingContext(ctx, wire.MetadataCapability, string(c)), err
}
