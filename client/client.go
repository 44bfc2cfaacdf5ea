package client

import (
	"context"

	"google.golang.org/grpc"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// Client is a connection to one cluster. Make it with Connect.
type Client struct {
	id   base.ClientID
	root *Inode
}

// Connect finds the cluster and returns when a node has answered with the
// placement map. Sessions at shards are opened on first use.
func Connect(ctx context.Context, cfg Config) (*Client, error) {
	return nil, fserr.New(fserr.Internal, "connect", nil)
}

// Close writes out all buffered bytes, closes the sessions and ends all
// streams; operations that still wait end with kind NotConnected. ctx bounds
// how long it tries; bytes that could not be written are an error.
func (c *Client) Close(ctx context.Context) error { return fserr.New(fserr.Internal, "close", nil) }

// ID returns the client's random id.
func (c *Client) ID() base.ClientID { return c.id }

// ClusterID returns the id of the cluster.
func (c *Client) ClusterID() string { return c.Map().GetCluster() }

// Map returns the last placement map: shared, not to be changed.
func (c *Client) Map() *canopyv1.PlacementMap { return nil }

// NodeConn returns the connection to a metadata node, for the Cluster and Admin
// services. It belongs to the client.
func (c *Client) NodeConn(node base.NodeID) (*grpc.ClientConn, error) {
	return nil, fserr.New(fserr.NotConnected, "connect", nil)
}

// Root returns the root directory. It needs no Release.
func (c *Client) Root() *Inode { return c.root }

// Flush writes out all buffered bytes of all files and reports their sizes;
// with sync it makes them durable. It returns the first error; the files'
// handles report theirs as well.
func (c *Client) Flush(ctx context.Context, sync bool) error {
	return fserr.New(fserr.Internal, "flush", nil)
}

// FS returns the path interface for cred.
func (c *Client) FS(cred Cred) *FS { return &FS{c: c, cred: cred} }
