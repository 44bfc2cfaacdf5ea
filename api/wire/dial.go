package wire

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
)

// The gRPC metadata keys of every call.
const (
	MetadataCluster = "canopy-cluster" // cluster id; absent while the caller does not know it
	MetadataClient  = "canopy-client"  // client id, 16 hexadecimal digits
	MetadataHost    = "canopy-host"    // for people, as are the next two
	MetadataPID     = "canopy-pid"
	MetadataMount   = "canopy-mount"
	// MetadataProtocol is the version of the protocol that the caller speaks;
	// absent in calls of generic tools.
	MetadataProtocol = "canopy-protocol"
	// MetadataCapability carries a capability where no message does.
	MetadataCapability = "canopy-capability-bin"
)

// A server answers callers that speak Protocol, and older ones down to
// MinProtocol. A newer caller is refused: servers are upgraded before clients.
// Protocol grows when an older peer would take a message for something else; new
// fields and calls that it may leave out do not count.
const (
	Protocol    = 1
	MinProtocol = 1
)

// The windows of a connection and of one stream. A stream carries what one
// client has in flight towards one shard, up to some MiB.
const (
	connectionWindowBytes = 16 << 20
	streamWindowBytes     = 8 << 20
	ioBufferBytes         = 64 << 10
)

// Caller says who makes a call. Zero fields are not sent.
type Caller struct {
	Cluster string
	Client  uint64
	Host    string
	PID     int
	Mount   string
}

// Context returns ctx with the caller's metadata for an outgoing call. It
// replaces the caller that ctx had.
func (c Caller) Context(ctx context.Context) context.Context {
	md, _ := metadata.FromOutgoingContext(ctx)
	md = md.Copy()
	set := func(key, value string) {
		md.Delete(key)
		if value != "" {
			md.Set(key, printable(value))
		}
	}
	set(MetadataCluster, c.Cluster)
	if c.Client != 0 {
		set(MetadataClient, fmt.Sprintf("%016x", c.Client))
	}
	set(MetadataHost, c.Host)
	if c.PID != 0 {
		set(MetadataPID, strconv.Itoa(c.PID))
	}
	set(MetadataMount, c.Mount)
	set(MetadataProtocol, strconv.Itoa(Protocol))
	return metadata.NewOutgoingContext(ctx, md)
}

// printable replaces what gRPC metadata cannot carry.
func printable(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c < 0x20 || c > 0x7e {
			b[i] = '?'
		}
	}
	return string(b)
}

// DialOptions returns what every connection between Canopy's processes uses:
// the codec, message size limits, keepalive, windows and reconnect back-off. The
// caller adds transport credentials.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(Codec()),
			grpc.MaxCallRecvMsgSize(MaxMessageBytes),
			grpc.MaxCallSendMsgSize(MaxMessageBytes),
		),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time:                10 * time.Second,
			Timeout:             5 * time.Second,
			PermitWithoutStream: true,
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 2 * time.Second,
		}),
		grpc.WithInitialConnWindowSize(connectionWindowBytes),
		grpc.WithInitialWindowSize(streamWindowBytes),
		grpc.WithReadBufferSize(ioBufferBytes),
		grpc.WithWriteBufferSize(ioBufferBytes),
		grpc.WithDisableServiceConfig(),
	}
}

// ServerOptions returns the counterpart of DialOptions for a server.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(Codec()),
		grpc.MaxRecvMsgSize(MaxMessageBytes),
		grpc.MaxSendMsgSize(MaxMessageBytes),
		grpc.InitialConnWindowSize(connectionWindowBytes),
		grpc.InitialWindowSize(streamWindowBytes),
		grpc.ReadBufferSize(ioBufferBytes),
		grpc.WriteBufferSize(ioBufferBytes),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 2 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 15 * time.Second, Timeout: 10 * time.Second}),
	}
}
