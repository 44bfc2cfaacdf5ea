// Package layoutsvc owns pools and placement groups: it keeps the data servers'
// registrations and leases, changes PG epochs and in-sync sets, and streams the
// pool map. Several instances may run; one is the leader by election in etcd,
// which alone grants leases and changes records. Every instance answers reads.
// Records are the authority and change by compare-and-set (PROTOCOLS J3).
package layoutsvc

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/canopyfs/canopy/internal/fserr"
)

// Config says where to listen and what cluster to make.
type Config struct {
	Listen     string   // gRPC, host:port; port 0 takes a free one
	HTTPListen string   // metrics, health and pprof; "" serves none
	Etcd       []string // endpoints
	Prefix     string   // of the keys in etcd; "": placement.DefaultPrefix
	Advertise  string   // address that others use; "": what Listen is bound to

	// The pool is made once, when WantServers data servers have registered. 0: 3.
	WantServers int
	// Replicas of the pool; 0: 2, or 1 if WantServers is 1.
	Replicas int
	// PGs of the pool; 0: 32.
	PGs int
	// ServerLease is how long a data server serves after its last heartbeat. 0:
	// 3 s.
	ServerLease time.Duration

	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Gatherer   prometheus.Gatherer
	// Ready, if set, is called once with the addresses that are bound.
	Ready func(address, httpAddress string)
}

// Run serves until ctx is done, then stops gracefully and returns nil.
func Run(ctx context.Context, config Config) error {
	return fserr.New(fserr.Internal, "layoutsvc", nil)
}
