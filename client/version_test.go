package client

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
)

// otherVersion is a node that does not speak this client's protocol.
type otherVersion struct{ *fakeNode }

func (otherVersion) WatchMap(*canopyv1.WatchMapRequest, grpc.ServerStreamingServer[canopyv1.PlacementMap]) error {
	return fserr.Status(fserr.WrongVersion)
}

// TestAnotherVersionEndsConnect: who can never be answered does not wait for it.
func TestAnotherVersionEndsConnect(t *testing.T) {
	c := newFake(t, 1)
	n := c.nodes[0]
	n.stop()
	n.listenAs(otherVersion{n})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := Connect(ctx, Config{Cluster: n.address})
	if fserr.KindOf(err) != fserr.WrongVersion {
		t.Fatalf("got %v", err)
	}
	if ctx.Err() != nil {
		t.Fatal("it waited for an answer")
	}
}
