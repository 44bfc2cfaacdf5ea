package mdsctl

import (
	"context"
	"fmt"
	"syscall"

	"github.com/spf13/cobra"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/client/inspect"
)

// statReport is the outcome of `stat`, as JSON has it.
type statReport struct {
	Path        string         `json:"path"`
	Ino         uint64         `json:"ino"`
	Type        string         `json:"type"`
	Mode        string         `json:"mode"` // permission bits, octal
	Nlink       uint32         `json:"nlink"`
	UID         uint32         `json:"uid"`
	GID         uint32         `json:"gid"`
	Rdev        uint64         `json:"rdev"`
	Size        uint64         `json:"size"` // of a directory: entries
	Blocks      uint64         `json:"blocks_512"`
	Atime       string         `json:"atime"`
	Mtime       string         `json:"mtime"`
	Ctime       string         `json:"ctime"`
	Btime       string         `json:"btime"`
	Version     uint64         `json:"version"`
	DataVersion uint64         `json:"data_version"`
	SizeEpoch   uint64         `json:"size_epoch"`
	Cuts        []cutRow       `json:"cuts"`
	DataID      uint64         `json:"data_id"`
	Pool        uint64         `json:"pool,omitempty"`
	Layout      []componentRow `json:"layout"`
	Subtree     uint64         `json:"subtree"`
	Epoch       uint64         `json:"epoch"`
	Shard       uint64         `json:"shard"`               // owner of that subtree by the map, 0 if it is not there
	HolderNode  uint64         `json:"holder_node"`         // hint of the map
	Fragments   int            `json:"fragments,omitempty"` // of a split directory: mdsctl fragments shows them
}

type cutRow struct {
	SizeEpoch uint64 `json:"size_epoch"`
	Size      uint64 `json:"size"`
}

func typeText(mode uint32) string {
	switch mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		return "directory"
	case syscall.S_IFREG:
		return "file"
	case syscall.S_IFLNK:
		return "symlink"
	case syscall.S_IFIFO:
		return "fifo"
	case syscall.S_IFSOCK:
		return "socket"
	case syscall.S_IFCHR:
		return "character device"
	case syscall.S_IFBLK:
		return "block device"
	}
	return fmt.Sprintf("unknown (%#o)", mode)
}

func newStat(path string, a *client.Attr, m *canopyv1.PlacementMap) statReport {
	r := statReport{
		Path: path, Ino: a.GetIno(), Type: typeText(a.GetMode()), Mode: fmt.Sprintf("%04o", a.GetMode()&0o7777),
		Nlink: a.GetNlink(), UID: a.GetUid(), GID: a.GetGid(), Rdev: a.GetRdev(), Size: a.GetSize(), Blocks: a.GetBlocks(),
		Atime: timeText(a.GetAtimeNs()), Mtime: timeText(a.GetMtimeNs()), Ctime: timeText(a.GetCtimeNs()), Btime: timeText(a.GetBtimeNs()),
		Version: a.GetVersion(), DataVersion: a.GetDataVersion(), SizeEpoch: a.GetSizeEpoch(), Cuts: []cutRow{}, DataID: a.GetDataId(),
		Pool: a.GetLayout().GetPool(), Layout: componentRows(a.GetLayout()), Subtree: a.GetSubtree(), Epoch: a.GetEpoch(),
	}
	for _, c := range a.GetCuts() {
		r.Cuts = append(r.Cuts, cutRow{SizeEpoch: c.GetSizeEpoch(), Size: c.GetSize()})
	}
	for _, s := range m.GetSubtrees() {
		if s.GetSubtree() == a.GetSubtree() {
			r.Shard = s.GetShard()
		}
	}
	for _, s := range m.GetShards() {
		if s.GetShard() == r.Shard {
			r.HolderNode = s.GetHolderNode()
		}
	}
	return r
}

