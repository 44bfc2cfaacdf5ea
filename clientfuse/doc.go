// Package clientfuse mounts a Canopy namespace: it answers the kernel's FUSE
// requests with package client.
//
// It sits on go-fuse's raw interface and keeps as little as that allows: the
// inodes that the kernel knows (one reference each, by inode number), the open
// files, the marks of running listings, the supplementary groups of callers.
// Attributes and names are never answered from here; what the kernel may keep,
// and how long, is package mountopt's.
//
// # What it relies on
//
// The kernel checks permissions (default_permissions) and the server checks
// them again, for the caller's uid, gid and groups. Locks (flock, fcntl) are the
// kernel's and hold within one mount. Errors become errnos here, by the table in
// fserr, and nowhere else.
//
// # Goroutines
//
// go-fuse answers each request on a goroutine that has just read it. One more
// goroutine looks every 100 ms at requests that take long, while there are some:
// those whose callers have been killed end (FUSE K12), and all do when the mount
// is gone. Mount starts both; Wait returns after they have ended.
//
// # The process's own mount
//
// A process must not touch files of a mount that it serves: not open, stat or
// list them, not map them, not run a program from there. A Go thread that waits
// in the kernel for an answer, in a page fault above all, can keep the runtime
// from ever running the goroutine that would give it.
package clientfuse
