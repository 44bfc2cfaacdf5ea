package fserr

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/canopyfs/canopy/internal/base"
)

// Error is a failure of one operation: its kind, what was asked, of what, and
// the cause.
type Error struct {
	Kind Kind
	Op   string   // the operation, e.g. "rename"
	Path string   // path or name, if known
	Ino  base.Ino // inode, if known
	Err  error    // cause, may be nil
}

// New returns an *Error of the kind for op, with a cause that may be nil.
func New(kind Kind, op string, cause error) *Error { return &Error{Kind: kind, Op: op, Err: cause} }

// Error returns "op path: kind: cause".
func (e *Error) Error() string {
	var b strings.Builder
	if e.Op != "" {
		b.WriteString(e.Op)
		b.WriteByte(' ')
	}
	switch {
	case e.Path != "":
		b.WriteString(e.Path)
	case e.Ino != 0:
		b.WriteString("inode " + e.Ino.String())
	}
	if b.Len() > 0 {
		s := strings.TrimSuffix(b.String(), " ")
		b.Reset()
		b.WriteString(s + ": ")
	}
	b.WriteString(e.Kind.Error())
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is makes errors.Is(err, kind) true for the error's kind, and for the io/fs
// and syscall errors that mean the same.
func (e *Error) Is(target error) bool {
	switch t := target.(type) {
	case Kind:
		return e.Kind == t
	case syscall.Errno:
		return e.Kind.Errno() == t
	}
	return e.Kind.Errno().Is(target)
}

// Is makes errors.Is(kind, fs.ErrNotExist) and the like work on a bare Kind.
func (k Kind) Is(target error) bool {
	if t, ok := target.(syscall.Errno); ok {
		return k.Errno() == t
	}
	return k != OK && k.Errno().Is(target)
}

// KindOf returns the kind of err: OK for nil, and the nearest kind for errors
// of other packages (context, io/fs, syscall, gRPC status).
func KindOf(err error) Kind {
	if err == nil {
		return OK
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	var k Kind
	if errors.As(err, &k) {
		return k
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return TimedOut
	case errors.Is(err, context.Canceled):
		return Interrupted
	case errors.Is(err, fs.ErrNotExist):
		return NotFound
	case errors.Is(err, fs.ErrExist):
		return Exist
	case errors.Is(err, fs.ErrPermission):
		return Permission
	case errors.Is(err, syscall.ENOSPC):
		return NoSpace
	case errors.Is(err, syscall.EFBIG):
		return FileTooBig
	case errors.Is(err, syscall.EIO):
		return IO
	}
	if s, ok := status.FromError(err); ok {
		for _, d := range s.Details() {
			if kind, ok := d.(*wrapperspb.UInt32Value); ok {
				return Kind(kind.Value)
			}
		}
		return kindOfCode(s.Code())
	}
	return Internal
}

func kindOfCode(c codes.Code) Kind {
	switch c {
	case codes.OK:
		return OK
	case codes.Canceled:
		return Interrupted
	case codes.DeadlineExceeded:
		return TimedOut
	case codes.Unavailable:
		return NotReady
	case codes.ResourceExhausted:
		return Busy
	case codes.InvalidArgument:
		return Malformed
	case codes.NotFound:
		return NotFound
	case codes.PermissionDenied, codes.Unauthenticated:
		return Permission
	case codes.Unimplemented:
		return NotSupported
	}
	return Internal
}

// Errno returns what a mount answers for err: 0 for nil.
func Errno(err error) syscall.Errno { return KindOf(err).Errno() }

// Status returns err as a gRPC status error, nil for nil. The kind travels as a
// detail, since several kinds share a code; KindOf finds it at the other end.
func Status(err error) error {
	if err == nil {
		return nil
	}
	kind := KindOf(err)
	s := status.New(kind.Code(), err.Error())
	if detailed, dErr := s.WithDetails(wrapperspb.UInt32(uint32(kind))); dErr == nil {
		s = detailed
	}
	return s.Err()
}
