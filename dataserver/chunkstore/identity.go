package chunkstore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Identity says whose directory this is.
type Identity struct {
	Format  int    `json:"format"`
	Cluster string `json:"cluster,omitempty"` // "" until the server joined one
	Server  uint64 `json:"server,omitempty"`
	// Incarnation grows with every opening (PROTOCOLS A6).
	Incarnation uint64 `json:"incarnation"`
	// Boot of the machine when it was opened last; of the one that crashed as long
	// as LostUnsynced.
	Boot  string `json:"boot"`
	Clean bool   `json:"clean"` // closed properly since
	// Suspect holds from an unclean end with the machine until Trust.
	Suspect bool `json:"suspect,omitempty"`
}

const identityName = "FORMAT"

// decodeIdentity reads the file's contents. Its errors are one line.
func decodeIdentity(b []byte) (Identity, error) {
	var version struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(b, &version); err != nil {
		return Identity{}, fmt.Errorf("%s is damaged: %w", identityName, err)
	}
	if version.Format > Format {
		return Identity{}, fmt.Errorf("the directory has format %d, this program knows up to %d: use a newer program", version.Format, Format)
	}
	var id Identity
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&id); err != nil {
		return Identity{}, fmt.Errorf("%s is damaged: %w", identityName, err)
	}
	if id.Format < 1 || id.Incarnation == 0 || (id.Cluster == "") != (id.Server == 0) {
		return Identity{}, fmt.Errorf("%s is damaged: format %d, cluster %q, server %d, incarnation %d", identityName, id.Format, id.Cluster, id.Server, id.Incarnation)
	}
	return id, nil
}

// loadIdentity returns ok false for a directory that is new.
func (s *Store) loadIdentity() (id Identity, ok bool, err error) {
	b, err := readAll(s.fs, filepath.Join(s.dir, identityName))
	if errors.Is(err, fs.ErrNotExist) {
		names, err := s.fs.ReadDir(s.dir)
		if err != nil {
			return Identity{}, false, err
		}
		for _, n := range names {
			if n == "pgs" {
				return Identity{}, false, fmt.Errorf("%s has columns but no %s: not a directory of this program, or damaged", s.dir, identityName)
			}
		}
		return Identity{}, false, nil
	}
	if err != nil {
		return Identity{}, false, err
	}
	id, err = decodeIdentity(b)
	return id, err == nil, err
}

// storeIdentity replaces the file, durably.
func (s *Store) storeIdentity(id Identity) error {
	b, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return err
	}
	return replaceFile(s.fs, s.dir, identityName, append(b, '\n'))
}

// replaceFile writes a file as a whole: old or new after a crash.
func replaceFile(fsys FS, dir, name string, contents []byte) error {
	temporary := filepath.Join(dir, name+".new")
	f, err := fsys.OpenFile(temporary, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(contents, 0); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fsys.Rename(temporary, filepath.Join(dir, name)); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

func readAll(fsys FS, name string) ([]byte, error) {
	f, err := fsys.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	size, err := f.Size()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	b := make([]byte, size)
	n, err := f.ReadAt(b, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b[:n], errors.Join(err, f.Close())
}

// BootID returns what tells the machine's boots apart.
func BootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
