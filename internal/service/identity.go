package service

import (
	"context"
	"fmt"
	"strconv"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// Identity says who makes a call, from the metadata of the call.
type Identity struct {
	Cluster string        // "" if the caller did not name one
	Client  base.ClientID // 0 if the caller is no client
	Host    string
	PID     uint32
	Mount   string
	Peer    string // network address
}

type identityKey struct{}

// IdentityOf returns the identity that the interceptor found, once per call or
// stream.
func IdentityOf(ctx context.Context) Identity {
	id, _ := ctx.Value(identityKey{}).(Identity)
	return id
}

// maxLabelBytes bounds what callers say about themselves.
const maxLabelBytes = 255

// identify reads the identity of an incoming call and refuses callers of
// another cluster.
func identify(ctx context.Context, cluster func() string) (context.Context, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	get := func(key string) string {
		if v := md.Get(key); len(v) > 0 {
			return v[0][:min(len(v[0]), maxLabelBytes)]
		}
		return ""
	}
	id := Identity{
		Cluster: get(wire.MetadataCluster),
		Host:    get(wire.MetadataHost),
		Mount:   get(wire.MetadataMount),
	}
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		id.Peer = p.Addr.String()
	}
	if v := get(wire.MetadataClient); v != "" {
		c, err := base.ParseClientID(v)
		if err != nil {
			return ctx, fserr.New(fserr.Malformed, "identify", err)
		}
		id.Client = c
	}
	if v := get(wire.MetadataPID); v != "" {
		pid, err := strconv.ParseUint(v, 10, 32)
		if err != nil {
			return ctx, fserr.New(fserr.Malformed, "identify", err)
		}
		id.PID = uint32(pid)
	}
	if err := checkProtocol(get(wire.MetadataProtocol)); err != nil {
		return ctx, err
	}
	if cluster != nil {
		if own := cluster(); id.Cluster != "" && own != "" && id.Cluster != own {
			return ctx, &fserr.Error{Kind: fserr.WrongCluster, Op: "identify", Path: "cluster " + id.Cluster + " (this is " + own + ")"}
		}
	}
	return context.WithValue(ctx, identityKey{}, id), nil
}

// checkProtocol refuses a caller whose version of the protocol this build does not
// speak, and says which side to upgrade.
func checkProtocol(version string) error {
	if version == "" {
		return nil
	}
	v, err := strconv.ParseUint(version, 10, 32)
	switch {
	case err != nil:
		return fserr.New(fserr.Malformed, "identify", err)
	case v > wire.Protocol:
		return fserr.New(fserr.WrongVersion, "identify", fmt.Errorf(
			"the caller speaks version %d of the protocol, this server up to %d: upgrade the servers first", v, wire.Protocol))
	case v < wire.MinProtocol:
		return fserr.New(fserr.WrongVersion, "identify", fmt.Errorf(
			"the caller speaks version %d of the protocol, this server only %d to %d: upgrade the caller", v, wire.MinProtocol, wire.Protocol))
	}
	return nil
}
