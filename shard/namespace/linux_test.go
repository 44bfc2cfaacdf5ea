//go:build linux

package namespace

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/schema"
)

// TestAgainstLinux does the same operations, for the same users, on the machine and
// in a directory of this machine's own file system, and compares error numbers,
// modes, owners, link counts, sizes, ACLs, names and values of xattrs, and whether
// mtime and ctime moved. It needs root, for the users, and ext4, for the details.
func TestAgainstLinux(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Type != unix.EXT4_SUPER_MAGIC {
		t.Skip("the temporary directory is not on ext4")
	}
	steps := 1500
	if testing.Short() {
		steps = 300
	}
	seed := rand.Uint64()
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	// The users and the umask are those of this thread alone; it is not used again.
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			t.Errorf("unshare: %v", err)
			return
		}
		unix.Umask(0)
		newPair(t, dir, seed).run(steps)
	}()
	<-done
}

// pair is the machine and the kernel, side by side.
type pair struct {
	*rig
	rnd    *rand.Rand
	objs   []*twin
	broken bool
}

// twin is one inode on both sides.
type twin struct {
	place *canopyv1.Place
	fd    int
	isDir bool
	kind  uint32
	last  [2][2]int64 // mtime and ctime: here, there
}

type user struct{ uid, gid, group int }

var users = []user{{0, 0, 0}, {5, 5, 50}, {6, 6, 60}}

func newPair(t *testing.T, dir string, seed uint64) *pair {
	p := &pair{rig: newRig(t, nil), rnd: rand.New(rand.NewPCG(seed, 1))}
	p.bootstrap()
	p.openSession(0xa1)
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Error(err)
		p.broken = true
		return p
	}
	if err := unix.Chmod(dir, 0o777); err != nil {
		t.Error(err)
	}
	p.objs = []*twin{{place: &canopyv1.Place{Ino: 1}, fd: fd, isDir: true, kind: schema.TypeDir}}
	p.mustRun("setattr / mode=777")
	p.compare("start", true)
	return p
}

func (p *pair) run(steps int) {
	for i := 0; i < steps && !p.broken && !p.t.Failed(); i++ {
		p.now += 1000
		p.step(i)
	}
	for _, o := range p.objs {
		_ = unix.Close(o.fd)
	}
}

// become makes this thread's file operations those of u.
func become(u user) {
	groups := [1]uint32{uint32(u.group)}
	_, _, _ = unix.RawSyscall(unix.SYS_SETGROUPS, 1, uintptr(unsafe.Pointer(&groups)), 0)
	_, _ = unix.SetfsgidRetGid(u.gid)
	_, _ = unix.SetfsuidRetUid(u.uid)
	// The capabilities for files go and come with the user, but this one not.
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if unix.Capget(&header, &caps[0]) != nil {
		return
	}
	caps[0].Effective &^= 1 << unix.CAP_SYS_ADMIN
	if u.uid == 0 {
		caps[0].Effective |= caps[0].Permitted & (1 << unix.CAP_SYS_ADMIN)
	}
	_ = unix.Capset(&header, &caps[0])
}

func pick[T any](p *pair, of ...T) T { return of[p.rnd.IntN(len(of))] }

func (p *pair) dirTwin() *twin {
	for {
		if o := p.objs[p.rnd.IntN(len(p.objs))]; o.isDir {
			return o
		}
	}
}

// action is one operation on both sides.
type action struct {
	what  string
	op    *canopyv1.Op
	there func() error
	made  func(*canopyv1.Result) // after success: what to compare from now on
}

func (p *pair) step(i int) {
	u := pick(p, users...)
	a := p.draw(u)
	if a == nil {
		return
	}
	become(u)
	err := a.there()
	become(users[0])
	want, _ := err.(syscall.Errno)
	a.op.Subtree, a.op.Cred = 1, &canopyv1.Credential{Uid: uint32(u.uid), Gid: uint32(u.gid), Groups: []uint32{uint32(u.group)}}
	var res *canopyv1.Result
	if IsRead(a.op) {
		res = p.m.Query(p.kv, a.op)
	} else {
		res = p.do(0xa1, a.op)
	}
	got := fserr.Kind(res.Error).Errno()
	what := fmt.Sprintf("step %d, uid %d: %s", i, u.uid, a.what)
	if got != want {
		p.t.Errorf("%s: %v, Linux says %v", what, got, want)
		return
	}
	if want == 0 && a.made != nil {
		a.made(res)
	}
	// ext4 puts the old name back after a rename with a whiteout that failed, and moves
	// the directory's times by that, though nothing happened.
	p.compare(what, want != 0 && a.op.GetRename().GetFlags()&renameWhiteout != 0)
}

// add takes in a new inode.
func (p *pair) add(dir *twin, name string, a *canopyv1.Attr) {
	fd, err := unix.Openat(dir.fd, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		p.t.Errorf("open %s: %v", name, err)
		return
	}
	o := &twin{place: &canopyv1.Place{Ino: a.Ino, Dir: dir.place.Ino, Name: []byte(name)}, fd: fd, kind: a.Mode & schema.TypeMask}
	if o.isDir = o.kind == schema.TypeDir; o.isDir {
		o.place = &canopyv1.Place{Ino: a.Ino}
	}
	p.objs = append(p.objs, o)
	p.compareOne("new "+name, o, true)
	// Few objects, so that operations meet.
	if len(p.objs) > 24 {
		i := 1 + p.rnd.IntN(len(p.objs)-2)
		_ = unix.Close(p.objs[i].fd)
		p.objs = slices.Delete(p.objs, i, i+1)
	}
}

func (p *pair) compare(what string, first bool) {
	for _, o := range p.objs {
		p.compareOne(what, o, first)
	}
}

func (p *pair) compareOne(what string, o *twin, first bool) {
	var st unix.Stat_t
	if err := unix.Fstat(o.fd, &st); err != nil {
		p.t.Errorf("fstat: %v", err)
		return
	}
	res := p.m.Query(p.kv, &canopyv1.Op{Subtree: 1, Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: o.place}}})
	a := res.GetAttr()
	if a == nil {
		p.t.Errorf("%s: inode %d: %v", what, o.place.Ino, fserr.Kind(res.Error))
		return
	}
	size := a.Size
	if o.isDir {
		size = uint64(st.Size)
	}
	if a.Mode != st.Mode || a.Uid != st.Uid || a.Gid != st.Gid || uint64(a.Nlink) != st.Nlink || size != uint64(st.Size) {
		p.t.Errorf("%s: inode %d (made as %q) is %o %d:%d links %d size %d, Linux has %o %d:%d links %d size %d", what, a.Ino, o.place.Name,
			a.Mode, a.Uid, a.Gid, a.Nlink, a.Size, st.Mode, st.Uid, st.Gid, st.Nlink, st.Size)
	}
	p.compareXattrs(what, o, a)
	now := [2][2]int64{{a.MtimeNs, a.CtimeNs}, {st.Mtim.Nano(), st.Ctim.Nano()}}
	for i, name := range []string{"mtime", "ctime"} {
		here, there := now[0][i] != o.last[0][i], now[1][i] != o.last[1][i]
		if !first && here != there {
			p.t.Errorf("%s: %s of inode %d (made as %q) moved: %v, on Linux: %v", what, name, a.Ino, o.place.Name, here, there)
		}
	}
	o.last = now
}
