package meta

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// The messages between a run and a worker process, one JSON value per line.
// The run sends hello and then steps; the process answers hello with ready,
// and each step with any number of counts and then a result. The end of its
// input ends the process.
type (
	request struct {
		Hello *hello `json:"hello,omitempty"`
		Step  *step  `json:"step,omitempty"`
	}
	hello struct {
		Config Config `json:"config"`
		First  int    `json:"first"` // number of its first worker
	}
	answer struct {
		Ready  bool        `json:"ready,omitempty"`
		Count  int64       `json:"count,omitempty"`
		Result *stepResult `json:"result,omitempty"`
		Error  string      `json:"error,omitempty"`
	}
)

const (
	countInterval = 250 * time.Millisecond
	closeTimeout  = 10 * time.Second
)

// Child is what a worker process runs: it serves one run over in and out until
// in ends.
func Child(ctx context.Context, open Opener, in io.Reader, out io.Writer) error {
	dec := json.NewDecoder(in)
	p := &childPipe{enc: json.NewEncoder(out)}
	var first request
	if err := dec.Decode(&first); err != nil || first.Hello == nil {
		return errors.New("a worker process is started by a run, not by hand")
	}
	cfg := first.Hello.Config
	c, err := newCrew(ctx, &cfg, open, first.Hello.First, func(n int64) { p.counted.Add(n) })
	if err != nil {
		return errors.Join(p.send(answer{Error: err.Error()}), err)
	}
	if err := p.send(answer{Ready: true}); err != nil {
		return err
	}
	for {
		var q request
		if err := dec.Decode(&q); err != nil || q.Step == nil {
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
			defer cancel()
			return c.close(closing)
		}
		if err := p.serve(ctx, c, *q.Step); err != nil {
			return err
		}
	}
}

// childPipe writes answers of one process.
type childPipe struct {
	mu      sync.Mutex
	enc     *json.Encoder
	counted atomic.Int64
}

func (p *childPipe) send(a answer) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.enc.Encode(a)
}

func (p *childPipe) serve(ctx context.Context, c *crew, s step) error {
	stop := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		t := time.NewTicker(countInterval)
		defer t.Stop()
		for {
			select {
			case <-stop:
				return
			case <-t.C:
				if n := p.counted.Swap(0); n > 0 {
					_ = p.send(answer{Count: n}) // a broken pipe shows when the result is sent
				}
			}
		}
	})
	r, err := c.run(ctx, s)
	close(stop)
	wait.Wait()
	if err != nil {
		return errors.Join(p.send(answer{Error: err.Error()}), err)
	}
	return p.send(answer{Count: p.counted.Swap(0), Result: r})
}

// Spawn returns the command that runs Child with its standard input and output.
type Spawn func(ctx context.Context) *exec.Cmd

// process is the run's end of one worker process.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	enc *json.Encoder
	dec *json.Decoder
}

// fleet is the crews in processes of their own.
type fleet struct {
	list  []*process
	count func(int64)
}

func startFleet(ctx context.Context, cfg *Config, spawn Spawn, count func(int64)) (*fleet, error) {
	f := &fleet{count: count}
	for i := range cfg.Processes {
		p, err := startProcess(ctx, spawn)
		if err == nil {
			f.list = append(f.list, p)
			err = p.enc.Encode(request{Hello: &hello{Config: *cfg, First: i * cfg.Workers}})
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("worker process %d: %w", i, err), f.close(ctx))
		}
	}
	for i, p := range f.list {
		a, err := p.receive(count)
		if err == nil && !a.Ready {
			err = errors.New("unexpected answer")
		}
		if err != nil {
			_ = f.close(ctx) // the cause is what its worker said
			return nil, fmt.Errorf("worker process %d: %w", i, err)
		}
	}
	return f, nil
}

func startProcess(ctx context.Context, spawn Spawn) (*process, error) {
	cmd := spawn(ctx)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &process{
		cmd: cmd, in: in, enc: json.NewEncoder(in),
		dec: json.NewDecoder(bufio.NewReaderSize(out, 1<<16)),
	}, nil
}

// receive returns the next answer that is no mere count.
func (p *process) receive(count func(int64)) (answer, error) {
	for {
		var a answer
		if err := p.dec.Decode(&a); err != nil {
			return a, fmt.Errorf("it ended: %w", err)
		}
		if a.Error != "" {
			return a, errors.New(a.Error)
		}
		if a.Count != 0 {
			count(a.Count)
		}
		if a.Ready || a.Result != nil {
			return a, nil
		}
	}
}

// run does one step in all processes.
func (f *fleet) run(ctx context.Context, s step) (*stepResult, error) {
	results := make([]*stepResult, len(f.list))
	var g errgroup.Group
	for i, p := range f.list {
		g.Go(func() error {
			if err := p.enc.Encode(request{Step: &s}); err != nil {
				return fmt.Errorf("worker process %d: %w", i, err)
			}
			a, err := p.receive(f.count)
			if err != nil {
				return fmt.Errorf("worker process %d: %w", i, err)
			}
			results[i] = a.Result
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, errors.Join(ctx.Err(), err)
	}
	total := &stepResult{}
	for _, r := range results {
		total.merge(r)
	}
	return total, ctx.Err()
}

// close ends the processes and waits for them.
func (f *fleet) close(context.Context) error {
	var errs []error
	for _, p := range f.list {
		_ = p.in.Close() // tells it to end
	}
	for _, p := range f.list {
		if err := p.cmd.Wait(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
