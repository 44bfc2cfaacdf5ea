package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"
)

// Recorder takes operations down as they return. Its methods are safe for concurrent
// use.
type Recorder struct {
	start time.Time

	mu     sync.Mutex
	h      History
	file   *os.File // nil: kept in memory alone
	out    *bufio.Writer
	failed error
}

// NewRecorder begins a history. With a name it is written to that file, which must
// not exist.
func NewRecorder(h Header, name string) (*Recorder, error) {
	h.Format = format
	r := &Recorder{start: time.Now(), h: History{Header: h}}
	if name == "" {
		return r, nil
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("--record %s exists already: choose another name", name)
	}
	if err != nil {
		return nil, fmt.Errorf("--record: %w", err)
	}
	r.file, r.out = f, bufio.NewWriterSize(f, 64<<10)
	r.writeLocked(h)
	return r, nil
}

// Do takes the times around call, which does the operation, fills in what it answered
// and returns how it ended: done, a refusal by its errno's name, or unknown.
func (r *Recorder) Do(op *Op, call func() (outcome string)) {
	op.Call = r.Now()
	op.Outcome = call()
	op.Return = r.Now()
	r.Add(op)
}

// Now is the time of the history's clock.
func (r *Recorder) Now() int64 { return int64(time.Since(r.start)) }

// Ops returns what was recorded so far.
func (r *Recorder) Ops() []*Op {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.h.Ops)
}

// Add takes down an operation whose times are known.
func (r *Recorder) Add(op *Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Ops = append(r.h.Ops, op)
	r.writeLocked(op)
}

func (r *Recorder) writeLocked(v any) {
	if r.out == nil || r.failed != nil {
		return
	}
	b, err := json.Marshal(v)
	if err == nil {
		_, err = r.out.Write(append(b, '\n'))
	}
	r.failed = err
}

// End writes out what is buffered and returns the history, of which no more may be
// recorded.
func (r *Recorder) End() (*History, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.out == nil {
		return &r.h, nil
	}
	return &r.h, errors.Join(r.failed, r.out.Flush(), r.file.Close())
}

// Read reads a history. A last line without an end was cut off when the program that
// wrote it was killed, and is left out.
func Read(in io.Reader) (*History, error) {
	lines := bufio.NewReaderSize(in, 1<<20)
	h := &History{}
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		switch {
		case err == io.EOF && number == 1:
			return nil, errors.New("this is no history of loadtest")
		case err == io.EOF:
			return h, nil
		case err != nil:
			return nil, err
		}
		if number == 1 {
			if err := h.Header.parse(line); err != nil {
				return nil, err
			}
			continue
		}
		op := &Op{}
		if err := json.Unmarshal(line, op); err != nil {
			return nil, fmt.Errorf("history, line %d: %w", number, err)
		}
		if op.Kind == "" || op.Return < op.Call {
			return nil, fmt.Errorf("history, line %d: this is no operation", number)
		}
		h.Ops = append(h.Ops, op)
	}
}

func (h *Header) parse(line []byte) error {
	if err := json.Unmarshal(line, h); err != nil || h.Format == 0 {
		return errors.New("this is no history of loadtest")
	}
	if h.Format > format {
		return fmt.Errorf("the history's format %d is newer than this program's (%d)", h.Format, format)
	}
	return nil
}

// Recount adds what read finds after the end of a history that was read: its times go on
// from the last one.
func (h *History) Recount(read func(now func() int64, add func(*Op)) error) error {
	var last int64
	for _, op := range h.Ops {
		last = max(last, op.Return)
	}
	r := &Recorder{start: time.Now()}
	err := read(func() int64 { return last + 1 + r.Now() }, r.Add)
	h.Ops = append(h.Ops, r.h.Ops...)
	return err
}
