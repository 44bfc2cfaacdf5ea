package fserr

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"
)

func TestEveryKindHasARow(t *testing.T) {
	for k, r := range table {
		if r.name == "" || (k != OK && r.errno == 0) {
			t.Errorf("kind %d has no name or errno", uint32(k))
		}
	}
}

func TestErrorsIs(t *testing.T) {
	err := fmt.Errorf("outer: %w", &Error{Kind: NotFound, Op: "lookup", Path: "a"})
	for _, target := range []error{NotFound, fs.ErrNotExist, syscall.ENOENT} {
		if !errors.Is(err, target) {
			t.Errorf("errors.Is(%v, %v) = false", err, target)
		}
	}
	if errors.Is(err, Exist) || errors.Is(err, fs.ErrExist) {
		t.Error("a NotFound passes as Exist")
	}
	if got := err.Error(); got != "outer: lookup a: no such file or directory" {
		t.Errorf("text: %q", got)
	}
}

func TestKindOf(t *testing.T) {
	for err, want := range map[error]Kind{
		context.DeadlineExceeded: TimedOut,
		syscall.ENOSPC:           NoSpace,
		fs.ErrNotExist:           NotFound,
		Status(NotFound):         NotFound,
		Status(WrongCluster):     WrongCluster,
		errors.New("x"):          Internal,
	} {
		if got := KindOf(err); got != want {
			t.Errorf("KindOf(%v) = %v, want %v", err, got, want)
		}
	}
	if Errno(nil) != 0 || KindOf(nil) != OK {
		t.Error("nil is not OK")
	}
}
