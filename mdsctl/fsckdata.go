package mdsctl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sort"
	"syscall"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/client/inspect"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/internal/local"
)

// fsckData is what the data servers hold, as JSON has it.
type fsckData struct {
	Servers        int    `json:"servers"`
	Columns        uint64 `json:"columns"` // each copy counts
	AllocatedBytes uint64 `json:"allocated_bytes"`
	Files          uint64 `json:"files_with_data"`
	Pending        uint64 `json:"waiting_for_deletion"` // data of removed files
	Problems       uint64 `json:"problems"`
}

// invariantData is the number in DESIGN section 10: no data without an inode.
// Replicas that differ and files without data are found by the same check.
const invariantData = "6"

// columnKey names one column of one file.
type columnKey struct {
	data              uint64
	component, column uint32
}

// copyState is what one server has of a column.
type copyState struct {
	server    uint64
	size      uint64
	sizeEpoch uint64
	version   uint64
}

// stored is what all data servers hold.
type stored struct {
	columns   map[columnKey][]copyState
	place     map[columnKey]*canopyv1.Column
	servers   int
	copies    uint64
	allocated uint64
}

func gatherStored(ctx context.Context, cl *inspect.Cluster, pools *canopyv1.PoolMap) (*stored, error) {
	s := &stored{columns: map[columnKey][]copyState{}, place: map[columnKey]*canopyv1.Column{}}
	for _, srv := range pools.GetServers() {
		if !srv.GetAlive() {
			continue // its copies are out of sync or about to be
		}
		s.servers++
		err := cl.Data(ctx, srv.GetAddress(), func(c *canopyv1.ColumnInfo) {
			if c.GetTombstone() {
				return
			}
			k := columnKey{c.GetColumn().GetDataId(), c.GetColumn().GetComponent(), c.GetColumn().GetColumn()}
			s.columns[k] = append(s.columns[k], copyState{srv.GetServer(), c.GetSize(), c.GetSizeEpoch(), c.GetVersion()})
			s.place[k] = c.GetColumn()
			s.copies++
			s.allocated += c.GetAllocatedBytes()
		})
		if err != nil {
			return nil, fmt.Errorf("data server %d at %s: %w", srv.GetServer(), srv.GetAddress(), err)
		}
	}
	return s, nil
}

// differences returns, by column, how copies on servers in sync differ.
func (s *stored) differences(pools *canopyv1.PoolMap) map[columnKey]string {
	found := map[columnKey]string{}
	for k, copies := range s.columns {
		where := s.place[k]
		inSync := inSyncOf(pools, where.GetPool(), where.GetPg())
		if inSync == nil {
			found[k] = fmt.Sprintf("it lies in placement group %d of pool %d, which does not exist", where.GetPg(), where.GetPool())
			continue
		}
		var first *copyState
		have := 0
		for i, c := range copies {
			if !slices.Contains(inSync, c.server) {
				continue
			}
			have++
			if first == nil {
				first = &copies[i]
			} else if first.size != c.size || first.sizeEpoch != c.sizeEpoch {
				found[k] = fmt.Sprintf("server %d has %d bytes of size epoch %d, server %d %d bytes of size epoch %d",
					first.server, first.size, first.sizeEpoch, c.server, c.size, c.sizeEpoch)
			}
		}
		if have < len(inSync) && found[k] == "" {
			found[k] = fmt.Sprintf("%d of %d servers in sync have it", have, len(inSync))
		}
	}
	return found
}

func inSyncOf(pools *canopyv1.PoolMap, pool uint64, pg uint32) []uint64 {
	for _, p := range pools.GetPools() {
		if p.GetPool() == pool && int(pg) < len(p.GetPgs()) {
			return append([]uint64{}, p.GetPgs()[pg].GetInSync()...)
		}
	}
	return nil
}

// fileData is what the namespace says of a file with data.
type fileData struct {
	ino, blocks uint64
	path        string // kept for files that look wrong only
}

// walkFiles calls visit for each regular file below the root.
func (a *app) walkFiles(ctx context.Context, visit func(path string, attr *client.Attr)) (err error) {
	address, err := local.Find(a.cluster)
	if err != nil {
		return err
	}
	c, err := client.Connect(ctx, client.Config{Cluster: address, Mount: "mdsctl fsck"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(ctx)) }()
	w := &walker{c: c, cred: client.Cred{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}, visit: visit}
	return w.walk(ctx, "", c.Root())
}

type walker struct {
	c     *client.Client
	cred  client.Cred
	visit func(path string, attr *client.Attr)
}

func (w *walker) walk(ctx context.Context, path string, dir *client.Inode) error {
	req := client.ReadDirRequest{Plus: true}
	for {
		page, err := w.c.ReadDir(ctx, w.cred, dir, req)
		if k := fserr.KindOf(err); k == fserr.NotFound || k == fserr.Stale {
			return nil // removed meanwhile
		}
		if err != nil {
			return fmt.Errorf("list %s/: %w", path, err)
		}
		for _, e := range page.Entries {
			req.Cookie = e.GetCookie()
			child := path + "/" + string(e.GetName())
			switch e.GetType() & syscall.S_IFMT {
			case syscall.S_IFREG:
				w.visit(child, e.GetAttr())
			case syscall.S_IFDIR:
				n := w.c.InodeOf(dir, e)
				err := w.walk(ctx, child, n)
				n.Release()
				if err != nil {
					return err
				}
			}
		}
		if page.EOF {
			return nil
		}
		req.Mark = page.Mark
	}
}

