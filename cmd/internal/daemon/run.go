package daemon

import (
	"context"

	"github.com/canopyfs/canopy/mds"
)

// RunMDS runs a metadata node until ctx is done; ready is called when its shards
// have started.
func RunMDS(ctx context.Context, config mds.Config, ready func(*mds.Server)) error {
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
