package raftgroup

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// entry is a canopyv1.RaftEntry as this package works with it. Decoded commands
// are parts of the encoding. The wire form is written by hand, so that commands
// are copied once on the way out and not at all on the way in; a test holds it
// equal to the generated code.
type entry struct {
	epoch    base.LeaseEpoch
	number   uint64
	timeNS   int64
	commands [][]byte
	checksum uint64 // token
	lease    leaseCommand
}

type leaseCommand struct {
	action      canopyv1.LeaseAction
	node        base.NodeID
	replica     base.ReplicaID
	seenRenewal uint64
	durationMS  uint64
	instance    uint64
}

// The field numbers of RaftEntry and LeaseCommand in replication.proto.
const (
	fieldEpoch    = 1
	fieldNumber   = 2
	fieldTime     = 3
	fieldCommands = 4
	fieldLease    = 5
	fieldChecksum = 6

	fieldAction   = 1
	fieldNode     = 2
	fieldReplica  = 3
	fieldSeen     = 4
	fieldDuration = 5
	fieldInstance = 6
)

func appendVarintField(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

// appendEntry appends e's encoding to b.
func appendEntry(b []byte, e *entry) []byte {
	b = appendVarintField(b, fieldEpoch, uint64(e.epoch))
	b = appendVarintField(b, fieldNumber, e.number)
	if e.timeNS != 0 {
		b = protowire.AppendFixed64(protowire.AppendTag(b, fieldTime, protowire.Fixed64Type), uint64(e.timeNS))
	}
	for _, c := range e.commands {
		b = protowire.AppendBytes(protowire.AppendTag(b, fieldCommands, protowire.BytesType), c)
	}
	if l := e.lease; l.action != canopyv1.LeaseAction_LEASE_NONE {
		var buf [64]byte
		m := appendVarintField(buf[:0], fieldAction, uint64(l.action))
		m = appendVarintField(m, fieldNode, uint64(l.node))
		m = appendVarintField(m, fieldReplica, uint64(l.replica))
		m = appendVarintField(m, fieldSeen, l.seenRenewal)
		m = appendVarintField(m, fieldDuration, l.durationMS)
		m = appendVarintField(m, fieldInstance, l.instance)
		b = protowire.AppendBytes(protowire.AppendTag(b, fieldLease, protowire.BytesType), m)
	}
	return appendVarintField(b, fieldChecksum, e.checksum)
}

var errMalformed = errors.New("malformed log entry")

// decodeEntry reads an entry. Its commands are parts of b. Fields that a newer
// binary added are skipped.
func decodeEntry(b []byte, e *entry) error {
	commands := e.commands[:0]
	*e = entry{}
	err := fields(b, func(num protowire.Number, typ protowire.Type, v uint64, raw []byte) error {
		switch {
		case num == fieldEpoch && typ == protowire.VarintType:
			e.epoch = base.LeaseEpoch(v)
		case num == fieldNumber && typ == protowire.VarintType:
			e.number = v
		case num == fieldTime && typ == protowire.Fixed64Type:
			e.timeNS = int64(v)
		case num == fieldCommands && typ == protowire.BytesType:
			commands = append(commands, raw)
		case num == fieldLease && typ == protowire.BytesType:
			return decodeLeaseCommand(raw, &e.lease)
		case num == fieldChecksum && typ == protowire.VarintType:
			e.checksum = v
		}
		return nil
	})
	e.commands = commands
	return err
}

func decodeLeaseCommand(b []byte, l *leaseCommand) error {
	return fields(b, func(num protowire.Number, typ protowire.Type, v uint64, _ []byte) error {
		if typ != protowire.VarintType {
			return nil
		}
		switch num {
		case fieldAction:
			l.action = canopyv1.LeaseAction(v)
		case fieldNode:
			l.node = base.NodeID(v)
		case fieldReplica:
			l.replica = base.ReplicaID(v)
		case fieldSeen:
			l.seenRenewal = v
		case fieldDuration:
			l.durationMS = v
		case fieldInstance:
			l.instance = v
		}
		return nil
	})
}

// fields calls fn for each field of a message: v is set for numbers, raw for
// bytes.
func fields(b []byte, fn func(num protowire.Number, typ protowire.Type, v uint64, raw []byte) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("%w: %w", errMalformed, protowire.ParseError(n))
		}
		b = b[n:]
		var v uint64
		var raw []byte
		switch typ {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			v, n = protowire.ConsumeFixed64(b)
		case protowire.BytesType:
			raw, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return fmt.Errorf("%w: %w", errMalformed, protowire.ParseError(n))
		}
		if err := fn(num, typ, v, raw); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
