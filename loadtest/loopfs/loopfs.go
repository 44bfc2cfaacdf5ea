// Package loopfs is go-fuse's loopback over a directory of the local disk: what
// FUSE costs when a file system stands behind it that does nothing else. Small
// files through Canopy's mount are compared with it.
package loopfs

import (
	"context"
	"io"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"

	"github.com/canopyfs/canopy/clientfuse/mountopt"
	"github.com/canopyfs/canopy/loadtest/mounted"
)

// Serve mounts the loopback over backing on dir, with the flags and time-outs of
// Canopy's mount, until in ends (mounted.Serve).
func Serve(ctx context.Context, backing, dir string, opts mountopt.Options, in io.Reader, out io.Writer) error {
	root, err := fs.NewLoopbackRoot(backing)
	if err != nil {
		return err
	}
	entry, attr, none := opts.EntryTimeout(), opts.AttrTimeout(), time.Duration(0)
	raw := fs.NewNodeFS(root, &fs.Options{EntryTimeout: &entry, AttrTimeout: &attr, NegativeTimeout: &none})
	return mounted.Serve(ctx, raw, mountopt.Config{Dir: dir, Source: "loopback", Options: opts}, in, out)
}
