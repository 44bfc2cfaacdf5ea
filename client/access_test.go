package client

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

// countAccesses counts what tells the server of reads from now on.
func countAccesses(f *fakeCluster) (alone, along *atomic.Int64) {
	alone, along = new(atomic.Int64), new(atomic.Int64)
	f.setHook(func(_ *fakeNode, op *canopyv1.Op, _ uint64) verdict {
		switch c := op.GetSetAttr(); {
		case c.GetMask() == uint32(canopyv1.SetAttrMask_SET_ATTR_ACCESSED):
			alone.Add(1)
		case c.GetAccessedNs() != 0, op.GetReportSize().GetAccessedNs() != 0:
			along.Add(1)
		}
		return verdict{}
	})
	return alone, along
}

func statOf(t *testing.T, c *Client, n *Inode) *Attr {
	t.Helper()
	return must[*Attr](t)(c.GetAttr(t.Context(), root, n))
}

// Reads show at once, are told later and merged, and cost nothing when atime is not
// due. What was shown stays.
func TestAccessesAreMerged(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	a, b := f.connect(t, d), f.connect(t, d)
	n := create(t, a, "x").Inode()
	made := statOf(t, a, n)
	alone, _ := countAccesses(f)
	for range 1000 {
		a.Accessed(n)
	}
	shown := statOf(t, a, n)
	if shown.AtimeNs <= made.AtimeNs || shown.MtimeNs != made.MtimeNs || shown.CtimeNs != made.CtimeNs {
		t.Errorf("atime %d, was %d; mtime %d -> %d", shown.AtimeNs, made.AtimeNs, made.MtimeNs, shown.MtimeNs)
	}
	eventually(t, "the other client shows the atime", func() bool { return statOf(t, b, n).AtimeNs == shown.AtimeNs })
	eventually(t, "nothing is left to tell", func() bool { return n.accessed.Load() == 0 })
	for range 1000 {
		a.Accessed(n)
	}
	if stays := statOf(t, a, n); stays.AtimeNs != shown.AtimeNs || n.accessed.Load() != 0 {
		t.Errorf("atime %d, was shown as %d", stays.AtimeNs, shown.AtimeNs)
	}
	if alone.Load() != 1 {
		t.Errorf("%d operations for 2000 reads", alone.Load())
	}
}

// Reads between writes: whatever is told first, the times are in the end what was
// shown.
func TestAccessesAndWrites(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	a, b := f.connect(t, d), f.connect(t, d)
	for name, act := range map[string]func(w *File){
		"read, write":       func(w *File) { a.Accessed(w.Inode()); write(t, w, "more", 0) },
		"write, read":       func(w *File) { write(t, w, "more", 0); a.Accessed(w.Inode()) },
		"read, write, read": func(w *File) { a.Accessed(w.Inode()); write(t, w, "more", 0); a.Accessed(w.Inode()) },
		"write, read, chmod": func(w *File) {
			write(t, w, "more", 0)
			a.Accessed(w.Inode())
			set := SetAttr{Mask: canopyv1.SetAttrMask_SET_ATTR_MODE, Mode: 0o600}
			must[*Attr](t)(a.SetAttr(t.Context(), root, w.Inode(), set))
		},
		"read, truncate": func(w *File) {
			a.Accessed(w.Inode())
			if err := w.Truncate(t.Context(), 3); err != nil {
				t.Error(err)
			}
		},
	} {
		w := create(t, a, name)
		write(t, w, "some", 0)
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, along := countAccesses(f)
		act(w)
		shown := statOf(t, a, w.Inode())
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		stays := statOf(t, b, w.Inode())
		if stays.AtimeNs != shown.AtimeNs || stays.MtimeNs != shown.MtimeNs || shown.AtimeNs <= shown.BtimeNs {
			t.Errorf("%s: atime %d, mtime %d; were shown as %d, %d", name, stays.AtimeNs, stays.MtimeNs, shown.AtimeNs, shown.MtimeNs)
		}
		if along.Load() == 0 {
			t.Errorf("%s: the read did not go along", name)
		}
	}
}

// An atime that is set takes the place of a read before it.
func TestSetAtimeAfterAccess(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	a, b := f.connect(t, d), f.connect(t, d)
	n := create(t, a, "x").Inode()
	a.Accessed(n)
	set := SetAttr{Mask: canopyv1.SetAttrMask_SET_ATTR_ATIME, AtimeNS: 12345}
	if attr := must[*Attr](t)(a.SetAttr(t.Context(), root, n, set)); attr.AtimeNs != 12345 {
		t.Errorf("atime %d", attr.AtimeNs)
	}
	a.accesses.tell(t.Context(), maxAccesses)
	if attr := statOf(t, b, n); attr.AtimeNs != 12345 {
		t.Errorf("afterwards %d", attr.AtimeNs)
	}
}

// Close tells of what was read last, and a clock that is behind the server's does
// not make a read one of an older state.
func TestCloseTellsOfAccesses(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	a, b := f.connect(t, d), f.connect(t, d)
	f.shards[1].mu.Lock()
	f.shards[1].now += int64(time.Hour)
	f.shards[1].mu.Unlock()
	n := must[Created](t)(a.Create(t.Context(), root, a.Root(), "x", 0o644, 0)).Inode
	w := open(t, b, "x", 0)
	set := SetAttr{Mask: canopyv1.SetAttrMask_SET_ATTR_ATIME, AtimeNS: 5}
	must[*Attr](t)(a.SetAttr(t.Context(), root, n, set))
	a.Accessed(n)
	shown := statOf(t, a, n)
	if err := a.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if attr := statOf(t, b, w.Inode()); attr.AtimeNs != shown.AtimeNs || attr.AtimeNs < attr.CtimeNs {
		t.Errorf("atime %d, was shown as %d; ctime %d", attr.AtimeNs, shown.AtimeNs, attr.CtimeNs)
	}
}

// More than a client keeps in mind move nothing, and so never show what will not stay.
func TestAccessesAreBounded(t *testing.T) {
	a := newAccesses(nil)
	for range maxAccesses {
		n := &Inode{}
		n.refs.Store(1)
		if !a.add(n) {
			t.Fatal("too few")
		}
	}
	if n := (&Inode{}); a.add(n) || n.refs.Load() != 0 {
		t.Error("too many")
	}
}

// What a client overlays is a copy of everything else.
func TestCloneAttr(t *testing.T) {
	a := &Attr{}
	fields := a.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		switch {
		case field.IsList():
			a.ProtoReflect().Mutable(field).List().AppendMutable()
		case field.Kind() == protoreflect.MessageKind:
			a.ProtoReflect().Mutable(field)
		case field.Kind() == protoreflect.BoolKind:
			a.ProtoReflect().Set(field, protoreflect.ValueOfBool(true))
		case field.Kind() == protoreflect.Uint32Kind:
			a.ProtoReflect().Set(field, protoreflect.ValueOfUint32(7))
		case field.Kind() == protoreflect.Uint64Kind:
			a.ProtoReflect().Set(field, protoreflect.ValueOfUint64(7))
		case field.Kind() == protoreflect.Sfixed64Kind:
			a.ProtoReflect().Set(field, protoreflect.ValueOfInt64(7))
		case field.Kind() == protoreflect.BytesKind:
			a.ProtoReflect().Set(field, protoreflect.ValueOfBytes([]byte("x")))
		default:
			t.Fatalf("a field of kind %v", field.Kind())
		}
	}
	if got := cloneAttr(a); !proto.Equal(got, a) {
		t.Errorf("%v became %v", a, got)
	}
}
