package mountopt

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

func TestSet(t *testing.T) {
	var o Options
	err := o.Set("ro,noatime,nodev,,defaults,_netdev,x-systemd.automount,consistency=relaxed=1500ms,cache_inodes=1000,subdir=/a b")
	if err != nil {
		t.Fatal(err)
	}
	want := Options{ReadOnly: true, NoAtime: true, NoDev: true, Relaxed: 1500 * time.Millisecond, CacheInodes: 1000, Subdir: "/a b"}
	if o != want {
		t.Errorf("%+v, want %+v", o, want)
	}
	if err := o.Set("rw,atime,dev,consistency=strict,allow_other"); err != nil {
		t.Fatal(err)
	}
	if want := (Options{AllowOther: true, CacheInodes: 1000, Subdir: "/a b"}); o != want {
		t.Errorf("%+v, want %+v", o, want)
	}
	if flags := (Options{ReadOnly: true, NoSuid: true, NoExec: true}).mountFlags(); flags != unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NOEXEC {
		t.Errorf("flags %#x", flags)
	}
}

func TestSetRefusesAndChangesNothing(t *testing.T) {
	for _, list := range []string{"ro,what", "consistency=", "consistency=relaxed=0s", "consistency=relaxed=-1s",
		"consistency=lax", "cache_inodes=99", "cache_inodes=x", "subdir=x", "acl=1", "ro=1x,foo=bar", "max_read=1"} {
		var o Options
		if err := o.Set("noexec," + list); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", list, err)
		}
		if o != (Options{}) {
			t.Errorf("%s: changed to %+v", list, o)
		}
	}
}

// TestStringIsTakenBySet: what is printed can be given again.
func TestStringIsTakenBySet(t *testing.T) {
	for _, o := range []Options{
		{}, {ReadOnly: true, AllowOther: true}, {NoDev: true, NoSuid: true, Relaxed: time.Minute, Subdir: "/x/y"},
		{ACL: true}, {CacheInodes: 5000}, {Synchronous: true, SynchronousDirectory: true, RelativeAtime: true, StrictAtime: true, NoDirAtime: true},
	} {
		var back Options
		if err := back.Set(o.String()); err != nil || back != o {
			t.Errorf("%s: %+v, %v, want %+v", o, back, err, o)
		}
	}
}

func TestOpenFlags(t *testing.T) {
	const parallel = fuse.FOPEN_DIRECT_IO | fuse.FOPEN_PARALLEL_DIRECT_WRITES
	for _, c := range []struct {
		flags        uint32
		keep, direct bool
		want         uint32
	}{
		{syscall.O_RDONLY, false, false, fuse.FOPEN_NOFLUSH},                        // K11
		{syscall.O_RDONLY, true, false, fuse.FOPEN_NOFLUSH | fuse.FOPEN_KEEP_CACHE}, // K7
		{syscall.O_WRONLY, false, false, 0},
		{syscall.O_WRONLY | syscall.O_APPEND, false, false, fuse.FOPEN_DIRECT_IO}, // K8
		{syscall.O_RDONLY | syscall.O_APPEND, false, false, fuse.FOPEN_NOFLUSH},   // nothing to append
		{syscall.O_RDWR | syscall.O_DIRECT, false, false, parallel},               // K9
		{syscall.O_WRONLY, false, true, parallel},                                 // K9, by policy
		{syscall.O_RDONLY, false, true, parallel | fuse.FOPEN_NOFLUSH},            // a cached reader would make writers wait
		{syscall.O_WRONLY | syscall.O_APPEND, false, true, fuse.FOPEN_DIRECT_IO},
	} {
		if got := OpenFlags(c.flags, c.keep, c.direct); got != c.want {
			t.Errorf("flags %#x, keep %v, direct %v: %#x, want %#x", c.flags, c.keep, c.direct, got, c.want)
		}
	}
}

func TestTimeouts(t *testing.T) {
	if o := (Options{}); o.EntryTimeout() != 0 || o.AttrTimeout() != 0 {
		t.Error("a strict mount keeps something")
	}
	if o := (Options{Relaxed: time.Second}); o.EntryTimeout() != time.Second || o.AttrTimeout() != time.Second {
		t.Error("a relaxed mount keeps for another time than stated")
	}
	opts := Options{AllowOther: true}.FuseOptions(slog.New(slog.DiscardHandler))
	if !opts.AllowOther || opts.ExtraCapabilities&opts.DisabledCapabilities != 0 {
		t.Errorf("%+v", opts)
	}
}

func TestParseMounts(t *testing.T) {
	lines, err := parseMounts(strings.NewReader(`22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 22 0:50 / /mnt/a\040b rw,nosuid - fuse.canopy canopy:1a2b#/x rw
broken line
`))
	if err != nil || len(lines) != 2 || lines[1] != (mountLine{dev: "0:50", dir: "/mnt/a b", kind: "fuse.canopy"}) {
		t.Errorf("%+v, %v", lines, err)
	}
}

func TestCheckDir(t *testing.T) {
	dir := t.TempDir()
	empty, link := filepath.Join(dir, "empty"), filepath.Join(dir, "link")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("empty", link); err != nil {
		t.Fatal(err)
	}
	if got, err := CheckDir(link); err != nil || filepath.Base(got) != "empty" || !filepath.IsAbs(got) {
		t.Errorf("through a link: %q, %v", got, err)
	}
	for p, says := range map[string]string{
		dir: "not empty", filepath.Join(dir, "absent"): "does not exist", "/dev/null": "not a directory",
	} {
		if _, err := CheckDir(p); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", p, err, says)
		}
	}
}

// TestNoDevice: a machine without the device is told what to do.
func TestNoDevice(t *testing.T) {
	for _, e := range []error{unix.ENOENT, unix.ENODEV} {
		if err := noDevice(e); !strings.Contains(err.Error(), "modprobe fuse") {
			t.Errorf("%v: %v", e, err)
		}
	}
}

func TestOthersMayBeLetIn(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "fuse.conf")
	if othersMayBeLetIn(conf) {
		t.Error("without a file")
	}
	for text, want := range map[string]bool{"": false, "#user_allow_other\n": false, "mount_max = 9\nuser_allow_other \n": true} {
		if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := othersMayBeLetIn(conf); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
