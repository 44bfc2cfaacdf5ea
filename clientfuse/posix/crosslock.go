package posix

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// RunLocks tests file locks between processes on two mounts, a and b, of one empty
// directory. Of a file system that keeps locks in one machine's memory leave out
// what is not asked of it: deadlocks that are noticed, and fairness.
func RunLocks(t *testing.T, a, b string, deadlocks, fair bool) {
	checks := []crossCheck{
		{"flock", crossFlock},
		{"flock upgrade", crossFlockUpgrade},
		{"posix", crossPOSIX},
		{"open file description", crossOFD},
		{"wait", crossLockWait},
		{"time-out", crossLockTimeout},
		{"close", crossLockClose},
		{"end of process", crossLockExit},
		{"moved", crossLockMoved},
		{"counter", crossCounter},
	}
	if fair {
		checks = append(checks, crossCheck{"writer among readers", crossLockFair})
	}
	if deadlocks {
		checks = append(checks, crossCheck{"deadlock", crossDeadlock})
	}
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			name := "lock-" + strings.ReplaceAll(c.name, " ", "-")
			must(t, "mkdir", os.Mkdir(filepath.Join(a, name), 0o755))
			t.Cleanup(func() {
				if err := os.RemoveAll(filepath.Join(a, name)); err != nil {
					t.Errorf("cleaning up: %v", err)
				}
			})
			write(t, filepath.Join(a, name, "f"), "")
			c.run(t, filepath.Join(a, name, "f"), filepath.Join(b, name, "f"))
		})
	}
}

// process is a thread with a table of descriptors of its own, which is what the
// kernel takes for a process where fcntl locks are concerned.
type process struct {
	tid  int
	work chan func()
	gone chan struct{}
}

func newProcess(t *testing.T) *process {
	t.Helper()
	p := &process{work: make(chan func()), gone: make(chan struct{})}
	ready := make(chan error)
	go func() {
		defer close(p.gone)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		p.tid = unix.Gettid()
		err := unix.Unshare(unix.CLONE_FILES)
		ready <- err
		if err != nil {
			return
		}
		for f := range p.work {
			f()
		}
	}()
	must(t, "unshare", <-ready)
	t.Cleanup(p.end)
	return p
}

// end lets the process end, which closes its descriptors. One that hangs is left:
// its test has failed.
func (p *process) end() {
	if p.work == nil {
		return
	}
	close(p.work)
	p.work = nil
	select {
	case <-p.gone:
	case <-time.After(time.Second):
	}
}

// start runs f in the process; the channel has its outcome.
func (p *process) start(f func() error) <-chan error {
	done := make(chan error, 1)
	p.work <- func() { done <- f() }
	return done
}

func (p *process) do(f func() error) error { return <-p.start(f) }

// open opens a file in the process.
func (p *process) open(t *testing.T, path string, flags int) (fd int) {
	t.Helper()
	must(t, "open", p.do(func() (err error) {
		fd, err = unix.Open(path, flags|unix.O_CLOEXEC, 0o644)
		return err
	}))
	return fd
}

// blocked returns when the process sleeps in a call of fcntl or flock.
func (p *process) blocked(t *testing.T) {
	t.Helper()
	calls := map[string]bool{strconv.Itoa(unix.SYS_FCNTL): true, strconv.Itoa(unix.SYS_FLOCK): true}
	for deadline := time.Now().Add(10 * time.Second); ; {
		b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/syscall", p.tid))
		must(t, "read", err)
		if number, _, _ := strings.Cut(string(b), " "); calls[number] {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the process does not wait: %s", b)
		}
		time.Sleep(time.Millisecond)
	}
}

// soon fails if done has no outcome for long, and returns it.
func soon(t *testing.T, what string, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatalf("%s does not end", what)
		return nil
	}
}

// still fails if done has an outcome.
func still(t *testing.T, what string, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		t.Fatalf("%s ended: %v", what, err)
	default:
	}
}

// eventually repeats f until it succeeds.
func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

func record(fd, cmd int, kind int16, start, length int64) error {
	l := unix.Flock_t{Type: kind, Start: start, Len: length}
	return unix.FcntlFlock(uintptr(fd), cmd, &l)
}

// locked is a call of fcntl for a process.
func locked(fd, cmd int, kind int16, start, length int64) func() error {
	return func() error { return record(fd, cmd, kind, start, length) }
}

