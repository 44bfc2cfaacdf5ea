package local

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// Mount is one Canopy mount of this machine.
type Mount struct {
	Dir    string // mount point, absolute
	Source string // what was mounted: "canopy:1a2b", "host:port[,host:port...]", "local" or "none"
	Subdir string // path in the namespace that the mount shows, "/" for all
}

// FSType is the file system type that Canopy mounts have in /proc/mounts.
const FSType = "fuse.canopy"

// Mounts returns the Canopy mounts that r, in the format of
// /proc/self/mountinfo, lists. The subdirectory stands behind '#' in the source, or
// as mount(8) was given it, behind ":".
func Mounts(r io.Reader) ([]Mount, error) {
	var found []Mount
	s := bufio.NewScanner(r)
	for s.Scan() {
		left, right, ok := strings.Cut(s.Text(), " - ")
		l, rr := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(rr) < 2 || rr[0] != FSType {
			continue
		}
		m := Mount{Dir: unescape(l[4]), Source: unescape(rr[1]), Subdir: "/"}
		if src, sub, ok := strings.Cut(m.Source, "#"); ok {
			m.Source, m.Subdir = src, sub
		} else if i := strings.Index(m.Source, ":/"); i >= 0 {
			m.Source, m.Subdir = m.Source[:i], path.Clean(m.Source[i+1:])
		}
		found = append(found, m)
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

// NamespacePath turns what a user typed into a path of the namespace: a path
// below a Canopy mount of this machine becomes the path inside it; any other
// absolute path is one already. It does not touch the mount (which may hang).
func NamespacePath(typed string) (string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer f.Close()
	mounts, err := Mounts(f)
	if err != nil {
		return "", err
	}
	wd, _ := os.Getwd() // only needed for a relative path
	return namespacePath(typed, wd, mounts)
}

func namespacePath(typed, wd string, mounts []Mount) (string, error) {
	p := typed
	if !filepath.IsAbs(p) {
		p = filepath.Join(wd, p)
	}
	p = filepath.Clean(p)
	best := mountOf(p, mounts)
	if best >= 0 {
		return path.Join(mounts[best].Subdir, strings.TrimPrefix(p, mounts[best].Dir)), nil
	}
	if !filepath.IsAbs(typed) {
		return "", fmt.Errorf("%s is not below a Canopy mount: give a path of the namespace, such as /data, or one below a mount", typed)
	}
	return p, nil
}

// FindFor is Find for a command that was given a path: without flag, a path
// below a mount of this machine means the mount's cluster, whatever the environment
// says. It does not touch the mount.
func FindFor(flag, typed string) (address string, err error) {
	if flag != "" {
		return flag, nil
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer f.Close()
	mounts, err := Mounts(f)
	if err != nil {
		return "", err
	}
	instances, err := Running()
	if err != nil {
		return "", err
	}
	abs, err := filepath.Abs(typed)
	if err != nil {
		return "", err
	}
	if address, ok := clusterOf(abs, mounts, instances); ok {
		return address, nil
	}
	return Find(flag)
}

// clusterOf returns the address of the cluster that is mounted where abs lies: what
// mount(8) was given, or that of the instance whose id the source names.
func clusterOf(abs string, mounts []Mount, instances []Instance) (address string, ok bool) {
	best := mountOf(abs, mounts)
	if best < 0 {
		return "", false
	}
	source := mounts[best].Source
	id, byID := strings.CutPrefix(source, "canopy:")
	if !byID && strings.Contains(source, ":") {
		return source, true
	}
	for _, in := range instances {
		if in.Cluster == id {
			return in.Address, true
		}
	}
	return "", false
}

// mountOf returns the index of the mount that the clean absolute path p lies
// in, -1 for none.
func mountOf(p string, mounts []Mount) int {
	best := -1
	for i, m := range mounts {
		if (p == m.Dir || strings.HasPrefix(p, strings.TrimSuffix(m.Dir, "/")+"/")) &&
			(best < 0 || len(m.Dir) > len(mounts[best].Dir)) {
			best = i
		}
	}
	return best
}
