package heat

// Class is a family of operations that cost about the same and mean the same to
// people.
type Class uint8

// The classes.
const (
	Create  Class = iota // makes a name: file, directory, special file, symlink, link
	Lookup               // finds a name
	Stat                 // attributes, permissions, link targets, xattrs
	ReadDir              // pages of listings
	Unlink               // takes a name away, also of a directory
	Rename
	Change // attributes, sizes, appends, xattrs
	Other  // locks, quotas, policies, sessions
	Classes
)

var classNames = [Classes]string{"create", "lookup", "stat", "readdir", "unlink", "rename", "change", "other"}

func (c Class) String() string { return classNames[c] }

// makes tells whether operations of the class make names.
func (c Class) makes() bool { return c == Create || c == Rename }
