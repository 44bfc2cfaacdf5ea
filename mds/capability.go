package mds

import (
	"context"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/capability"
	"github.com/canopyfs/canopy/internal/fserr"
)

// followKeys keeps the keys that capabilities are signed with (PROTOCOLS J4), until
// ctx is done.
func (s *Server) followKeys(ctx context.Context) {
	changes, cancel := s.place.Subscribe()
	defer cancel()
	for {
		s.takeKeys(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-changes:
		}
	}
}

// takeKeys takes the newest keys that the placement store knows.
func (s *Server) takeKeys(now time.Time) {
	message := s.place.Capabilities().Value
	if message == nil || message.Version == s.signer.Version() {
		return
	}
	ring, err := capability.NewKeyring(message)
	if err != nil {
		s.log.Error("the keys of capabilities cannot be used", "error", err)
		return
	}
	s.signer.Update(ring, now)
}

// grantable is what a client is ever granted.
const grantable = capability.Read | capability.Write

// grant returns what allows a client to access a regular file's bytes; nil while
// there are no keys: the client asks again.
func (s *Server) grant(client base.ClientID, ino, data uint64, rights uint32, now time.Time) []byte {
	if data == 0 {
		data = ino
	}
	t, ok := s.signer.Sign(uint64(client), data, capability.Rights(rights)&grantable, now)
	if !ok {
		return nil
	}
	return t[:]
}

// grantRead completes the answer to a read that says what may be done with a
// file's bytes.
func (st *opStream) grantRead(result *canopyv1.Result, now time.Time) {
	if result.DataRights != 0 && result.Error == 0 {
		result.Capability = st.server.grant(st.client, result.Attr.GetIno(), result.Attr.GetDataId(), result.DataRights, now)
	}
}

// Field numbers in metadata.proto.
const (
	resultAttr       = 3
	resultExisted    = 12
	resultCapability = 40
	attrIno          = 1
	attrDataID       = 17
)

// grantCreated completes the encoded result of a create: who makes a file may do
// all with its bytes, whatever the mode. It is a field more behind what apply made,
// which is the session's too and is not changed. For a file that was there, clients
// have what the lookup before brought, or ask.
func (st *opStream) grantCreated(encoded []byte) []byte {
	var ino, data uint64
	existed := false
	fields(encoded, func(number protowire.Number, value uint64, body []byte) {
		switch number {
		case resultAttr:
			fields(body, func(number protowire.Number, value uint64, _ []byte) {
				switch number {
				case attrIno:
					ino = value
				case attrDataID:
					data = value
				}
			})
		case resultExisted:
			existed = value != 0
		}
	})
	if existed || ino == 0 {
		return encoded
	}
	token := st.server.grant(st.client, ino, data, uint32(grantable), time.Now())
	if token == nil {
		return encoded
	}
	out := make([]byte, len(encoded), len(encoded)+len(token)+4)
	copy(out, encoded)
	return protowire.AppendBytes(protowire.AppendTag(out, resultCapability, protowire.BytesType), token)
}

// fields calls visit for the numbers and messages in an encoded message, up to
// where it cannot be decoded.
func fields(b []byte, visit func(number protowire.Number, value uint64, body []byte)) {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return
		}
		b = b[n:]
		var value uint64
		var body []byte
		switch kind {
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			body, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return
		}
		visit(number, value, body)
		b = b[n:]
	}
}

// GrantInspection answers what allows an operator's tool to ask data servers what
// they hold.
func (a *adminService) GrantInspection(context.Context, *canopyv1.GrantInspectionRequest) (*canopyv1.GrantInspectionResponse, error) {
	t, ok := a.server.signer.Service(capability.Inspect, time.Now())
	if !ok {
		return nil, errNoKeys
	}
	return &canopyv1.GrantInspectionResponse{Capability: t[:]}, nil
}

var errNoKeys = fserr.New(fserr.NotReady, "capabilities", nil)

// ownAccess is what the node itself shows data servers.
type ownAccess struct{ server *Server }

// Capability implements data.Access. A refused one is followed by another when the
// node knows more; its caller waits meanwhile.
func (o ownAccess) Capability(context.Context, bool, []byte) ([]byte, error) {
	t, ok := o.server.signer.Service(capability.Purge, time.Now())
	if !ok {
		return nil, errNoKeys
	}
	return t[:], nil
}
