package mountopt

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// mountLine is what counts here of a line of /proc/self/mountinfo.
type mountLine struct {
	dev  string // "major:minor"
	dir  string
	kind string // file system type
}

func readMounts() ([]mountLine, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseMounts(f)
}

func parseMounts(r io.Reader) ([]mountLine, error) {
	var found []mountLine
	s := bufio.NewScanner(r)
	for s.Scan() {
		left, right, ok := strings.Cut(s.Text(), " - ")
		l, rr := strings.Fields(left), strings.Fields(right)
		if ok && len(l) >= 5 && len(rr) >= 1 {
			found = append(found, mountLine{dev: l[2], dir: unescape(l[4]), kind: rr[0]})
		}
	}
	return found, s.Err()
}

// unescape undoes the octal escapes of /proc/self/mountinfo.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if v, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(v))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// mountedAt returns the topmost mount on dir.
func mountedAt(dir string) (mountLine, bool) {
	lines, err := readMounts()
	if err != nil {
		return mountLine{}, false
	}
	for i := len(lines) - 1; i >= 0; i-- {
		if lines[i].dir == dir {
			return lines[i], true
		}
	}
	return mountLine{}, false
}

func deviceOf(dir string) string {
	m, _ := mountedAt(dir)
	return m.dev
}

// CheckDir returns dir absolute with symbolic links resolved, or why nothing can
// be mounted there: missing, no directory, not empty, mounted already.
func CheckDir(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	// The table first: touching a mount whose server is gone, or hangs, would
	// fail without telling why, or never return.
	if err := notMounted(abs); err != nil {
		return "", err
	}
	resolved, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return "", explain(dir, err)
	}
	if err := notMounted(resolved); err != nil {
		return "", err
	}
	st, err := os.Stat(resolved)
	if err != nil {
		return "", explain(dir, err)
	}
	if !st.IsDir() {
		return "", fmt.Errorf("mount point %s is not a directory", dir)
	}
	f, err := os.Open(resolved)
	if err != nil {
		return "", explain(dir, err)
	}
	defer f.Close()
	switch names, err := f.Readdirnames(1); {
	case len(names) > 0:
		return "", fmt.Errorf("mount point %s is not empty (it has %q): mounting would hide its contents", dir, names[0])
	case err != nil && !errors.Is(err, io.EOF):
		return "", explain(dir, err)
	}
	return resolved, nil
}

func notMounted(dir string) error {
	m, ok := mountedAt(dir)
	if ok && strings.HasPrefix(m.kind, "fuse") {
		return fmt.Errorf("%s is already mounted (type %s): unmount it first (umount %s)", dir, m.kind, dir)
	}
	return nil
}

func explain(dir string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("mount point %s does not exist: make it first (mkdir -p %s)", dir, dir)
	case errors.Is(err, syscall.ENOTCONN):
		return fmt.Errorf("mount point %s is below a mount whose server is gone: unmount that first", dir)
	}
	return fmt.Errorf("mount point %s: %w", dir, err)
}