func writeStat(t *table, r statReport) {
	t.row("path", r.Path)
	t.row("inode", r.Ino)
	t.row("type", r.Type)
	t.row("mode", r.Mode)
	t.row("links", r.Nlink)
	t.row("owner", fmt.Sprintf("uid %d, gid %d", r.UID, r.GID))
	switch r.Type {
	case "directory":
		t.row("entries", r.Size)
	case "character device", "block device":
		t.row("device", fmt.Sprintf("%#x", r.Rdev))
	default:
		t.row("size", fmt.Sprintf("%d (%s)", r.Size, bytesText(r.Size)))
		t.row("blocks", fmt.Sprintf("%d of 512 bytes", r.Blocks))
	}
	t.row("accessed", r.Atime)
	t.row("modified", r.Mtime)
	t.row("changed", r.Ctime)
	t.row("born", r.Btime)
	t.row("version", r.Version)
	if r.Type == "file" {
		t.row("data version", r.DataVersion)
		t.row("data id", nodeText(r.DataID))
		t.row("size epoch", r.SizeEpoch)
		for _, c := range r.Cuts {
			t.row("cut", fmt.Sprintf("to %d bytes, began size epoch %d", c.Size, c.SizeEpoch))
		}
		t.row("layout", fmt.Sprintf("pool %d; %s", r.Pool, layoutText(r.Layout)))
	}
	t.row("subtree", fmt.Sprintf("%d, epoch %d", r.Subtree, r.Epoch))
	t.row("shard", fmt.Sprintf("%s, last known holder node %s", nodeText(r.Shard), nodeText(r.HolderNode)))
	if r.Fragments > 1 {
		t.row("fragments", fmt.Sprintf("%d, of which these are the first one's (mdsctl fragments)", r.Fragments))
	}
}

func (a *app) statCommand() *cobra.Command {
	follow := false
	c := &cobra.Command{
		Use: "stat PATH", Short: "Show all attributes of a path, and where its metadata lives", Args: oneArg("PATH"),
		Long:    "Show what stat(2) shows of a path and what only Canopy knows: subtree, epoch and shard,\nversions, data id, size epoch with cuts, layout. A symbolic link is shown itself. Of a split directory\nthe numbers are over all fragments.",
		Example: "  mdsctl stat /data/set/train.tar\n  mdsctl stat ./mnt/data -o json",
		RunE: func(c *cobra.Command, args []string) error {
			var whole *client.Attr
			fragments := 0
			attr, path, err := a.at(c.Context(), args[0], follow, func(ctx context.Context, c *client.Client, n *client.Inode) error {
				if !n.IsDir() {
					return nil
				}
				all, err := c.Fragments(ctx, n)
				if fragments = len(all); fragments > 1 {
					whole, err = c.GetAttr(ctx, a.cred(), n)
				}
				return err
			})
			if err != nil {
				return err
			}
			if whole != nil {
				attr = whole
			}
			return a.withCluster(c.Context(), func(cl *inspect.Cluster) error {
				r := newStat(path, attr, cl.Map())
				if fragments > 1 {
					r.Fragments = fragments
				}
				return a.emit(r, func(t *table) { writeStat(t, r) })
			})
		},
	}
	c.Flags().BoolVarP(&follow, "dereference", "L", false, "follow a symbolic link at the end")
	return c
}

// layoutReport is the outcome of `layout`, as JSON has it.
type layoutReport struct {
	Path   string         `json:"path"`
	Ino    uint64         `json:"ino"`
	DataID uint64         `json:"data_id"`
	Size   uint64         `json:"size"`
	Pool   uint64         `json:"pool"`
	Layout []componentRow `json:"layout"`
	Ranges []rangeRow     `json:"ranges"`
	More   bool           `json:"more"` // the file goes on behind the last range
}

type rangeRow struct {
	Offset       uint64   `json:"offset"`
	Length       uint64   `json:"length"`
	Component    uint32   `json:"component"`
	Column       uint32   `json:"column"`
	ColumnOffset uint64   `json:"column_offset"`
	PG           uint32   `json:"pg"`
	PGEpoch      uint64   `json:"pg_epoch"`
	Servers      []uint64 `json:"servers"` // in sync, primary first
}

