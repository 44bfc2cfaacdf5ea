package mdsctl

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/client/inspect"
	"github.com/canopyfs/canopy/internal/base"
)

// lockRow is one locked range, as JSON has it.
type lockRow struct {
	Kind   string `json:"kind"` // posix or flock
	Type   string `json:"type"` // shared or exclusive
	Start  uint64 `json:"start"`
	Last   uint64 `json:"last"` // last byte; 2^63 - 1: the end of every file
	Client string `json:"client"`
	Host   string `json:"host,omitempty"`  // of the client, if its session could be read
	Mount  string `json:"mount,omitempty"` // where it has mounted
	PID    uint32 `json:"pid"`             // of the process that locked, on that host
	Owner  string `json:"owner"`           // tells the client's owners apart
}

func newLockRow(l *client.Lock) lockRow {
	r := lockRow{Kind: "posix", Type: "shared", Start: l.GetStart(), Last: l.GetLast(), Client: base.ClientID(l.GetClient()).String(),
		PID: l.GetPid(), Owner: fmt.Sprintf("%016x", l.GetOwner())}
	if l.GetKind() == canopyv1.LockKind_LOCK_FLOCK {
		r.Kind = "flock"
	}
	if l.GetExclusive() {
		r.Type = "exclusive"
	}
	return r
}

func (a *app) lockCommand() *cobra.Command {
	return group("lock", "File locks", &cobra.Command{
		Use: "ls PATH", Short: "List the locks in a file", Args: oneArg("PATH"),
		Long:    "List who has locked what in a file, by flock or fcntl, on all mounts. POSIX locks are those of\nfcntl, of processes and of open file descriptions.",
		Example: "  mdsctl lock ls /data/index.lock\n  mdsctl lock ls ./mnt/db.sqlite -o json",
		RunE:    func(c *cobra.Command, args []string) error { return a.locks(c.Context(), args[0]) },
	})
}

func (a *app) locks(ctx context.Context, typed string) error {
	rows := []lockRow{}
	attr, _, err := a.at(ctx, typed, true, func(ctx context.Context, c *client.Client, n *client.Inode) error {
		all, err := c.Locks(ctx, n)
		for _, l := range all {
			rows = append(rows, newLockRow(l))
		}
		return err
	})
	if err != nil {
		return err
	}
	return a.withCluster(ctx, func(cl *inspect.Cluster) error {
		// Who it is is said as far as it is known: a session may just have ended.
		shard := newStat("", attr, cl.Map()).Shard
		var unknown error
		if len(rows) > 0 {
			var sessions []*canopyv1.SessionInfo
			sessions, unknown = cl.Sessions(ctx, base.ShardID(shard))
			nameClients(rows, sessions)
		}
		return errors.Join(a.emit(rows, func(t *table) { writeLocks(t, rows) }), unknown)
	})
}

// nameClients adds who the clients are.
func nameClients(rows []lockRow, sessions []*canopyv1.SessionInfo) {
	for _, s := range sessions {
		for i := range rows {
			if rows[i].Client == base.ClientID(s.GetClient()).String() {
				rows[i].Host, rows[i].Mount = s.GetHost(), s.GetMount()
			}
		}
	}
}

func writeLocks(t *table, rows []lockRow) {
	t.row("KIND", "TYPE", "START", "LAST", "PID", "HOST", "MOUNT", "CLIENT")
	for _, r := range rows {
		last := "end"
		if r.Last != client.LockToEnd {
			last = fmt.Sprint(r.Last)
		}
		t.row(r.Kind, r.Type, r.Start, last, r.PID, r.Host, r.Mount, r.Client)
	}
}
