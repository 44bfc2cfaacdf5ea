package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Names under which mount(8) and umount(8) execute this binary.
const (
	mountHelper  = "mount.fuse.canopy"
	umountHelper = "umount.fuse.canopy"
)

// mountFailed is mount(8)'s exit status for a mount that failed.
const mountFailed = 32

// request is what mount(8) asks its helper for.
type request struct {
	source  string // as mount(8) was given it
	cluster string
	subdir  string
	dir     string
	options []string // of the file system
	flags   []string // for clientfuse itself
	fake    bool     // -f: do everything but mount
}

// parseHelper reads "SOURCE MOUNTPOINT [-sfnv] [-o options] [-t type] [-N ns]".
func parseHelper(args []string) (request, error) {
	var r request
	var plain []string
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-o" || a == "-t" || a == "-N":
			if i++; i == len(args) {
				return r, fmt.Errorf("option %s lacks its value", a)
			}
			if a == "-o" {
				r.takeOptions(args[i])
			}
		case strings.HasPrefix(a, "-") && len(a) > 1:
			if strings.Trim(a[1:], "sfnvrw") != "" {
				return r, fmt.Errorf("unknown option %s", a)
			}
			r.fake = r.fake || strings.Contains(a, "f")
			if strings.Contains(a, "r") {
				r.options = append(r.options, "ro")
			}
		default:
			plain = append(plain, a)
		}
	}
	if len(plain) != 2 {
		return r, errors.New("usage: mount -t fuse.canopy HOST:PORT[,HOST:PORT...][:/path] MOUNTPOINT [-o options]")
	}
	r.source, r.cluster, r.dir = plain[0], plain[0], plain[1]
	if i := strings.Index(r.cluster, ":/"); i >= 0 {
		r.cluster, r.subdir = r.cluster[:i], r.cluster[i+1:]
	}
	if r.cluster == "local" || r.cluster == "none" {
		r.cluster = "" // the `canopy up` of this machine
	}
	return r, nil
}

// takeOptions splits a list into the file system's and clientfuse's own.
func (r *request) takeOptions(list string) {
	own := map[string]string{"http": "--http", "log-level": "--log-level", "log": "--log-file", "label": "--label"}
	for option := range strings.SplitSeq(list, ",") {
		name, value, _ := strings.Cut(option, "=")
		if flag := own[name]; flag != "" {
			r.flags = append(r.flags, flag+"="+value)
		} else {
			r.options = append(r.options, option)
		}
	}
}

// arguments returns how clientfuse is called for the request.
func (r request) arguments() []string {
	// mount -a and umount find a mount by the source that /proc/mounts shows.
	args := append([]string{"--source=" + r.source}, r.flags...)
	if r.cluster != "" {
		args = append(args, "--cluster="+r.cluster)
	}
	if r.subdir != "" {
		args = append(args, "--subdir="+r.subdir)
	}
	if len(r.options) > 0 {
		args = append(args, "--options="+strings.Join(r.options, ","))
	}
	return append(args, "--", r.dir)
}

// helperMain mounts in the background and returns when the mount is there.
func helperMain(args []string, stderr io.Writer) int {
	err := mountInBackground(args[1:])
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", filepath.Base(args[0]), err)
		return mountFailed
	}
	return 0
}

func mountInBackground(args []string) error {
	r, err := parseHelper(args)
	if err != nil || r.fake {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	if r.dir, err = filepath.Abs(r.dir); err != nil {
		return err
	}
	cmd := exec.Command(exe, r.arguments()...)
	cmd.Args[0] = "clientfuse"
	cmd.Dir = "/" // so that it keeps no other mount busy
	cmd.Env = append(os.Environ(), readyEnv+"=3")
	cmd.ExtraFiles = []*os.File{write}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	write.Close()
	answer, err := io.ReadAll(read)
	if err != nil {
		return err
	}
	if string(answer) == readyAnswer {
		return cmd.Process.Release()
	}
	cmd.Wait()
	if len(answer) == 0 {
		return errors.New("the mount's process ended without saying why")
	}
	return errors.New(strings.TrimSpace(string(answer)))
}

const (
	// readyEnv names the descriptor on which a background mount reports.
	readyEnv    = "CANOPY_CLIENTFUSE_READY_FD"
	readyAnswer = "ready\n"
)

// starter is who waits for the mount to be there; nobody in the foreground.
type starter struct{ pipe *os.File }

func startedBy(getenv func(string) string) *starter {
	if getenv(readyEnv) != "3" {
		return &starter{}
	}
	os.Unsetenv(readyEnv)
	return &starter{pipe: os.NewFile(3, "ready")}
}

// report tells the outcome, the first time that it is called.
func (s *starter) report(err error) {
	if s.pipe == nil {
		return
	}
	answer := readyAnswer
	if err != nil {
		answer = err.Error()
	}
	io.WriteString(s.pipe, answer) // the helper may be gone; the mount is not for it alone
	s.pipe.Close()
	s.pipe = nil
}
