// Package dataserver serves columns: byte ranges of files on local disk, with
// replication by the primary of each placement group (PG). DESIGN.md beside this
// file tells the protocol.
package dataserver

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/canopyfs/canopy/internal/fserr"
)

// Config says where the bytes lie and who is who.
type Config struct {
	DataDir    string // made if missing
	Listen     string // gRPC, host:port; port 0 takes a free one
	HTTPListen string // metrics, health and pprof; "" serves none
	Advertise  string // address that others use; "": what Listen is bound to
	// LayoutServices are addresses of layout services; the leader is found from
	// any of them.
	LayoutServices []string
	Labels         []string // key=value; zone, rack and host are failure domains
	// Workers bounds the requests executed at a time; 0: 32.
	Workers int
	// QueuedBytes bounds the payload of requests in memory; 0: 128 MiB.
	QueuedBytes int64

	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Gatherer   prometheus.Gatherer
	// Ready, if set, is called once when the server has registered, with its id
	// and the addresses that are bound.
	Ready func(server uint64, address, httpAddress string)
}

// Run serves until ctx is done, then stops gracefully and returns nil.
func Run(ctx context.Context, config Config) error {
	return fserr.New(fserr.Internal, "dataserver", nil)
}
