// Package durable is for tests that kill servers: a writer makes unique names
// and writes down which operations were acknowledged, and a checker compares
// the namespace with that afterwards. No acknowledged operation may be lost,
// none may be done twice; one whose answer never came may be done or not.
package durable

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// Header is the first line of a journal: where the names are.
type Header struct {
	Format  int    `json:"canopy_journal"`
	Path    string `json:"path,omitempty"`
	Cluster string `json:"cluster,omitempty"`
	Root    string `json:"root,omitempty"`
	Base    string `json:"base"` // directory below the target
	Dirs    int    `json:"dirs"`
	Workers int    `json:"workers"`
}

const journalFormat = 1

// op is what was done with a name. Each stands in the journal as its letter.
type op byte

const (
	opCreate op = 'c' // file n
	opRename op = 'r' // file n got its second name
	opUnlink op = 'u' // file n
	opMkdir  op = 'm' // directory n
)

// outcome of an operation as its caller saw it.
type outcome string

const (
	done    outcome = "ok"
	unknown outcome = "unknown"
	refused outcome = "refused" // the file system said no to an operation that cannot fail if done once
)

// record is one line: "c 12 345 ok", or with what was said behind it.
type record struct {
	op      op
	worker  int
	number  int
	outcome outcome
	said    string
}

func (r record) String() string {
	s := fmt.Sprintf("%c %d %d %s", r.op, r.worker, r.number, r.outcome)
	if r.said != "" {
		s += " " + strings.ReplaceAll(r.said, "\n", "; ")
	}
	return s
}

func parseRecord(line string) (record, error) {
	f := strings.SplitN(line, " ", 5)
	if len(f) < 4 || len(f[0]) != 1 {
		return record{}, fmt.Errorf("%q is no record", line)
	}
	r := record{op: op(f[0][0]), outcome: outcome(f[3])}
	var err1, err2 error
	r.worker, err1 = strconv.Atoi(f[1])
	r.number, err2 = strconv.Atoi(f[2])
	if err := errors.Join(err1, err2); err != nil || r.worker < 0 || r.number < 0 {
		return record{}, fmt.Errorf("%q is no record", line)
	}
	switch r.op {
	case opCreate, opRename, opUnlink, opMkdir:
	default:
		return record{}, fmt.Errorf("%q is no record", line)
	}
	switch r.outcome {
	case done, unknown, refused:
	default:
		return record{}, fmt.Errorf("%q is no record", line)
	}
	if len(f) == 5 {
		r.said = f[4]
	}
	return r, nil
}

// Journal is a file of a header and records. It is used by one goroutine.
type Journal struct {
	f *os.File
	w *bufio.Writer
}

// CreateJournal makes the file, which must not exist.
func CreateJournal(name string, h Header) (*Journal, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("--journal %s exists already: verify and remove it, or choose another name", name)
	}
	if err != nil {
		return nil, fmt.Errorf("--journal: %w", err)
	}
	h.Format = journalFormat
	j := &Journal{f: f, w: bufio.NewWriterSize(f, 64<<10)}
	if err := json.NewEncoder(j.w).Encode(h); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return j, j.w.Flush()
}

func (j *Journal) add(r record) error {
	_, err := fmt.Fprintln(j.w, r)
	return err
}

func (j *Journal) flush() error { return j.w.Flush() }

// Close writes out what is buffered.
func (j *Journal) Close() error { return errors.Join(j.w.Flush(), j.f.Close()) }

// readJournal calls visit for each record. A last line without an end was cut
// off when the writer was killed, and is left out.
func readJournal(r io.Reader, visit func(record) error) (Header, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	var h Header
	for number := 1; ; number++ {
		line, err := in.ReadString('\n')
		if err == io.EOF {
			if number == 1 {
				return h, errors.New("journal: no header")
			}
			return h, nil
		}
		if err != nil {
			return h, fmt.Errorf("journal: %w", err)
		}
		if number == 1 {
			if err := h.parse(line); err != nil {
				return h, err
			}
			continue
		}
		rec, err := parseRecord(strings.TrimSuffix(line, "\n"))
		if err == nil {
			err = visit(rec)
		}
		if err != nil {
			return h, fmt.Errorf("journal, line %d: %w", number, err)
		}
	}
}

func (h *Header) parse(line string) error {
	if err := json.Unmarshal([]byte(line), h); err != nil || h.Format == 0 {
		return errors.New("journal: this is no journal of loadtest")
	}
	if h.Format > journalFormat {
		return fmt.Errorf("journal: format %d is newer than this program (%d)", h.Format, journalFormat)
	}
	if h.Dirs < 1 || h.Workers < 1 || h.Base == "" {
		return errors.New("journal: the header is damaged")
	}
	return nil
}

// The names of a worker's n-th file, before and after its rename, and directory.
func fileName(worker, n int) string    { return fmt.Sprintf("f.%04d.%08d", worker, n) }
func renamedName(worker, n int) string { return fmt.Sprintf("r.%04d.%08d", worker, n) }
func dirName(worker, n int) string     { return fmt.Sprintf("d.%04d.%08d", worker, n) }

// parseName is the reverse.
func parseName(name string) (kind byte, worker, n int, ok bool) {
	var w, i int
	if c, err := fmt.Sscanf(name[min(1, len(name)):], ".%d.%d", &w, &i); err != nil || c != 2 {
		return 0, 0, 0, false
	}
	for kind, print := range map[byte]func(int, int) string{'f': fileName, 'r': renamedName, 'd': dirName} {
		if print(w, i) == name {
			return kind, w, i, true
		}
	}
	return 0, 0, 0, false
}

// dirOf returns the directory in which a worker works.
func (h *Header) dirOf(worker int) string { return fmt.Sprintf("%s/dir.%d", h.Base, worker%h.Dirs) }
