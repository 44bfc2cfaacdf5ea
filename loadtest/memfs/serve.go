package memfs

import (
	"context"
	"io"

	"github.com/canopyfs/canopy/clientfuse/mountopt"
	"github.com/canopyfs/canopy/loadtest/mounted"
)

// Serve mounts the file system on dir, with the flags and time-outs of Canopy's
// mount, until in ends (mounted.Serve).
func Serve(ctx context.Context, dir string, opts mountopt.Options, in io.Reader, out io.Writer) error {
	return mounted.Serve(ctx, New(opts), mountopt.Config{Dir: dir, Source: "memory", Options: opts}, in, out)
}
