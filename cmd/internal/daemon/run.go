package daemon

import (
	"context"
	"os"

	"github.com/canopyfs/canopy/mds"
)

// RunMDS runs a metadata node until ctx is done; ready is called when its shards
// have started.
func RunMDS(ctx context.Context, config mds.Config, ready func(*mds.Server)) error {
	config.OnDiskFailed = func(err error) {
		// A crash is always safe for what was acknowledged; going on is not.
		config.Logger.Error("the node's log or store cannot be written: the process ends; start it again when the disk is well", "directory", config.DataDir, "error", err)
		os.Exit(1)
	}
	server, err := mds.New(ctx, config)
	if err != nil {
		return err
	}
	announced := make(chan struct{})
	watching, stop := context.WithCancel(ctx)
	go func() {
		defer close(announced)
		select {
		case <-server.Ready():
			ready(server)
		case <-watching.Done():
		}
	}()
	err = server.Run(ctx)
	stop()
	<-announced
	return err
}
