package client

import "testing"

// What stat shows of a file with buffered bytes stays when they are reported.
func TestTimesOfBufferedWritesStay(t *testing.T) {
	f, d := newFake(t, 1), newMemData()
	c := f.connect(t, d)
	w := create(t, c, "x")
	made := must[*Attr](t)(c.GetAttr(t.Context(), root, w.Inode()))
	write(t, w, "hello", 0)
	shown := must[*Attr](t)(c.GetAttr(t.Context(), root, w.Inode()))
	if shown.MtimeNs <= made.MtimeNs || shown.CtimeNs != shown.MtimeNs {
		t.Errorf("buffered: mtime %d, ctime %d, before %d", shown.MtimeNs, shown.CtimeNs, made.MtimeNs)
	}
	for _, what := range []func() error{
		func() error { return w.Flush(t.Context()) },
		func() error { return w.Fsync(t.Context()) },
		func() error { return w.Close(t.Context()) },
	} {
		if err := what(); err != nil {
			t.Fatal(err)
		}
		stays := must[*Attr](t)(f.connect(t, d).GetAttr(t.Context(), root, w.Inode()))
		if stays.MtimeNs != shown.MtimeNs || stays.CtimeNs != shown.CtimeNs {
			t.Errorf("mtime %d, ctime %d; was shown as %d and %d", stays.MtimeNs, stays.CtimeNs, shown.MtimeNs, shown.CtimeNs)
		}
	}
}