// dataView is one look at both sides.
type dataView struct {
	stored  *stored
	differ  map[columnKey]string
	files   map[uint64]fileData // by data id
	without []uint64            // data ids without a file
	empty   []uint64            // data ids of files that should have columns
}

// look lists what is stored before it walks the namespace: a file that is
// made between has no data in the list, and does not look as if its data
// lacked a file.
func (a *app) look(ctx context.Context, cl *inspect.Cluster) (*dataView, error) {
	pools, err := cl.Pools(ctx)
	if err != nil {
		return nil, err
	}
	v := &dataView{files: map[uint64]fileData{}}
	if v.stored, err = gatherStored(ctx, cl, pools); err != nil {
		return nil, err
	}
	v.differ = v.stored.differences(pools)
	have := map[uint64]bool{}
	for k := range v.stored.columns {
		have[k.data] = true
	}
	err = a.walkFiles(ctx, func(path string, attr *client.Attr) {
		if attr.GetDataId() == 0 {
			return
		}
		f := fileData{ino: attr.GetIno(), blocks: attr.GetBlocks()}
		if f.blocks > 0 && !have[attr.GetDataId()] {
			f.path = path
			v.empty = append(v.empty, attr.GetDataId())
		}
		v.files[attr.GetDataId()] = f
	})
	for id := range have {
		if _, ok := v.files[id]; !ok {
			v.without = append(v.without, id)
		}
	}
	slices.Sort(v.without)
	return v, err
}

// maxLooks bounds how often a cluster is looked at that is busy deleting.
const maxLooks = 6

// checkData reports what is wrong in every one of two or more looks, settle apart:
// one may have met writes, deletions and replicas under way. Data without a file is
// compared with how many wait for deletion, so it looks until that number stands
// still meanwhile.
func (a *app) checkData(ctx context.Context, cl *inspect.Cluster, r *fsckReport, settle time.Duration) error {
	var v *dataView
	pending := waiting(ctx, cl)
	for looks := 1; ; looks++ {
		next, err := a.look(ctx, cl)
		if err != nil {
			return err
		}
		if v != nil {
			next.keepCommon(v)
		}
		v = next
		before := pending
		pending = waiting(ctx, cl)
		if !v.suspicious() || looks > 1 && (pending == before || uint64(len(v.without)) <= pending) || looks == maxLooks {
			pending = max(pending, before)
			break
		}
		select {
		case <-time.After(settle):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	before := r.Problems
	r.Data = &fsckData{Servers: v.stored.servers, Columns: v.stored.copies, AllocatedBytes: v.stored.allocated, Files: uint64(len(v.files))}
	v.report(r, pending)
	r.Data.Problems = r.Problems - before
	return nil
}

// waiting is how many files' data may wait for deletion.
func waiting(ctx context.Context, cl *inspect.Cluster) (files uint64) {
	for _, rep := range cl.Nodes(ctx) {
		for _, s := range rep.Shards {
			files += s.GetOrphans() + s.GetDeletionsQueued()
		}
	}
	return files
}

// suspicious says whether there is anything to look at again.
func (v *dataView) suspicious() bool { return len(v.differ)+len(v.without)+len(v.empty) > 0 }

// keepCommon drops what an earlier look did not find.
func (v *dataView) keepCommon(earlier *dataView) {
	for k := range v.differ {
		if _, ok := earlier.differ[k]; !ok {
			delete(v.differ, k)
		}
	}
	drop := func(list, before []uint64) []uint64 {
		known := setOf(before)
		return slices.DeleteFunc(list, func(id uint64) bool { return !known[id] })
	}
	v.without, v.empty = drop(v.without, earlier.without), drop(v.empty, earlier.empty)
}

func setOf(ids []uint64) map[uint64]bool {
	set := make(map[uint64]bool, len(ids))
	for _, id := range ids {
		set[id] = true
	}
	return set
}

// report adds findings. Data without a file may wait for deletion: as many as
// the shards say that wait are no problem.
func (v *dataView) report(r *fsckReport, pending uint64) {
	var keys []columnKey
	leaving := setOf(v.without)
	for k := range v.differ {
		if !leaving[k.data] { // on its way out, server by server
			keys = append(keys, k)
		}
	}
	sort.Slice(keys, func(i, k int) bool {
		a, b := keys[i], keys[k]
		return a.data < b.data || a.data == b.data && (a.component < b.component || a.component == b.component && a.column < b.column)
	})
	for _, k := range keys {
		r.add(finding{Invariant: invariantData, Object: fmt.Sprintf("data %d, component %d, column %d", k.data, k.component, k.column), Problem: "copies differ: " + v.differ[k]})
	}
	for _, id := range v.empty {
		f := v.files[id]
		r.add(finding{Shard: uint64(base.Ino(f.ino).Shard()), Invariant: invariantData, Object: fmt.Sprintf("%s (inode %d)", f.path, f.ino),
			Problem: fmt.Sprintf("it has %d blocks, but no data server has any of its data %d", f.blocks, id)})
	}
	if r.Data.Pending = min(uint64(len(v.without)), pending); uint64(len(v.without)) <= pending {
		return
	}
	for _, id := range v.without {
		r.add(finding{Invariant: invariantData, Object: fmt.Sprintf("data %d", id),
			Problem: fmt.Sprintf("no file has this data, and only %d files wait for deletion", pending)})
	}
}
