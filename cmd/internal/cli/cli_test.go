package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
)

func command(d *Daemon, run func() error) (*cobra.Command, *string, *[]string) {
	var listen string
	var etcd []string
	cmd := &cobra.Command{Use: "demo", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return run() }}
	cmd.Flags().StringVar(&listen, "listen", "default", "")
	cmd.Flags().StringSliceVar(&etcd, "etcd", nil, "")
	d.Bind(cmd)
	return cmd, &listen, &etcd
}

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestConfigFileFillsFlags(t *testing.T) {
	var d Daemon
	cmd, listen, etcd := command(&d, func() error { return nil })
	name := writeConfig(t, "listen: file:1\netcd: [a:1, b:2]\nlog-level: debug\n")
	cmd.SetArgs([]string{"--config", name, "--listen", "flag:1"})
	if code := Main(cmd); code != 0 {
		t.Fatalf("exit %d", code)
	}
	if *listen != "flag:1" {
		t.Errorf("listen = %q: the command line must win", *listen)
	}
	if strings.Join(*etcd, " ") != "a:1 b:2" || d.LogLevel != "debug" {
		t.Errorf("etcd = %v, log level = %q", *etcd, d.LogLevel)
	}
}

func TestBadInputIsOneLineAndExitOne(t *testing.T) {
	for name, args := range map[string][]string{
		"unknown setting": {"--config", writeConfig(t, "nonsense: 1\n")},
		"broken file":     {"--config", writeConfig(t, "\t{")},
		"missing file":    {"--config", "/does/not/exist"},
		"unknown flag":    {"--nonsense"},
		"argument":        {"extra"},
	} {
		var d Daemon
		cmd, _, _ := command(&d, func() error { return nil })
		var out bytes.Buffer
		cmd.SetErr(&out)
		cmd.SetOut(io.Discard)
		cmd.SetArgs(args)
		if code := Main(cmd); code != 1 || strings.Count(out.String(), "\n") != 1 {
			t.Errorf("%s: exit %d, output %q", name, code, out.String())
		}
	}
}

func TestErrorOfSeveralLinesIsOne(t *testing.T) {
	var d Daemon
	cmd, _, _ := command(&d, func() error { return errors.New("a\nb") })
	var out bytes.Buffer
	cmd.SetErr(&out)
	cmd.SetArgs([]string{})
	if code := Main(cmd); code != 1 || out.String() != "demo: a; b\n" {
		t.Errorf("exit %d, output %q", code, out.String())
	}
}

func TestEchoesAreDropped(t *testing.T) {
	for line, want := range map[string]string{
		"mds: mds: raft address": "mds: raft address", "canopy: layoutsvc: layoutsvc: x: y": "canopy: layoutsvc: x: y", "a: b: a: b": "a: b: a: b",
	} {
		if got := withoutEcho(line); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestLoggerRefusesUnknownLevelAndFormat(t *testing.T) {
	for _, d := range []Daemon{{LogLevel: "loud", LogFormat: "text"}, {LogLevel: "info", LogFormat: "xml"}} {
		if _, err := d.Logger(io.Discard); err == nil {
			t.Errorf("%+v was accepted", d)
		}
	}
}

// stacked is an error that prints a stack for %+v.
type stacked struct{ error }

func (s stacked) Format(f fmt.State, _ rune) {
	fmt.Fprint(f, s.Error(), "\nruntime.main\n\tproc.go:283")
}

func TestErrorsAreLoggedInOneLine(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var out strings.Builder
		log, err := (&Daemon{LogLevel: "info", LogFormat: format}).Logger(&out)
		if err != nil {
			t.Fatal(err)
		}
		log.Info("it failed", "err", stacked{errors.New("why")})
		if s := out.String(); !strings.Contains(s, "why") || strings.Contains(s, "proc.go") {
			t.Errorf("%s: %s", format, s)
		}
	}
}

// TestSignalsTogetherAreOne: the second of two signals that come together would end
// this process if it counted.
func TestSignalsTogetherAreOne(t *testing.T) {
	cmd := &cobra.Command{Use: "demo", Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error {
		for range 2 {
			if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
				return err
			}
			<-c.Context().Done()
		}
		return nil
	}}
	cmd.SetArgs([]string{})
	if code := Main(cmd); code != 0 {
		t.Errorf("exit %d", code)
	}
}
