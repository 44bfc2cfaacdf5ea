package chunkstore

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
)

// DefaultTombstoneTTL is longer than any capability lives (PROTOCOLS H3).
const DefaultTombstoneTTL = 24 * time.Hour

// Options of a Store. Zero values are defaults.
type Options struct {
	FS           FS               // nil: OS
	Cluster      string           // refuse a directory of another; "" accepts any
	MaxOpenFiles int              // 0: 1024
	Boot         string           // what tells the machine's boots apart; "": BootID()
	Now          func() time.Time // nil: time.Now
	TombstoneTTL time.Duration    // 0: DefaultTombstoneTTL
	// ReserveBytes of the disk are not written: 0: 1 % of it, at most 64 MiB.
	ReserveBytes uint64
	Logger       *slog.Logger
}

// Store is an open directory.
type Store struct {
	dir      string
	fs       FS
	options  Options
	format   int // of the directory; does not change while it is open
	logger   *slog.Logger
	lock     *os.File
	inflight *inflight
	deleted  *tombstones
	suspect  atomic.Bool
	lost     atomic.Bool
	usage    atomic.Pointer[usage]
	open     atomic.Int64   // files
	wg       sync.WaitGroup // flushClosed
	early    chan early
	endEarly func() // stops runEarly and waits for it

	mu       sync.Mutex
	identity Identity
	columns  map[Key]*column
	idle     *list.List // *column with refs == 0 and a file, least recently used first
	unsynced int        // columns closed since the last flushClosed
	flushing bool
	newDirs  map[string]bool // directories whose own entries may not be durable
	closed   bool
}

// Open opens the directory, and makes it if it is missing. It completes what a
// crash left unfinished. Errors are one clear line.
func Open(dir string, options Options) (*Store, error) {
	options = withDefaults(options)
	dir = filepath.Clean(dir) // as the parents of what is below it are
	s := &Store{
		dir: dir, fs: options.FS, options: options, logger: options.Logger,
		columns: map[Key]*column{}, idle: list.New(), newDirs: map[string]bool{}, early: make(chan early, earlyQueued),
	}
	if err := s.fs.MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := s.flock(); err != nil {
		return nil, err
	}
	if err := s.start(); err != nil {
		return nil, errors.Join(fmt.Errorf("data directory %s: %w", dir, err), s.release())
	}
	ctx, cancel := context.WithCancel(background())
	var running sync.WaitGroup
	running.Go(func() { s.runEarly(ctx) })
	s.endEarly = func() { cancel(); running.Wait() }
	return s, nil
}

