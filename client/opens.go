package client

import (
	"context"
	"sync"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

const (
	openReportInterval = 500 * time.Millisecond
	openReportTimeout  = 2 * time.Second
	openReportBatch    = 4096 // places in one report
)

// opens tells the holders which files this client has open (PROTOCOLS H1, H2):
// changes within a second, everything to a new holder. A file that is opened
// and closed in between is not reported: the grace period of an orphan is longer.
type opens struct {
	c    *Client
	wake chan struct{}

	round sync.Mutex // held while reports are made and sent

	mu     sync.Mutex
	files  map[base.Ino]*openFile
	gone   map[base.ShardID][]*canopyv1.Place // closed, was reported
	shards map[base.ShardID]*openReport
}

type openFile struct {
	node     *Inode
	reported base.ShardID // 0: to none
}

// openReport is what is known of the reports to one shard.
type openReport struct {
	number  uint64
	address string // of the node that has got everything
	full    bool   // everything has to be sent
}

func newOpens(c *Client) *opens {
	return &opens{c: c, wake: make(chan struct{}, 1), files: map[base.Ino]*openFile{},
		gone: map[base.ShardID][]*canopyv1.Place{}, shards: map[base.ShardID]*openReport{}}
}

// opened and closed are told of a file's first handle and of its last.
func (o *opens) opened(n *Inode) {
	o.mu.Lock()
	o.files[n.ino] = &openFile{node: n}
	o.mu.Unlock()
}

func (o *opens) closed(n *Inode) {
	o.mu.Lock()
	if f := o.files[n.ino]; f != nil {
		delete(o.files, n.ino)
		if f.reported != 0 {
			o.gone[f.reported] = append(o.gone[f.reported], n.place())
		}
	}
	o.mu.Unlock()
}

// nodes returns the inodes of the open files, each with a reference.
func (o *opens) nodes() []*Inode {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := make([]*Inode, 0, len(o.files))
	for _, f := range o.files {
		f.node.Hold()
		all = append(all, f.node)
	}
	return all
}

// count returns how many files are open.
func (o *opens) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.files)
}

// askFull notes that the shard's holder wants everything.
func (o *opens) askFull(shard base.ShardID) {
	o.mu.Lock()
	o.reportLocked(shard).full = true
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *opens) reportLocked(shard base.ShardID) *openReport {
	r := o.shards[shard]
	if r == nil {
		r = &openReport{full: true}
		o.shards[shard] = r
	}
	return r
}

// run reports until ctx ends.
func (o *opens) run(ctx context.Context) {
	ticker := time.NewTicker(openReportInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-o.wake:
		}
		o.reportAll(ctx)
	}
}

// reportAll tells all holders what changed.
func (o *opens) reportAll(ctx context.Context) {
	o.round.Lock()
	defer o.round.Unlock()
	var wg sync.WaitGroup
	o.c.links.Range(func(shard, l any) bool {
		if at, open := l.(*link).where(); open && at.address != "" {
			wg.Go(func() { o.report(ctx, shard.(base.ShardID), at) })
		}
		return true
	})
	wg.Wait()
}

// tellClosed returns when the holders know of the files that were closed before.
// If they do not answer they learn it later.
func (o *opens) tellClosed(ctx context.Context) {
	o.round.Lock() // a report under way may carry them
	o.mu.Lock()
	waits := len(o.gone) > 0
	o.mu.Unlock()
	o.round.Unlock()
	if waits {
		o.reportAll(ctx)
	}
}

// report tells one shard's holder what changed, in as many messages as needed.
func (o *opens) report(ctx context.Context, shard base.ShardID, at target) {
	request := o.prepare(shard, at)
	if request == nil {
		return
	}
	opened, closed, full := request.Opened, request.Closed, request.Full
	for ok := true; ok; {
		part := &canopyv1.ReportOpensRequest{Shard: uint64(shard), Full: full, Number: o.number(shard)}
		n, m := min(len(opened), openReportBatch), min(len(closed), openReportBatch)
		part.Opened, part.Closed = opened[:n], closed[:m]
		part.More = n < len(opened) || m < len(closed)
		if !o.send(ctx, shard, at, part) {
			o.failed(shard)
			return
		}
		opened, closed, full = opened[n:], closed[m:], false
		ok = len(opened) > 0 || len(closed) > 0
	}
}

func (o *opens) number(shard base.ShardID) uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.reportLocked(shard)
	r.number++
	return r.number
}

// prepare collects what to report, nil if nothing, and counts it as reported.
func (o *opens) prepare(shard base.ShardID, at target) *canopyv1.ReportOpensRequest {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.reportLocked(shard)
	full := r.full || r.address != at.address
	request := &canopyv1.ReportOpensRequest{Full: full}
	for _, f := range o.files {
		if !full && f.reported == shard {
			continue
		}
		if to, ok, _ := o.c.routes.find(f.node.subtreeID()); !ok || to.shard != shard {
			continue
		}
		if f.reported != 0 && f.reported != shard {
			o.gone[f.reported] = append(o.gone[f.reported], f.node.place())
		}
		f.reported = shard
		request.Opened = append(request.Opened, f.node.place())
	}
	if !full {
		request.Closed = o.gone[shard]
	}
	delete(o.gone, shard)
	if !full && len(request.Opened) == 0 && len(request.Closed) == 0 {
		return nil
	}
	r.full, r.address = false, at.address
	return request
}

// failed takes back what could not be reported; the next round sends everything.
func (o *opens) failed(shard base.ShardID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.reportLocked(shard).full = true
}

// send makes one call. It follows what the answer says about moved files.
func (o *opens) send(ctx context.Context, shard base.ShardID, at target, request *canopyv1.ReportOpensRequest) bool {
	conn, err := o.c.nodes.get(at.address)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, openReportTimeout)
	defer cancel()
	response, err := canopyv1.NewMetadataClient(conn).ReportOpens(o.c.outgoing(ctx), request)
	if err != nil || response.Error != 0 {
		o.c.logger.Debug("open files not reported", "shard", shard, "node", at.node, "error", err, "kind", response.GetError())
		return false
	}
	o.c.metrics.reports.Inc()
	for i, p := range response.Moved {
		n := o.c.inodes.find(base.Ino(p.Ino))
		if n == nil {
			continue
		}
		if i < len(response.MovedSubtrees) {
			n.movedIn(p, base.SubtreeID(response.MovedSubtrees[i]))
		} else {
			n.movedTo(p, nil)
		}
		n.Release()
	}
	return true
}