func (a *app) layoutCommand() *cobra.Command {
	var offset, length uint64
	var rows int
	c := &cobra.Command{
		Use: "layout PATH", Short: "Show which stripe of a file lies on which data servers", Args: oneArg("PATH"),
		Long:    "Ask a layout service where the stripes of a file lie: the range in the file, the layout\ncomponent and column, the placement group and its servers in sync, the primary first.",
		Example: "  mdsctl layout /ckpt/step-1000.pt\n  mdsctl layout /ckpt/step-1000.pt --offset 1073741824 --rows 16",
		RunE: func(c *cobra.Command, args []string) error {
			if rows < 1 || rows > maxLayoutRows {
				return fmt.Errorf("--rows %d: want 1 to %d", rows, maxLayoutRows)
			}
			return a.layout(c.Context(), args[0], offset, length, rows)
		},
	}
	c.Flags().Uint64Var(&offset, "offset", 0, "start at this byte")
	c.Flags().Uint64Var(&length, "length", 0, "show so many bytes (0: to the end of the file)")
	c.Flags().IntVar(&rows, "rows", 64, "show at most so many stripes")
	return c
}

const (
	maxLayoutRows = 100_000
	// layoutChunk is how much of a file is asked for at once.
	layoutChunk = 256 << 20
)

func (a *app) layout(ctx context.Context, typed string, offset, length uint64, rows int) error {
	attr, path, err := a.walk(ctx, typed, true)
	if err != nil {
		return err
	}
	if attr.GetMode()&syscall.S_IFMT != syscall.S_IFREG {
		return fmt.Errorf("%s is a %s: only regular files have a layout", path, typeText(attr.GetMode()))
	}
	return a.withCluster(ctx, func(cl *inspect.Cluster) error {
		r := layoutReport{Path: path, Ino: attr.GetIno(), DataID: attr.GetDataId(), Size: attr.GetSize(),
			Pool: attr.GetLayout().GetPool(), Layout: componentRows(attr.GetLayout()), Ranges: []rangeRow{}}
		end := attr.GetSize()
		if length > 0 {
			end = min(end, offset+min(length, end))
		}
		if err := r.fill(ctx, cl, attr, offset, end, rows); err != nil {
			return err
		}
		return a.emit(r, func(t *table) { writeLayout(t, r) })
	})
}

// fill asks for the ranges of [from, end), at most rows of them.
func (r *layoutReport) fill(ctx context.Context, cl *inspect.Cluster, attr *client.Attr, from, end uint64, rows int) error {
	if attr.GetDataId() == 0 {
		return nil // nothing was ever written
	}
	for from < end {
		resp, err := cl.StripeMap(ctx, &canopyv1.StripeMapRequest{DataId: attr.GetDataId(), Layout: attr.GetLayout(), Offset: from, Length: min(end-from, layoutChunk)})
		if err != nil {
			return err
		}
		before := from
		for _, x := range resp.GetRanges() {
			if len(r.Ranges) == rows {
				r.More = true
				return nil
			}
			r.Ranges = append(r.Ranges, rangeRow{Offset: x.GetOffset(), Length: x.GetLength(), Component: x.GetComponent(), Column: x.GetColumn(),
				ColumnOffset: x.GetColumnOffset(), PG: x.GetPg(), PGEpoch: x.GetPgEpoch(), Servers: x.GetServers()})
			from = x.GetOffset() + x.GetLength()
		}
		if from <= before {
			return fmt.Errorf("the layout service says nothing of what follows byte %d", before)
		}
	}
	return nil
}

func writeLayout(t *table, r layoutReport) {
	t.line(fmt.Sprintf("%s: inode %d, data id %s, %d bytes, pool %d; %s", r.Path, r.Ino, nodeText(r.DataID), r.Size, r.Pool, layoutText(r.Layout)))
	if r.DataID == 0 || r.Size == 0 {
		t.line("no bytes are stored")
		return
	}
	t.title("")
	t.row("OFFSET", "LENGTH", "COMPONENT", "COLUMN", "COLUMN-OFFSET", "PG", "PG-EPOCH", "SERVERS")
	for _, x := range r.Ranges {
		t.row(x.Offset, x.Length, x.Component, x.Column, x.ColumnOffset, x.PG, x.PGEpoch, joinIDs(x.Servers))
	}
	if r.More {
		last := r.Ranges[len(r.Ranges)-1]
		t.line(fmt.Sprintf("... more follows: --offset %d", last.Offset+last.Length))
	}
}
