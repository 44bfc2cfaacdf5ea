package mdsctl

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/inspect"
)

func connect(t *testing.T, f *fakeCluster) *inspect.Cluster {
	t.Helper()
	c, err := inspect.Connect(t.Context(), node1, inspect.Options{DialOptions: []grpc.DialOption{f.dialer()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestLayoutRanges(t *testing.T) {
	f := newFake(t)
	const mib = 1 << 20
	f.ranges = []*canopyv1.StripeRange{
		{Offset: 0, Length: mib, PgEpoch: 3, Pg: 1, Servers: []uint64{2, 1}},
		{Offset: mib, Length: mib, Component: 1, Pg: 0, PgEpoch: 1, Servers: []uint64{1, 2}},
		{Offset: 2 * mib, Length: mib, Component: 1, Column: 1, Pg: 1, PgEpoch: 3, Servers: []uint64{2, 1}},
	}
	cl := connect(t, f)
	fill := func(from, end uint64, rows int) (layoutReport, error) {
		r := layoutReport{Path: "/data/x", Ino: 7, DataID: 7, Size: 3 * mib, Pool: 1, Layout: componentRows(attr().GetLayout())}
		err := r.fill(t.Context(), cl, attr(), from, end, rows)
		return r, err
	}
	r, err := fill(0, 3*mib, 2)
	if err != nil || !r.More {
		t.Fatalf("%+v, %v", r, err)
	}
	var out bytes.Buffer
	a := &app{env: Env{Stdout: &out}, output: "table"}
	if err := a.emit(r, func(t *table) { writeLayout(t, r) }); err != nil {
		t.Fatal(err)
	}
	golden(t, "layout.txt", out.String())
	if r, err = fill(2*mib, 3*mib, 2); err != nil || r.More || len(r.Ranges) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	// A layout service that says nothing must not make it loop.
	f.ranges = f.ranges[:1]
	if _, err = fill(0, 3*mib, 10); err == nil || !strings.Contains(err.Error(), "says nothing of what follows byte 1048576") {
		t.Errorf("%v", err)
	}
	r.DataID, r.Ranges = 0, nil
	out.Reset()
	if err := a.emit(r, func(t *table) { writeLayout(t, r) }); err != nil || !strings.Contains(out.String(), "no bytes are stored") {
		t.Errorf("%v, %s", err, out.String())
	}
}

func TestStoredDifferences(t *testing.T) {
	column := func(id uint64, pg uint32) *canopyv1.Column {
		return &canopyv1.Column{Pool: 1, Pg: pg, DataId: id}
	}
	for name, c := range map[string]struct {
		on1, on2 []*canopyv1.ColumnInfo
		want     string
	}{
		"equal":       {[]*canopyv1.ColumnInfo{{Column: column(5, 0), Size: 1}}, []*canopyv1.ColumnInfo{{Column: column(5, 0), Size: 1}}, ""},
		"size":        {[]*canopyv1.ColumnInfo{{Column: column(5, 0), Size: 1}}, []*canopyv1.ColumnInfo{{Column: column(5, 0), Size: 2}}, "server 1 has 1 bytes of size epoch 0, server 2 2 bytes"},
		"missing":     {[]*canopyv1.ColumnInfo{{Column: column(5, 0), Size: 1}}, nil, "1 of 2 servers in sync have it"},
		"tombstone":   {[]*canopyv1.ColumnInfo{{Column: column(5, 0), Tombstone: true}}, nil, ""},
		"no such PG":  {[]*canopyv1.ColumnInfo{{Column: column(5, 9)}}, nil, "which does not exist"},
		"out of sync": {[]*canopyv1.ColumnInfo{{Column: column(5, 1), Size: 1}}, []*canopyv1.ColumnInfo{{Column: column(5, 1), Size: 2}}, ""},
	} {
		f := newFake(t)
		f.pools.Pools[0].Pgs[1].InSync = []uint64{2}
		f.columns[data1], f.columns[data2] = c.on1, c.on2
		s, err := gatherStored(t.Context(), connect(t, f), f.pools)
		if err != nil {
			t.Fatal(err)
		}
		found := s.differences(f.pools)
		if got := found[columnKey{data: 5}]; (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestGatherStoredOfADeadServer(t *testing.T) {
	f := newFake(t)
	f.kill(data2)
	if _, err := gatherStored(context.Background(), connect(t, f), f.pools); err == nil || !strings.Contains(err.Error(), "data server 2 at "+data2) {
		t.Errorf("%v", err)
	}
	f.pools.Servers[1].Alive = false
	if s, err := gatherStored(context.Background(), connect(t, f), f.pools); err != nil || s.servers != 1 || s.copies != 1 {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestReportOfDataFindings(t *testing.T) {
	view := func() *dataView {
		return &dataView{
			differ:  map[columnKey]string{{data: 8}: "sizes", {data: 9}: "on its way out"},
			files:   map[uint64]fileData{7: {ino: 7, blocks: 8, path: "/lost"}},
			without: []uint64{9, 10}, empty: []uint64{7},
		}
	}
	for pending, want := range map[uint64]string{
		2: "[{0 6 data 8, component 0, column 0 copies differ: sizes} {0 6 /lost (inode 7) it has 8 blocks, but no data server has any of its data 7}] 2",
		0: "[{0 6 data 8, component 0, column 0 copies differ: sizes} {0 6 /lost (inode 7) it has 8 blocks, but no data server has any of its data 7}" +
			" {0 6 data 9 no file has this data, and only 0 files wait for deletion} {0 6 data 10 no file has this data, and only 0 files wait for deletion}] 0",
	} {
		r := &fsckReport{Data: &fsckData{}}
		view().report(r, pending)
		if got := fmt.Sprint(r.Findings, r.Data.Pending); got != want {
			t.Errorf("%d pending: %s, want %s", pending, got, want)
		}
	}
	// What only one look found was under way.
	v := view()
	v.keepCommon(&dataView{differ: map[columnKey]string{{data: 8}: "x"}, without: []uint64{10}})
	if len(v.differ) != 1 || len(v.without) != 1 || len(v.empty) != 0 {
		t.Errorf("%+v", v)
	}
}
