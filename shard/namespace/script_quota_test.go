package namespace

import (
	"fmt"
	"strings"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// quotaOperation builds the operations of quotas:
//
//	quota DIR [bytes=] [inodes=] [remove]   getquota PLACE   lsquota   statfs [PLACE]
func (r *rig) quotaOperation(l *words) *canopyv1.Op {
	switch l.op {
	case "quota":
		return &canopyv1.Op{Call: &canopyv1.Op_SetQuota{SetQuota: &canopyv1.SetQuotaCall{Dir: r.place(l.arg(0)).Ino,
			MaxBytes: l.num("bytes", 0), MaxInodes: l.num("inodes", 0), Remove: l.flag("remove")}}}
	case "getquota":
		return &canopyv1.Op{Call: &canopyv1.Op_GetQuota{GetQuota: &canopyv1.GetQuotaCall{Place: r.place(l.arg(0))}}}
	case "lsquota":
		return &canopyv1.Op{Call: &canopyv1.Op_ListQuotas{ListQuotas: &canopyv1.ListQuotasCall{}}}
	case "statfs":
		c := &canopyv1.StatFsCall{}
		if len(l.args) > 0 {
			c.Place = r.place(l.arg(0))
		}
		return &canopyv1.Op{Call: &canopyv1.Op_StatFs{StatFs: c}}
	}
	return nil
}

// count counts, on the present state, every account that is not complete. The
// commands are kept until counted applies them.
func (r *rig) count() string {
	n := 0
	var infos []QuotaInfo
	if err := Quotas(r.kv, r.shard, 1, func(q QuotaInfo) bool { infos = append(infos, q); return true }); err != nil {
		r.t.Fatal(err)
	}
	for _, q := range infos {
		if !q.ToCount {
			continue
		}
		c, err := r.m.CountQuota(r.kv, 1, q.Dir)
		if err != nil {
			r.t.Fatal(err)
		}
		r.counts = append(r.counts, c)
		n++
	}
	return fmt.Sprintf("%d to count", n)
}

func (r *rig) counted() string {
	for _, c := range r.counts {
		r.own(&canopyv1.Command{Own: &canopyv1.Command_QuotaCounted{QuotaCounted: c}})
	}
	r.counts = nil
	return "ok"
}

// dropTallies ends the tallies, as the holder does with old ones.
func (r *rig) dropTallies() string {
	var all []QuotaInfo
	if err := Quotas(r.kv, r.shard, 1, func(q QuotaInfo) bool { all = append(all, q); return true }); err != nil {
		r.t.Fatal(err)
	}
	for _, q := range all {
		r.own(&canopyv1.Command{Own: &canopyv1.Command_TallyDone{TallyDone: &canopyv1.TallyDoneCommand{Subtree: 1, Dir: uint64(q.Dir), Id: q.ID}}})
	}
	return "ok"
}

func formatQuotas(r *canopyv1.Result) string {
	var b strings.Builder
	for _, q := range r.Quotas {
		fmt.Fprintf(&b, " quota %s %d/%d inodes %d/%d bytes", formatIno(q.Dir), q.Inodes, q.MaxInodes, q.Bytes, q.MaxBytes)
		if q.Counting {
			b.WriteString(" counting")
		}
	}
	if r.RoomBytes != nil {
		if *r.RoomBytes == noBound {
			b.WriteString(" room=all")
		} else {
			fmt.Fprintf(&b, " room=%d", *r.RoomBytes)
		}
	}
	if s := r.Statfs; s != nil {
		if s.QuotaBytes != 0 {
			fmt.Fprintf(&b, " size=%d free=%d", s.QuotaBytes, s.QuotaFreeBytes)
		}
		if s.Files < 1<<base.InoCounterBits/2 {
			fmt.Fprintf(&b, " files=%d free-files=%d", s.Files, s.FreeFiles)
		}
	}
	return b.String()
}
