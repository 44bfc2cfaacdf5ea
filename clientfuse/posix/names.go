package posix

import (
	"fmt"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func nameChecks() []check {
	return []check{
		{"every byte", checkEveryByte},
		{"length", checkNameLength},
		{"long paths", checkLongPath},
		{"temporary names", checkTemporaryNames},
		{"case and likeness", checkDistinctNames},
	}
}

// checkEveryByte: a name may hold any byte but NUL and slash.
func checkEveryByte(t *testing.T, dir string) {
	defer unix.Umask(unix.Umask(0))
	var made []string
	for b := 1; b < 256; b++ {
		if b == '/' {
			continue
		}
		name := string([]byte{'a', byte(b), 'z'})
		must(t, "mknod", unix.Mknod(dir+"/"+name, unix.S_IFREG|uint32(b), 0))
		made = append(made, name)
	}
	for _, name := range made {
		wantMode(t, dir+"/"+name, unix.S_IFREG|uint32(name[1]))
	}
	wantNames(t, dir, made)
}

// wantNames fails unless dir lists exactly the names.
func wantNames(t *testing.T, dir string, names []string) {
	t.Helper()
	got := list(t, dir)
	sort.Strings(got)
	names = append([]string{}, names...)
	sort.Strings(names)
	if strings.Join(got, "/") != strings.Join(names, "/") {
		t.Errorf("%s lists %d names, want %d: %s, want %s", filepath.Base(dir), len(got), len(names),
			brief(strings.Join(got, " ")), brief(strings.Join(names, " ")))
	}
}

func checkNameLength(t *testing.T, dir string) {
	longest := strings.Repeat("n", 255)
	write(t, filepath.Join(dir, longest), "x")
	wantNames(t, dir, []string{longest})
	p := filepath.Join(dir, longest+"n")
	_, err := unix.Open(p, unix.O_CREAT|unix.O_RDWR, 0o644)
	want(t, "create", err, syscall.ENAMETOOLONG)
	want(t, "mkdir", unix.Mkdir(p, 0o755), syscall.ENAMETOOLONG)
	want(t, "symlink", unix.Symlink("x", p), syscall.ENAMETOOLONG)
	want(t, "link", unix.Link(filepath.Join(dir, longest), p), syscall.ENAMETOOLONG)
	want(t, "rename", unix.Rename(filepath.Join(dir, longest), p), syscall.ENAMETOOLONG)
	want(t, "unlink", unix.Unlink(p), syscall.ENAMETOOLONG)
	var st unix.Stat_t
	want(t, "stat", unix.Stat(p, &st), syscall.ENAMETOOLONG)
}

// checkLongPath: a tree deeper than a path can say is walked step by step.
func checkLongPath(t *testing.T, dir string) {
	step := strings.Repeat("d", 200)
	fd := open(t, dir, unix.O_RDONLY|unix.O_DIRECTORY)
	var open []int
	for range 30 {
		must(t, "mkdirat", unix.Mkdirat(fd, step, 0o755))
		next, err := unix.Openat(fd, step, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		must(t, "openat", err)
		open = append(open, fd)
		fd = next
	}
	f, err := unix.Openat(fd, "leaf", unix.O_CREAT|unix.O_WRONLY, 0o644)
	must(t, "create", err)
	unix.Close(f)
	must(t, "unlink", unix.Unlinkat(fd, "leaf", 0))
	for i := len(open) - 1; i >= 0; i-- {
		unix.Close(fd)
		must(t, "rmdir", unix.Unlinkat(open[i], step, unix.AT_REMOVEDIR))
		fd = open[i]
	}
}

// checkTemporaryNames: names that differ in their decoration only are different.
func checkTemporaryNames(t *testing.T, dir string) {
	var made []string
	for _, name := range []string{"data", "data.tmp", ".data.AbCdEf", ".data.XyZ123", "data.part", "data~", "#data#", ".tmp", "tmp"} {
		write(t, filepath.Join(dir, name), name)
		made = append(made, name)
	}
	wantNames(t, dir, made)
	for i := range 20 {
		tmp, final := fmt.Sprintf(".out.%06d", i), "out"
		write(t, filepath.Join(dir, tmp), tmp)
		must(t, "rename", unix.Rename(filepath.Join(dir, tmp), filepath.Join(dir, final)))
		wantFile(t, filepath.Join(dir, final), tmp)
	}
	wantNames(t, dir, append(made, "out"))
}

func checkDistinctNames(t *testing.T, dir string) {
	names := []string{"name", "Name", "NAME", "name ", " name", "nam\u00e9", "name\u0301", "...", "..x", "-", "--help", "*"}
	for _, name := range names {
		write(t, dir+"/"+name, name)
	}
	for _, name := range names {
		wantFile(t, dir+"/"+name, name)
	}
	wantNames(t, dir, names)
}
