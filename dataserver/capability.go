package dataserver

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/metadata"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/client/data/link"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/capability"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/internal/service"
)

// guard checks what requests are allowed (PROTOCOLS J4). Its keys and its time
// come with the lease: a server that has one is behind by no more than that.
type guard struct {
	logger  *slog.Logger
	metrics *metrics
	poke    func() // have a heartbeat fetch what is new
	keys    atomic.Pointer[guardKeys]
	poked   rate.Sometimes
	warned  rate.Sometimes
}

// guardKeys is one version of the keys, and what this server shows other members.
type guardKeys struct {
	ring   *capability.Keyring
	member []byte
}

func newGuard(logger *slog.Logger, m *metrics, poke func()) *guard {
	return &guard{
		logger: logger, metrics: m, poke: poke,
		poked: rate.Sometimes{Interval: 100 * time.Millisecond}, warned: rate.Sometimes{First: 1, Interval: time.Second},
	}
}

// adopt takes a ring that a layout service answered; nil: there is no other.
func (g *guard) adopt(message *canopyv1.CapabilityRing) {
	if message == nil {
		return
	}
	ring, err := capability.NewKeyring(message)
	if err != nil {
		g.logger.Error("the keys of capabilities cannot be used", "error", err)
		return
	}
	member := ring.Service(capability.Member)
	g.keys.Store(&guardKeys{ring, member[:]})
}

// version returns the version of the ring, 0 without one.
func (g *guard) version() uint64 {
	if k := g.keys.Load(); k != nil {
		return k.ring.Version()
	}
	return 0
}

// member returns what allows this server to ask other members; nil without keys.
func (g *guard) member() []byte {
	if k := g.keys.Load(); k != nil {
		return k.member
	}
	return nil
}

// rightsOf returns the rights of which a request needs one.
func rightsOf(r *link.Request) capability.Rights {
	if r.FromPrimary {
		return capability.Member
	}
	switch r.Call.(type) {
	case *canopyv1.DataRequest_Write, *canopyv1.DataRequest_Punch, *canopyv1.DataRequest_Reserve:
		return capability.Write
	case *canopyv1.DataRequest_Read:
		return capability.Read
	case *canopyv1.DataRequest_Sync, *canopyv1.DataRequest_Seek:
		return capability.Read | capability.Write
	case *canopyv1.DataRequest_Cut, *canopyv1.DataRequest_Delete:
		return capability.Purge
	}
	return capability.Member
}

// allow refuses a request that its capability does not allow.
func (g *guard) allow(ctx context.Context, r *link.Request) error {
	client, data, want := r.Client, r.GetColumn().GetDataId(), rightsOf(r)
	err := g.check(r.Capability, client, data, want)
	if err == nil {
		return nil
	}
	if kind := fserr.KindOf(err); r.FromPrimary && kind == fserr.NoCapability && passing(err) {
		// A member whose time is behind, or whose is ahead: they meet again.
		return fserr.New(fserr.NotReady, "data", err)
	}
	g.refused(ctx, callName(r), client, data, err)
	return err
}

// passing reports whether a refusal is one that time brings about.
func passing(err error) bool {
	return errors.Is(err, capability.Expired) || errors.Is(err, capability.UnknownKey)
}

// check is Keyring.Check with what a server answers.
func (g *guard) check(token []byte, client, data uint64, want capability.Rights) error {
	k := g.keys.Load()
	if k == nil {
		return fserr.New(fserr.NotReady, "data", errors.New("this server has no keys of capabilities yet"))
	}
	err := k.ring.Check(token, client, data, want)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, capability.FutureKey):
		g.poked.Do(g.poke)
		return fserr.New(fserr.NotReady, "data", err)
	}
	return fserr.New(fserr.NoCapability, "data", err)
}

// refused tells of a refusal. Those that time brings about are a client's daily
// bread: it asks for a new capability.
func (g *guard) refused(ctx context.Context, call string, client, data uint64, err error) {
	var reason capability.Refusal
	if !errors.As(err, &reason) {
		return // no keys yet
	}
	g.metrics.refused.WithLabelValues(reason.String()).Inc()
	if passing(err) || reason == capability.FutureKey {
		return
	}
	from := service.IdentityOf(ctx)
	g.warned.Do(func() {
		g.logger.Warn("a request was refused for its capability", "reason", reason.String(), "call", call,
			"client", base.ClientID(client), "data_id", data, "host", from.Host, "peer", from.Peer)
	})
}

// inspector refuses a call beside the streams that carries no capability to
// inspect.
func (g *guard) inspector(ctx context.Context, call string) error {
	var token []byte
	md, _ := metadata.FromIncomingContext(ctx)
	if v := md.Get(wire.MetadataCapability); len(v) > 0 {
		token = []byte(v[0])
	}
	err := g.check(token, 0, 0, capability.Inspect)
	if err != nil {
		g.refused(ctx, call, uint64(service.IdentityOf(ctx).Client), 0, err)
	}
	return err
}