func crossFlock(t *testing.T, a, b string) {
	x, y := open(t, a, unix.O_RDWR), open(t, b, unix.O_RDONLY)
	must(t, "exclusive", unix.Flock(x, unix.LOCK_EX))
	want(t, "exclusive by another", unix.Flock(y, unix.LOCK_EX|unix.LOCK_NB), syscall.EWOULDBLOCK)
	want(t, "shared by another", unix.Flock(y, unix.LOCK_SH|unix.LOCK_NB), syscall.EWOULDBLOCK)
	must(t, "to shared", unix.Flock(x, unix.LOCK_SH))
	must(t, "shared by another", unix.Flock(y, unix.LOCK_SH|unix.LOCK_NB))
	want(t, "exclusive beside shared", unix.Flock(x, unix.LOCK_EX|unix.LOCK_NB), syscall.EWOULDBLOCK)
	must(t, "fcntl knows nothing of flock", record(x, unix.F_SETLK, unix.F_WRLCK, 0, 0))
	must(t, "unlock", unix.Flock(y, unix.LOCK_UN))
	must(t, "exclusive, alone", unix.Flock(x, unix.LOCK_EX|unix.LOCK_NB))
	// A duplicate is the same open file: the last close unlocks.
	dup, err := unix.Dup(x)
	must(t, "dup", err)
	must(t, "close", unix.Close(x))
	want(t, "while a duplicate is open", unix.Flock(y, unix.LOCK_SH|unix.LOCK_NB), syscall.EWOULDBLOCK)
	must(t, "close", unix.Close(dup))
	eventually(t, "after the last close", func() error { return unix.Flock(y, unix.LOCK_EX|unix.LOCK_NB) })
}

// crossFlockUpgrade: two who have it shared and want it exclusive both get it.
func crossFlockUpgrade(t *testing.T, a, b string) {
	p, q := newProcess(t), newProcess(t)
	x, y := p.open(t, a, unix.O_RDWR), q.open(t, b, unix.O_RDWR)
	flock := func(fd, how int) func() error { return func() error { return unix.Flock(fd, how) } }
	must(t, "shared", p.do(flock(x, unix.LOCK_SH)))
	must(t, "shared", q.do(flock(y, unix.LOCK_SH)))
	first := p.start(flock(x, unix.LOCK_EX))
	p.blocked(t)
	second := q.start(flock(y, unix.LOCK_EX))
	select {
	case err := <-first:
		must(t, "exclusive", err)
		must(t, "unlock", p.do(flock(x, unix.LOCK_UN)))
		must(t, "exclusive for the other", soon(t, "the other's upgrade", second))
	case err := <-second:
		must(t, "exclusive", err)
		must(t, "unlock", q.do(flock(y, unix.LOCK_UN)))
		must(t, "exclusive for the other", soon(t, "the other's upgrade", first))
	case <-time.After(20 * time.Second):
		t.Fatal("neither gets it")
	}
}

func crossPOSIX(t *testing.T, a, b string) {
	p, q := newProcess(t), newProcess(t)
	x, y := p.open(t, a, unix.O_RDWR), q.open(t, b, unix.O_RDWR)
	must(t, "write lock", p.do(locked(x, unix.F_SETLK, unix.F_WRLCK, 10, 10)))
	want(t, "overlapping", q.do(locked(y, unix.F_SETLK, unix.F_RDLCK, 19, 5)), syscall.EAGAIN)
	must(t, "beside it", q.do(locked(y, unix.F_SETLK, unix.F_RDLCK, 20, 0)))
	want(t, "to the end of the file", p.do(locked(x, unix.F_SETLK, unix.F_WRLCK, 1<<40, 1)), syscall.EAGAIN)
	must(t, "its own again", p.do(locked(x, unix.F_SETLK, unix.F_RDLCK, 12, 2)))
	must(t, "shared in the middle", q.do(locked(y, unix.F_SETLK, unix.F_RDLCK, 12, 2)))
	l := unix.Flock_t{Type: unix.F_WRLCK}
	must(t, "getlk", q.do(func() error { return unix.FcntlFlock(uintptr(y), unix.F_GETLK, &l) }))
	if l.Type != unix.F_WRLCK || l.Start != 10 || l.Len != 2 {
		t.Errorf("F_GETLK says type %d, %d bytes at %d; want a write lock of 2 bytes at 10", l.Type, l.Len, l.Start)
	}
	must(t, "unlock", p.do(locked(x, unix.F_SETLK, unix.F_UNLCK, 0, 0)))
	l = unix.Flock_t{Type: unix.F_WRLCK, Len: 15}
	must(t, "getlk", q.do(func() error { return unix.FcntlFlock(uintptr(y), unix.F_GETLK, &l) }))
	if l.Type != unix.F_UNLCK {
		t.Errorf("F_GETLK says type %d at %d of what nobody has locked", l.Type, l.Start)
	}
	r := p.open(t, a, unix.O_RDONLY)
	want(t, "a write lock by who may not write", p.do(locked(r, unix.F_SETLK, unix.F_WRLCK, 0, 1)), syscall.EBADF)
}

