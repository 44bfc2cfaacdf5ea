// Package dragonlog tames Dragonboat's own log, which belongs to the process and
// not to a host.
package dragonlog

import (
	"sync"

	"github.com/lni/dragonboat/v4/logger"
)

// Quiet keeps Dragonboat's log to what is critical: what operators need of it
// comes through events to our log. The levels are variables of Dragonboat's
// packages, read without a lock, so they are set once, before the first host.
var Quiet = sync.OnceFunc(func() {
	for _, name := range []string{
		"config", "dragonboat", "gossip", "grpc", "logdb", "raft", "raftpb", "registry", "rsm", "server", "settings",
		"tan", "transport",
	} {
		logger.GetLogger(name).SetLevel(logger.CRITICAL)
	}
})
