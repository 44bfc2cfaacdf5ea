package namespace

import (
	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// maxCuts bounds the cuts that a file carries; with more, truncations wait until
// the data servers know some of them.
const maxCuts = 64

// truncate sets the size of a file and begins a size epoch with a cut (PROTOCOLS
// J1). It does so for every new size: behind a size that grows there may be
// bytes that a client wrote and did not report yet. Reservations end with the
// epoch that they were made in. The caller writes the object.
func (b *batch) truncate(o *object, size uint64, who identity) error {
	n, err := o.file()
	if err != nil {
		return err
	}
	if size > schema.MaxFileSize {
		return fserr.FileTooBig
	}
	if len(n.Cuts) >= maxCuts && n.Cuts[len(n.Cuts)-1].SizeBytes < size {
		return fserr.Busy
	}
	if err := b.mayGrow(o, size); err != nil {
		return err
	}
	if err := b.dropReservations(n); err != nil {
		return err
	}
	n.SizeBytes = size
	n.AllocatedBytes = min(n.AllocatedBytes, roundUp(size))
	b.cut(n, size)
	b.wrote(n)
	if !who.isRoot() {
		if !who.inGroup(n.GID) {
			n.Mode &^= setGID
		}
		if err := b.killPrivileges(o); err != nil {
			return err
		}
	}
	return b.locateObject(o)
}

const blockBytes = 4096

func roundUp(size uint64) uint64 { return (size + blockBytes - 1) &^ (blockBytes - 1) }

// cut begins a size epoch. An older cut that is not lower says nothing more.
func (b *batch) cut(n *schema.Inode, size uint64) {
	n.SizeEpoch++
	for len(n.Cuts) > 0 && n.Cuts[len(n.Cuts)-1].SizeBytes >= size {
		n.Cuts = n.Cuts[:len(n.Cuts)-1]
	}
	n.Cuts = append(n.Cuts, schema.Cut{SizeEpoch: n.SizeEpoch, SizeBytes: size})
	n.HighBytes = max(n.HighBytes, size)
	n.HasData = true // the data servers keep the cut
}

// wrote moves what a change of the bytes moves, beside ctime and version.
func (b *batch) wrote(n *schema.Inode) {
	n.MtimeNS = b.nowNS
	n.DataVersion++
}

// killPrivileges does what a write by an ordinary user does to an executable.
func (b *batch) killPrivileges(o *object) error {
	o.inode.Mode = withoutPrivileges(o.inode.Mode)
	_, err := b.dropXattr(o, []byte(capabilityXattr))
	return err
}

// reportSize takes in what a client made durable (PROTOCOLS J1).
func reportSize(b *batch, op *canopyv1.Op) (*canopyv1.Result, error) {
	c := op.GetReportSize()
	o, err := b.resolve(c.Place)
	if err != nil {
		return nil, err
	}
	n, err := reportable(o, c)
	if err != nil {
		return b.refusedReport(o, n), err
	}
	before := sawFile(n)
	changed, err := b.takeReport(o, n, c)
	switch {
	case err == fserr.Quota:
		r, roomErr := b.showRoom(b.answer(o), o)
		if roomErr != nil {
			return nil, roomErr
		}
		return r, err
	case err != nil:
		return nil, err
	case changed:
		if err := b.save(o); err != nil {
			return nil, err
		}
	}
	if err := b.observe(o, before); err != nil {
		return nil, err
	}
	return b.showRoom(b.answer(o), o)
}

// takeReport takes a report of the file's size epoch into the object, which the
// caller writes if it changed.
func (b *batch) takeReport(o *object, n *schema.Inode, c *canopyv1.ReportSizeCall) (changed bool, err error) {
	if c.Counted {
		return counted(n, c), nil
	}
	if c.AccessedNs == 0 {
		return b.takeBytes(o, n, c)
	}
	// A program may have read before it wrote, or what it wrote: the client tells
	// the last time only.
	before := b.accessed(o, c.AccessedNs)
	if changed, err = b.takeBytes(o, n, c); err != nil {
		return false, err
	}
	after := b.accessed(o, c.AccessedNs)
	return before || changed || after, nil
}

// takeBytes takes in what a report says of the bytes.
func (b *batch) takeBytes(o *object, n *schema.Inode, c *canopyv1.ReportSizeCall) (changed bool, err error) {
	size := max(n.SizeBytes, visibleSize(n, c.Size))
	high := max(n.HighBytes, c.Size, min(c.ReservedEnd, schema.MaxFileSize))
	if size == n.SizeBytes && !c.Changed && !c.KillPriv && c.AllocatedBytes == 0 && c.FreedBytes == 0 && high == n.HighBytes {
		return false, nil
	}
	if err := b.mayGrow(o, max(size, reservedEnd(n))); err != nil {
		return false, err
	}
	n.HasData = n.HasData || c.Size > 0 || c.Changed || c.AllocatedBytes > 0
	n.SizeBytes = size
	n.HighBytes = high
	n.AllocatedBytes = addBytes(n.AllocatedBytes, c.AllocatedBytes)
	n.AllocatedBytes -= min(n.AllocatedBytes, c.FreedBytes)
	stamp := b.nowNS
	if c.Changed {
		stamp = b.stampOf(n, c.MtimeNs)
		n.MtimeNS = stamp
		n.DataVersion++
	}
	if c.KillPriv {
		if err := b.killPrivileges(o); err != nil {
			return false, err
		}
	}
	n.CtimeNS = max(n.CtimeNS, stamp)
	n.Version++
	if c.Refused {
		return true, b.cutRefused(o, n)
	}
	return true, nil
}

// cutRefused makes sure that bytes behind the size, which a quota refused after
// they were written, never show. With appends under way they end at the latest
// with the next truncation: a cut would end the reservations.
func (b *batch) cutRefused(o *object, n *schema.Inode) error {
	if len(n.Reservations) > 0 || len(n.Cuts) >= maxCuts && n.Cuts[len(n.Cuts)-1].SizeBytes < n.SizeBytes {
		return nil
	}
	b.cut(n, n.SizeBytes)
	return b.locateObject(o)
}

// counted takes in what the data servers counted of a file that nobody reported a
// change of meanwhile: its st_blocks after a truncation is an estimate, which is
// wrong for a file with holes. Users see the truncation's times.
func counted(n *schema.Inode, c *canopyv1.ReportSizeCall) (changed bool) {
	if n.DataVersion != c.DataVersion || n.AllocatedBytes == c.AllocatedBytes {
		return false
	}
	n.AllocatedBytes = min(c.AllocatedBytes, schema.MaxFileSize)
	n.Version++
	return true
}

// stampOf returns the time of a write that a client reports: what its programs
// have seen as the file's mtime, within what the log has recorded (PROTOCOLS
// A3: time never goes back). A file whose mtime was set to the future gets the
// present, as on any write.
func (b *batch) stampOf(n *schema.Inode, clientNS int64) int64 {
	if clientNS == 0 {
		return b.nowNS
	}
	return min(max(clientNS, n.MtimeNS), b.nowNS)
}

// reportable returns the file that a report is about, and why the report cannot
// be taken, if so: of a file, because of its epoch.
func reportable(o *object, c *canopyv1.ReportSizeCall) (*schema.Inode, error) {
	n, err := o.file()
	switch {
	case err != nil:
		return nil, err
	case c.Size > schema.MaxFileSize:
		return nil, fserr.FileTooBig
	}
	return n, checkSizeEpoch(n, c.SizeEpoch)
}

// refusedReport tells the reporter the file's epoch and cuts, if it is a file.
func (b *batch) refusedReport(o *object, n *schema.Inode) *canopyv1.Result {
	if n == nil {
		return nil
	}
	return b.answer(o)
}

// checkSizeEpoch refuses a request of an older size epoch; the answer carries the
// attributes with the new epoch and the cuts.
func checkSizeEpoch(n *schema.Inode, epoch uint64) error {
	switch {
	case epoch < n.SizeEpoch:
		return fserr.OldEpoch
	case epoch > n.SizeEpoch:
		return fserr.Invalid
	}
	return nil
}

// addBytes adds without passing MaxFileSize, so that no sum overflows.
func addBytes(a, b uint64) uint64 {
	return min(a, schema.MaxFileSize) + min(b, schema.MaxFileSize-min(a, schema.MaxFileSize))
}

// cutDone drops the cuts that every data server knows.
func (b *batch) cutDone(c *canopyv1.CutDoneCommand) (*canopyv1.Result, error) {
	o, err := b.resolve(c.Place)
	if err == fserr.Stale || err == fserr.NotFound || isElsewhere(err) {
		return &canopyv1.Result{}, nil // purged or moved meanwhile, and the queue entry with it
	}
	if err != nil {
		return nil, err
	}
	n, err := o.file()
	if err != nil || uint64(n.DataID) != c.DataId {
		return nil, fserr.Invalid
	}
	kept := n.Cuts[:0]
	for _, cut := range n.Cuts {
		if cut.SizeEpoch > c.SizeEpoch {
			kept = append(kept, cut)
		}
	}
	if len(kept) == len(n.Cuts) {
		return b.answer(o), nil
	}
	n.Cuts = kept
	if len(kept) == 0 {
		if err := b.w.Delete(schema.CutKey(b.id, b.subtree, n.Ino)); err != nil {
			return nil, err
		}
	}
	// What users see does not change: neither does ctime. Caches learn it.
	n.Version++
	return b.answer(o), b.save(o)
}
