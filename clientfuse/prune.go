package clientfuse

import (
	"errors"
	"log/slog"
	"syscall"
	"time"
)

// pruner keeps the number of inodes that the kernel knows near a limit, and with it
// this process's memory. The kernel itself lets go of inodes only when the machine
// is short of memory: a walk that asked for the attributes of a million files left
// 1.2 GB here. NOTIFY_PRUNE makes it let go of those that nothing uses; each comes
// back as a FORGET. What is open, mapped, locked, somebody's working directory or
// the parent of such stays, so the limit is no bound.
//
// It runs on a goroutine of its own: no notification is sent by a request's (FUSE
// K4). It takes no lock of ours while it notifies.
type pruner struct {
	nodes  *nodeTable
	limit  int
	send   func(ids []uint64) error // syscall.ENOSYS: this kernel has no such notification
	logger *slog.Logger
	stop   chan struct{}
	gone   chan struct{}
}

const (
	pruneBatch = 512                    // numbers in one notification: what the kernel copies at once
	pruneIdle  = 100 * time.Millisecond // between two rounds
	pruneVain  = time.Second            // after one that freed little
)

func newPruner(nodes *nodeTable, limit int, logger *slog.Logger, send func(ids []uint64) error) *pruner {
	return &pruner{nodes: nodes, limit: limit, send: send, logger: logger, stop: make(chan struct{}), gone: make(chan struct{})}
}

// run prunes when the table says that it is over the limit, until close.
func (p *pruner) run() {
	defer close(p.gone)
	for {
		select {
		case <-p.stop:
			return
		case <-p.nodes.over:
		}
		rest := pruneIdle
		for over := p.excess(); over > 0; over = p.excess() {
			err := p.round(over)
			if errors.Is(err, syscall.ENOSYS) {
				p.logger.Info("this kernel cannot be told to forget inodes (Linux 6.18 can): it does so when memory is short")
				return
			}
			if err != nil || p.excess() > over*9/10 {
				rest = pruneVain
			}
			if !p.pause(rest) {
				return
			}
		}
	}
}

// excess is how many nodes are to go: a tenth of the limit more than are too many,
// so that a walk does not wake the pruner for each file.
func (p *pruner) excess() int {
	n := int(p.nodes.total.Load())
	if n <= p.limit {
		return 0
	}
	return n - p.limit + p.limit/10
}

// round asks the kernel to let go of n inodes that were not used lately.
func (p *pruner) round(n int) error {
	for ids := range p.nodes.idle(n, pruneBatch) {
		select {
		case <-p.stop:
			return nil
		default:
		}
		if err := p.send(ids); err != nil {
			return err
		}
	}
	return nil
}

func (p *pruner) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.stop:
		return false
	case <-t.C:
		return true
	}
}

// close ends run and waits for it.
func (p *pruner) close() {
	close(p.stop)
	<-p.gone
}
