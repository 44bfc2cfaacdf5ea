package raftgroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/cespare/xxhash/v2"
)

// tan's log format, that of LevelDB: blocks of 32 KiB with chunks that do not
// cross them. A chunk is checksum (4 bytes, the lower half of xxhash64 over type
// and payload), length (2), type (1), payload.
const (
	tanBlockBytes  = 32 << 10
	tanHeaderBytes = 7
	tanFull        = 1
	tanFirst       = 2
	tanMiddle      = 3
	tanLast        = 4
	// maxTornBytes bounds what can have been written and not flushed when the
	// machine stopped: entries in flight are at most a few MiB.
	maxTornBytes = 16 << 20
)

// trimLogs cuts the log files below dir at the end of their last whole record:
// behind it are the zeros that logFS wrote ahead, and what was being written when
// the machine stopped. tan by itself takes neither.
func trimLogs(dir string, log *slog.Logger) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path == dir {
			return filepath.SkipAll
		}
		if err != nil || !d.Type().IsRegular() || !isLogFile(path) {
			return err
		}
		return trimLog(path, log)
	})
}

func trimLog(path string, log *slog.Logger) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	s := tanScan{f: f}
	if err := s.run(); err != nil {
		return fmt.Errorf("raft log %s: %w", path, err)
	}
	if s.good == fi.Size() {
		return nil
	}
	if s.laterChunk-s.stopped > maxTornBytes {
		return fmt.Errorf("raft log %s: damaged at byte %d, with whole records behind it: "+
			"remove this node's replicas and add new ones", path, s.stopped)
	}
	if s.torn {
		log.Warn("raft log: cutting off what was not flushed", "file", path, "at", s.good)
	}
	if err := f.Truncate(s.good); err != nil {
		return err
	}
	return f.Sync()
}

// tanScan finds the end of the last whole record of a log file.
type tanScan struct {
	f          io.ReaderAt
	block      [tanBlockBytes]byte
	good       int64 // end of the last whole record
	stopped    int64 // where the first chunk lies that is none
	torn       bool  // there was something else than zeros
	laterChunk int64 // the last whole chunk behind that
}

func (s *tanScan) run() error {
	inRecord, ended := false, false
	for at := int64(0); ; at += tanBlockBytes {
		n, err := s.f.ReadAt(s.block[:], at)
		if err != nil && err != io.EOF {
			return err
		}
		if n == 0 {
			return nil
		}
		for off := 0; off+tanHeaderBytes <= n; {
			size, kind := chunk(s.block[off:n])
			if size == 0 {
				if !ended {
					ended, s.stopped = true, at+int64(off)
				}
				s.torn = s.torn || !allZero(s.block[off:n])
				break
			}
			off += size
			if ended {
				s.laterChunk = at + int64(off)
				continue
			}
			switch starts := kind == tanFull || kind == tanFirst; {
			case starts == inRecord: // a record within a record, or a part of none
				ended, s.torn, s.stopped = true, true, at+int64(off-size)
			case kind == tanFull || kind == tanLast:
				inRecord, s.good = false, at+int64(off)
			default:
				inRecord = true
			}
		}
		if n < tanBlockBytes {
			return nil
		}
	}
}

// chunk returns the size of the whole chunk at the start of b, 0 if there is none.
func chunk(b []byte) (size int, kind byte) {
	length := int(binary.LittleEndian.Uint16(b[4:]))
	kind = b[6]
	size = tanHeaderBytes + length
	if kind < tanFull || kind > tanLast || size > len(b) ||
		binary.LittleEndian.Uint32(b) != uint32(xxhash.Sum64(b[6:size])) {
		return 0, 0
	}
	return size, kind
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