func crossOFD(t *testing.T, a, b string) {
	x, y := open(t, a, unix.O_RDWR), open(t, b, unix.O_RDWR)
	must(t, "write lock", record(x, unix.F_OFD_SETLK, unix.F_WRLCK, 0, 5))
	want(t, "overlapping", record(y, unix.F_OFD_SETLK, unix.F_RDLCK, 4, 3), syscall.EAGAIN)
	other := open(t, a, unix.O_RDWR)
	want(t, "by another open file of the same process", record(other, unix.F_OFD_SETLK, unix.F_WRLCK, 0, 1), syscall.EAGAIN)
	must(t, "close of another descriptor", unix.Close(other))
	want(t, "still held", record(y, unix.F_OFD_SETLK, unix.F_RDLCK, 4, 3), syscall.EAGAIN)
	must(t, "close", unix.Close(x))
	eventually(t, "after the close", func() error { return record(y, unix.F_OFD_SETLK, unix.F_WRLCK, 0, 0) })
}

// crossLockWait: who waits gets the lock when it is free, and not before; readers
// come together.
func crossLockWait(t *testing.T, a, b string) {
	p, q, r := newProcess(t), newProcess(t), newProcess(t)
	x, y, z := p.open(t, a, unix.O_RDWR), q.open(t, b, unix.O_RDWR), r.open(t, a, unix.O_RDWR)
	must(t, "write lock", p.do(locked(x, unix.F_SETLK, unix.F_WRLCK, 0, 100)))
	one := q.start(locked(y, unix.F_SETLKW, unix.F_RDLCK, 50, 1))
	two := r.start(locked(z, unix.F_SETLKW, unix.F_RDLCK, 50, 10))
	q.blocked(t)
	r.blocked(t)
	must(t, "unlock beside", p.do(locked(x, unix.F_SETLK, unix.F_UNLCK, 0, 50)))
	q.blocked(t)
	still(t, "a wait", one)
	must(t, "to shared", p.do(locked(x, unix.F_SETLK, unix.F_RDLCK, 50, 50)))
	must(t, "shared", soon(t, "a reader's wait", one))
	must(t, "shared", soon(t, "another reader's wait", two))
	three := p.start(locked(x, unix.F_SETLKW, unix.F_WRLCK, 50, 1))
	p.blocked(t)
	must(t, "unlock", q.do(locked(y, unix.F_SETLK, unix.F_UNLCK, 0, 0)))
	p.blocked(t)
	still(t, "the writer's wait", three)
	must(t, "unlock", r.do(locked(z, unix.F_SETLK, unix.F_UNLCK, 0, 0)))
	must(t, "write lock", soon(t, "the writer's wait", three))
}

// crossLockTimeout: a signal ends a wait (FUSE K12), and leaves nothing behind.
func crossLockTimeout(t *testing.T, a, b string) {
	tool, err := exec.LookPath("flock")
	if err != nil {
		t.Skip("needs util-linux's flock, which waits with an alarm")
	}
	x := open(t, a, unix.O_RDWR)
	must(t, "exclusive", unix.Flock(x, unix.LOCK_EX))
	began := time.Now()
	err = exec.Command(tool, "-w", "0.3", "-E", "42", b, "true").Run()
	if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 42 {
		t.Errorf("flock -w ended with %v, want exit code 42", err)
	}
	if took := time.Since(began); took < 300*time.Millisecond || took > 10*time.Second {
		t.Errorf("it waited %v", took)
	}
	killed := exec.Command(tool, b, "true")
	must(t, "start", killed.Start())
	eventually(t, "the command waits", func() error {
		s, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", killed.Process.Pid))
		if err == nil && !strings.HasPrefix(string(s), strconv.Itoa(unix.SYS_FLOCK)+" ") {
			err = syscall.EAGAIN
		}
		return err
	})
	must(t, "kill", killed.Process.Kill())
	if err := killed.Wait(); err == nil {
		t.Error("it was killed while it waited, and succeeded")
	}
	must(t, "unlock", unix.Flock(x, unix.LOCK_UN))
	must(t, "a command that gets the lock", exec.Command(tool, "-w", "10", b, "true").Run())
	// A flock that ends with its descriptor goes by RELEASE, for which the kernel
	// lets nobody wait.
	eventually(t, "nothing is left behind", func() error { return unix.Flock(x, unix.LOCK_EX|unix.LOCK_NB) })
}

