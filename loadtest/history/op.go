package history

import "math"

// Kind says what was asked.
type Kind string

// Operations on names. Those of a group (Op.Group) share its few names with other
// clients; those of none use names that are made once in the whole history.
const (
	Create    Kind = "create" // O_EXCL; Ino of the new file, 0 if not known
	Mkdir     Kind = "mkdir"  // the same
	Stat      Kind = "stat"   // Ino of A; Links too, unless 0
	Links     Kind = "links"  // Links of the inode Ino, by a handle
	Link      Kind = "link"   // the inode Ino, by a handle, gets the name B
	Unlink    Kind = "unlink"
	Rmdir     Kind = "rmdir"
	Rename    Kind = "rename"    // A to B, over what is there
	NoReplace Kind = "noreplace" // A to B, if nothing is there
	Exchange  Kind = "exchange"  // A with B
	Enter     Kind = "enter"     // a file of one name is made in the directory Ino, by a handle
	Leave     Kind = "leave"     // it is removed
)

// Operations on registers (extended attributes; A is the key), logs and directories.
const (
	Set      Kind = "set"      // Value
	Get      Kind = "get"      // Value
	Remove   Kind = "remove"   //
	Append   Kind = "append"   // the record Value to the log A
	List     Kind = "list"     // the directory A: Entries
	Recount  Kind = "recount"  // the same, after all clients had ended
	Appended Kind = "appended" // what the log A has after all clients had ended: Entries
)

// Outcomes besides names of errors such as ENOENT, with which nothing was changed.
const (
	Done    = ""
	Unknown = "?"
)

// Ways by which a client reaches the namespace.
const (
	ByLibrary = "library"
	ByMount   = "mount"
)

// Op is one operation.
type Op struct {
	Client int    `json:"c"`
	Via    string `json:"v,omitempty"`
	Kind   Kind   `json:"k"`
	Group  int    `json:"g,omitempty"` // 0: none
	A      string `json:"a,omitempty"` // path below the run's directory
	B      string `json:"b,omitempty"`
	Ino    uint64 `json:"ino,omitempty"`
	Links  uint64 `json:"n,omitempty"`
	Value  string `json:"val,omitempty"`

	Call    int64  `json:"t"` // ns since the run began
	Return  int64  `json:"r"`
	Outcome string `json:"o,omitempty"`
	// Hurried says that the client gave itself less time than an answer takes, so
	// that nobody wonders at an unknown outcome.
	Hurried bool   `json:"h,omitempty"`
	Said    string `json:"said,omitempty"` // the error, of unknown outcomes

	Entries []Entry `json:"e,omitempty"`
}

// Entry is a name of a listing or, with no Ino, a record of a log.
type Entry struct {
	Name string `json:"n"`
	Ino  uint64 `json:"i,omitempty"`
}

// Never is the return of what may happen at any time.
const Never = math.MaxInt64

// End returns when the operation had happened, at the latest.
func (o *Op) End() int64 {
	if o.Outcome == Unknown {
		return Never
	}
	return o.Return
}

// Changes reports whether the operation is one that changes something.
func (k Kind) Changes() bool {
	switch k {
	case Stat, Links, Get, List, Recount, Appended:
		return false
	}
	return true
}

// Header is the first line of a history's file.
type Header struct {
	Format  int      `json:"canopy_history"`
	Seed    uint64   `json:"seed"`
	Root    string   `json:"root"` // directory in the namespace, or of the mount
	Base    string   `json:"base"` // the run's directory below it
	Dirs    []string `json:"dirs"` // below Base
	Logs    []string `json:"logs"` // below Base
	Clients int      `json:"clients"`
}

// format is the number of the file format that this program writes.
const format = 1

// History is a whole one.
type History struct {
	Header Header
	Ops    []*Op
}
