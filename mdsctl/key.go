package mdsctl

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/inspect"
)

// keyRow is one key of capabilities, as JSON has it. Its secret stays in etcd.
type keyRow struct {
	Key     uint32 `json:"key"`
	State   string `json:"state"` // signs, accepted
	Created string `json:"created"`
	LeftMS  uint64 `json:"accepted_for_ms,omitempty"` // of a replaced one, about
}

// keyReport is what capabilities are signed with, as JSON has it.
type keyReport struct {
	Keys     []keyRow `json:"keys"`
	LifeMS   uint64   `json:"capability_ms"`   // how long a capability lives at the most
	RotateMS uint64   `json:"rotate_after_ms"` // a key is replaced when it is as old; 0: never
}

func keyReportOf(k *canopyv1.KeysResponse) keyReport {
	ring := k.GetRing()
	period := uint64(ring.GetPeriodMs())
	r := keyReport{Keys: []keyRow{}, LifeMS: 2 * period, RotateMS: k.GetRotateMs()}
	for _, x := range ring.GetKeys() {
		row := keyRow{Key: x.GetId(), State: "signs", Created: timeText(x.GetCreatedNs())}
		if end := uint64(x.GetReplacedPeriod()) + uint64(k.GetKeepPeriods()); x.GetReplacedPeriod() != 0 {
			row.State = "accepted"
			row.LeftMS = (max(end, uint64(ring.GetPeriod())) - uint64(ring.GetPeriod())) * period
		}
		r.Keys = append(r.Keys, row)
	}
	return r
}

func (a *app) keyCommand() *cobra.Command {
	ls := &cobra.Command{
		Use: "ls", Short: "List the keys that capabilities are signed with", Args: noArgs,
		Long:    "List the keys with which metadata nodes sign what clients may read and write on the data\nservers. The newest one signs; what older ones signed is accepted until it has ended.",
		Example: "  mdsctl key ls\n  mdsctl key ls -o json",
		RunE:    func(c *cobra.Command, _ []string) error { return a.keys(c.Context(), &canopyv1.KeysRequest{}) },
	}
	var revoke bool
	rotate := &cobra.Command{
		Use: "rotate", Short: "Make a new key for capabilities", Args: noArgs,
		Long:    "Make a new key for capabilities. The old ones are accepted for a while, so that nobody\nwaits; keys are also replaced by themselves (layoutsvc --key-rotation).\nWith --revoke the old keys count no more: use it when a key may have become known.\nClients ask for new capabilities by themselves then, and go on.",
		Example: "  mdsctl key rotate\n  mdsctl key rotate --revoke",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.keys(c.Context(), &canopyv1.KeysRequest{Rotate: true, Revoke: revoke})
		},
	}
	rotate.Flags().BoolVar(&revoke, "revoke", false, "accept the old keys no more")
	return group("key", "Keys of capabilities", ls, rotate)
}

func (a *app) keys(ctx context.Context, r *canopyv1.KeysRequest) error {
	return a.withCluster(ctx, func(cl *inspect.Cluster) error {
		answer, err := cl.Keys(ctx, r)
		if err != nil {
			return err
		}
		report := keyReportOf(answer)
		return a.emit(report, func(t *table) { writeKeys(t, report) })
	})
}

func writeKeys(t *table, r keyReport) {
	text := func(ms uint64) string { return (time.Duration(ms) * time.Millisecond).Round(time.Second).String() }
	t.row("KEY", "STATE", "CREATED")
	for _, k := range r.Keys {
		state := k.State
		if k.LeftMS > 0 {
			state += " for " + text(k.LeftMS)
		}
		t.row(k.Key, state, k.Created)
	}
	rotation := "never replaced by itself"
	if r.RotateMS > 0 {
		rotation = "replaced after " + text(r.RotateMS)
	}
	t.line(fmt.Sprintf("a capability lives for %s at the most; a key is %s", text(r.LifeMS), rotation))
}