// crossLockClose: closing any descriptor of a file gives the process's fcntl locks
// in it back (FUSE K10), one that was opened after the lock for reading too.
func crossLockClose(t *testing.T, a, b string) {
	p, q := newProcess(t), newProcess(t)
	x, y := p.open(t, a, unix.O_RDWR), q.open(t, b, unix.O_RDWR)
	for _, flags := range []int{unix.O_RDWR, unix.O_RDONLY} {
		must(t, "write lock", p.do(locked(x, unix.F_SETLK, unix.F_WRLCK, 0, 0)))
		other := p.open(t, a, flags)
		want(t, "held", q.do(locked(y, unix.F_SETLK, unix.F_WRLCK, 0, 1)), syscall.EAGAIN)
		must(t, "close of another descriptor", p.do(func() error { return unix.Close(other) }))
		must(t, "given back", q.do(locked(y, unix.F_SETLK, unix.F_WRLCK, 0, 1)))
		must(t, "unlock", q.do(locked(y, unix.F_SETLK, unix.F_UNLCK, 0, 1)))
	}
	// Through a descriptor opened for reading, before there were any locks.
	file := filepath.Join(filepath.Dir(a), "g")
	write(t, file, "")
	r := p.open(t, file, unix.O_RDONLY)
	must(t, "read lock", p.do(locked(r, unix.F_SETLK, unix.F_RDLCK, 0, 0)))
	z := q.open(t, filepath.Join(filepath.Dir(b), "g"), unix.O_RDWR)
	want(t, "held", q.do(locked(z, unix.F_SETLK, unix.F_WRLCK, 0, 1)), syscall.EAGAIN)
	must(t, "close", p.do(func() error { return unix.Close(r) }))
	eventually(t, "given back", func() error { return q.do(locked(z, unix.F_SETLK, unix.F_WRLCK, 0, 1)) })
}

// crossLockExit: the end of a process gives its locks back to who waits.
func crossLockExit(t *testing.T, a, b string) {
	p, q := newProcess(t), newProcess(t)
	x, y := p.open(t, a, unix.O_RDWR), q.open(t, b, unix.O_RDWR)
	must(t, "write lock", p.do(locked(x, unix.F_SETLK, unix.F_WRLCK, 0, 0)))
	waiting := q.start(locked(y, unix.F_SETLKW, unix.F_WRLCK, 5, 1))
	q.blocked(t)
	p.end()
	must(t, "write lock", soon(t, "the wait", waiting))
}

// crossLockMoved: a lock stays with the file, whatever its names.
func crossLockMoved(t *testing.T, a, b string) {
	p, q := newProcess(t), newProcess(t)
	x, y := p.open(t, a, unix.O_RDWR), q.open(t, b, unix.O_RDWR)
	must(t, "write lock", p.do(locked(x, unix.F_SETLK, unix.F_WRLCK, 0, 1)))
	held := func(when string) {
		t.Helper()
		want(t, when, q.do(locked(y, unix.F_SETLK, unix.F_WRLCK, 0, 1)), syscall.EAGAIN)
		must(t, when+", beside", q.do(locked(y, unix.F_SETLK, unix.F_WRLCK, 1, 1)))
	}
	must(t, "rename", unix.Rename(b, b+"2"))
	held("renamed")
	must(t, "link", unix.Link(a+"2", a+"3"))
	held("linked")
	must(t, "unlink", unix.Unlink(a+"2"))
	must(t, "unlink", unix.Unlink(b+"3"))
	held("unlinked")
	waiting := q.start(locked(y, unix.F_SETLKW, unix.F_WRLCK, 0, 1))
	q.blocked(t)
	must(t, "unlock", p.do(locked(x, unix.F_SETLK, unix.F_UNLCK, 0, 0)))
	must(t, "write lock", soon(t, "the wait", waiting))
}

// crossCounter: under the lock each process reads what the last one wrote, though
// nobody closes the file in between.
func crossCounter(t *testing.T, a, b string) {
	const workers, rounds = 4, 15
	write(t, a, fmt.Sprintf("%8d", 0))
	var wg sync.WaitGroup
	for w := range workers {
		path := a
		if w%2 == 1 {
			path = b
		}
		p := newProcess(t)
		fd := p.open(t, path, unix.O_RDWR)
		wg.Go(func() {
			for range rounds {
				if err := p.do(func() error { return increment(fd) }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	wantFile(t, a, fmt.Sprintf("%8d", workers*rounds))
	wantFile(t, b, fmt.Sprintf("%8d", workers*rounds))
}

func increment(fd int) error {
	if err := record(fd, unix.F_SETLKW, unix.F_WRLCK, 0, 0); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	var text [8]byte
	if n, err := unix.Pread(fd, text[:], 0); n != len(text) || err != nil {
		return fmt.Errorf("read %d bytes: %w", n, err)
	}
	value, err := strconv.Atoi(strings.TrimSpace(string(text[:])))
	if err != nil {
		return err
	}
	if _, err := unix.Pwrite(fd, fmt.Appendf(nil, "%8d", value+1), 0); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return record(fd, unix.F_SETLK, unix.F_UNLCK, 0, 0)
}
