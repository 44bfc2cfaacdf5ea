package mds

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/canopyfs/canopy/internal/base"
)

// The data directory:
//
//	LOCK        held by the running process (flock)
//	node.json   whose directory it is, and its incarnation (PROTOCOLS A6)
//	store/      the state of all shard replicas
//	raft/       the Raft log
const (
	lockFile  = "LOCK"
	nodeFile  = "node.json"
	storeDir  = "store"
	raftDir   = "raft"
	dirFormat = 1
)

// nodeRecord is node.json. The cluster is asked whether Incarnation is the last
// one that it saw; Store ties the store's own count of opens to it, so that an
// old store in a current directory is noticed too.
type nodeRecord struct {
	Format      int         `json:"format"`
	Cluster     string      `json:"cluster"`
	Node        base.NodeID `json:"node"`
	RaftAddress string      `json:"raft_address"`
	Incarnation uint64      `json:"incarnation"`
	Store       uint64      `json:"store_incarnation"`
	Damaged     string      `json:"damaged,omitempty"` // why it must be rebuilt
}

// dataDir is a locked data directory.
type dataDir struct {
	path string
	lock *os.File
	node nodeRecord // zero for a new directory
}

// openDataDir creates the directory if needed and locks it.
func openDataDir(path string) (*dataDir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("mds: data directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("mds: data directory: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("mds: data directory %s is in use by another process", path)
		}
		return nil, fmt.Errorf("mds: data directory %s: lock: %w", path, err)
	}
	d := &dataDir{path: path, lock: lock}
	if err := d.load(); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

func (d *dataDir) load() error {
	b, err := os.ReadFile(filepath.Join(d.path, nodeFile))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(filepath.Join(d.path, storeDir)); err == nil {
			return fmt.Errorf("mds: data directory %s has a %s but no %s: it is no data directory of this program, or damaged", d.path, storeDir, nodeFile)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("mds: data directory: %w", err)
	}
	if err := json.Unmarshal(b, &d.node); err != nil || d.node.Node == 0 {
		return fmt.Errorf("mds: %s is damaged: %v", filepath.Join(d.path, nodeFile), err)
	}
	if d.node.Format > dirFormat {
		return fmt.Errorf("mds: data directory %s has format %d, this program knows up to %d: run a newer release", d.path, d.node.Format, dirFormat)
	}
	return nil
}

// save makes d.node durable.
func (d *dataDir) save() error {
	d.node.Format = dirFormat
	b, err := json.MarshalIndent(d.node, "", "  ")
	if err != nil {
		return err
	}
	name := filepath.Join(d.path, nodeFile)
	if err := writeDurably(name, append(b, '\n')); err != nil {
		return fmt.Errorf("mds: data directory: %w", err)
	}
	return nil
}

// writeDurably replaces a file's contents, all or nothing.
func writeDurably(name string, contents []byte) error {
	temporary := name + ".tmp"
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(contents)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(temporary, name)
	}
	if err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// discard removes the state, but not whose directory it is.
func (d *dataDir) discard() error {
	for _, sub := range []string{storeDir, raftDir} {
		if err := os.RemoveAll(filepath.Join(d.path, sub)); err != nil {
			return fmt.Errorf("mds: discard the state: %w", err)
		}
	}
	d.node.Store, d.node.Damaged = 0, ""
	return nil
}

// checkStore compares the store's count of opens, which includes this one, with
// the last one noted. A store that was restored from a copy is refused from then
// on (PROTOCOLS A6).
func (d *dataDir) checkStore(incarnation uint64) error {
	if incarnation <= d.node.Store {
		d.node.Damaged = fmt.Sprintf("the store was opened %d times, but %d opens were noted: it was restored from a copy", incarnation, d.node.Store)
		if err := d.save(); err != nil {
			return err
		}
		return d.damaged()
	}
	d.node.Store = incarnation
	return d.save()
}

// damaged returns the error of a directory that must be rebuilt, if it must.
func (d *dataDir) damaged() error {
	if d.node.Damaged == "" {
		return nil
	}
	return fmt.Errorf("mds: data directory %s: %s; %s", d.path, d.node.Damaged, d.rebuildHint(d.node.Node))
}

// rebuildHint says which command repairs a node whose state cannot be used.
func (d *dataDir) rebuildHint(id base.NodeID) string {
	return fmt.Sprintf("to discard it and copy the state from the other replicas run: mds --data %s --node %v --rebuild (with the node's other flags)", d.path, id)
}

// close unlocks the directory.
func (d *dataDir) close() { d.lock.Close() }