func withDefaults(o Options) Options {
	if o.FS == nil {
		o.FS = OS{}
	}
	if o.MaxOpenFiles == 0 {
		o.MaxOpenFiles = 1024
	}
	if o.Boot == "" {
		o.Boot = BootID()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.TombstoneTTL == 0 {
		o.TombstoneTTL = DefaultTombstoneTTL
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

func (s *Store) flock() error {
	f, err := os.OpenFile(filepath.Join(s.dir, "LOCK"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return errors.Join(fmt.Errorf("data directory %s is in use by another process", s.dir), f.Close())
	}
	s.lock = f
	return nil
}

// release gives back what Open took.
func (s *Store) release() error {
	var errs []error
	if s.endEarly != nil {
		s.endEarly()
	}
	if s.deleted != nil {
		errs = append(errs, s.deleted.close())
	}
	if s.inflight != nil {
		errs = append(errs, s.inflight.close())
	}
	return errors.Join(append(errs, s.lock.Close())...)
}

func (s *Store) start() error {
	previous, known, err := s.loadIdentity()
	if err != nil {
		return err
	}
	if c := s.options.Cluster; known && c != "" && previous.Cluster != "" && c != previous.Cluster {
		return fserr.New(fserr.WrongCluster, "open", fmt.Errorf("belongs to cluster %s, not %s", previous.Cluster, c))
	}
	s.identity = previous
	if !known {
		s.identity.Format = Format
	}
	s.format = s.identity.Format
	s.identity.Incarnation++
	s.identity.Clean = false
	crashed := known && !previous.Clean
	rebooted := crashed && (previous.Boot != s.options.Boot || s.options.Boot == "")
	s.identity.Suspect = previous.Suspect || rebooted
	s.suspect.Store(s.identity.Suspect)
	// The boot stays that of the crash until somebody who knows the writers has
	// recorded it: an end before that must not hide it.
	s.lost.Store(rebooted && previous.Cluster != "")
	if !s.lost.Load() {
		s.identity.Boot = s.options.Boot
	}
	if err := s.storeIdentity(s.identity); err != nil {
		return err
	}
	var left []slot
	if s.inflight, left, err = openInflight(s.dir); err != nil {
		return err
	}
	if s.deleted, err = openTombstones(s); err != nil {
		return err
	}
	if crashed {
		if err := s.afterCrash(left); err != nil {
			return err
		}
	}
	s.inflight.reset()
	return nil
}

// afterCrash sets right what writes in flight left, and removes columns whose
// deletion was logged and not done.
func (s *Store) afterCrash(left []slot) error {
	for _, l := range left {
		if err := s.settle(l.key, l.first, l.first+l.blocks); err != nil {
			s.logger.Error("a write that a crash interrupted could not be set right", "column", l.key.String(), "error", err)
		}
	}
	for key := range s.deleted.groups() {
		if err := s.sweep(key.pool, key.pg); err != nil {
			s.logger.Error("deleted columns could not be removed", "pool", key.pool, "pg", key.pg, "error", err)
		}
	}
	// What the process before wrote and did not sync is in the kernel's memory;
	// nobody would know later.
	return s.fs.SyncAll(s.dir)
}

// Identity returns whose directory this is.
func (s *Store) Identity() Identity {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.identity
}

// Join makes the directory belong to a cluster's server, durably. It must not
// belong to another.
func (s *Store) Join(cluster string, server base.NodeID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.identity.Cluster != "" && (s.identity.Cluster != cluster || s.identity.Server != uint64(server)) {
		return fserr.New(fserr.WrongCluster, "join", fmt.Errorf("data directory %s belongs to server %d of cluster %s, not to server %d of cluster %s",
			s.dir, s.identity.Server, s.identity.Cluster, server, cluster))
	}
	if s.identity.Cluster == cluster {
		return nil
	}
	next := s.identity
	next.Cluster, next.Server = cluster, uint64(server)
	if err := s.storeIdentity(next); err != nil {
		return err
	}
	s.identity = next
	return nil
}

// Suspect reports whether the machine crashed since the contents were last known
// to be whole: checksums are then not what a replica can be compared by.
func (s *Store) Suspect() bool { return s.suspect.Load() }

// LostUnsynced reports whether the machine crashed while the directory was open
// and LossRecorded was not called since: what was written and not synced before
// may be gone. The end of a process alone loses nothing.
func (s *Store) LostUnsynced() bool { return s.lost.Load() }

// LossRecorded ends LostUnsynced, durably: whoever relied on what was not synced
// can learn of it.
func (s *Store) LossRecorded() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.lost.Load() {
		return nil
	}
	next := s.identity
	next.Boot = s.options.Boot
	if err := s.storeIdentity(next); err != nil {
		return err
	}
	s.identity = next
	s.lost.Store(false)
	return nil
}

// Trust ends Suspect, after all contents were compared with their replicas.
func (s *Store) Trust() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.identity.Suspect {
		return nil
	}
	next := s.identity
	next.Suspect = false
	if err := s.storeIdentity(next); err != nil {
		return err
	}
	s.identity = next
	s.suspect.Store(false)
	return nil
}

// Close syncs all, marks the directory clean and gives it up. The caller has
// ended all other calls.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	columns := make([]*column, 0, len(s.columns))
	for _, c := range s.columns {
		columns = append(columns, c)
	}
	s.mu.Unlock()
	s.wg.Wait()
	s.endEarly()
	errs := []error{s.fs.SyncAll(s.dir)}
	for _, c := range columns {
		errs = append(errs, c.syncError)
		errs = append(errs, s.closeFile(c))
	}
	if err := errors.Join(errs...); err != nil {
		return errors.Join(err, s.release())
	}
	s.mu.Lock()
	s.identity.Clean = !s.lost.Load()
	id := s.identity
	s.mu.Unlock()
	return errors.Join(s.storeIdentity(id), s.release())
}

// background is for locks that are held for the time of a disk access only.
func background() context.Context { return context.Background() }
