// Package cli is what every binary's main shares: flags that can also come
// from a file, logging, signals, and the rule that bad input ends in one clear
// line and a non-zero exit.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"sort"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// secondSignalAfter: signals that come together are one. timeout(1) sends two, to
// the process and to its group.
const secondSignalAfter = time.Second

// Main runs the command with the process's arguments and returns the exit
// code: 0, or 1 after one line on standard error. SIGINT and SIGTERM cancel the
// context; one that comes secondSignalAfter later or more ends the process at once. A reader of the output that
// went away does not end the process: it has a mount and data to put in order.
func Main(cmd *cobra.Command) int {
	// Taking the signal, unlike ignoring it, is not inherited by children.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// Then the default action: the second signal ends it.
	context.AfterFunc(ctx, func() { time.AfterFunc(secondSignalAfter, stop) })
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w (see %s --help)", err, c.CommandPath())
	})
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return 0
	}
	fmt.Fprintln(cmd.ErrOrStderr(), withoutEcho(cmd.Name()+": "+oneLine(err)))
	return 1
}

// withoutEcho drops what repeats the part before it: a command, its part and the
// package behind may have one name.
func withoutEcho(line string) string {
	return strings.Join(slices.Compact(strings.Split(line, ": ")), ": ")
}

func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// Daemon is what the flags common to all daemons were set to.
type Daemon struct {
	LogLevel  string
	LogFormat string
	config    string
}

// Bind adds --config, --log-level and --log-format to the command. A setting
// of the file has the name of its flag; a flag on the command line wins.
func (d *Daemon) Bind(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&d.config, "config", "", "YAML file with flag names and values; flags on the command line win")
	f.StringVar(&d.LogLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&d.LogFormat, "log-format", "text", "text or json")
	previous := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if d.config != "" {
			if err := applyFile(cmd.Flags(), d.config); err != nil {
				return err
			}
		}
		if previous != nil {
			return previous(cmd, args)
		}
		return nil
	}
}

// applyFile sets the flags that the file names and the command line did not.
func applyFile(flags *pflag.FlagSet, name string) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	var settings map[string]any
	if err := yaml.Unmarshal(b, &settings); err != nil {
		return fmt.Errorf("config %s: %w", name, err)
	}
	keys := make([]string, 0, len(settings))
	for k := range settings {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		flag := flags.Lookup(k)
		if flag == nil || k == "config" {
			return fmt.Errorf("config %s: unknown setting %q", name, k)
		}
		if flag.Changed {
			continue
		}
		if err := flags.Set(k, settingText(settings[k])); err != nil {
			return fmt.Errorf("config %s: %s: %w", name, k, err)
		}
	}
	return nil
}

func settingText(v any) string {
	list, ok := v.([]any)
	if !ok {
		return fmt.Sprint(v)
	}
	parts := make([]string, len(list))
	for i, x := range list {
		parts[i] = fmt.Sprint(x)
	}
	return strings.Join(parts, ",")
}

// errorText logs an error's text alone: handlers print errors with %+v, to which
// those of some libraries answer with a stack.
func errorText(_ []string, a slog.Attr) slog.Attr {
	if err, ok := a.Value.Any().(error); ok {
		a.Value = slog.StringValue(err.Error())
	}
	return a
}

// Logger returns the logger that the flags ask for, writing to w.
func (d *Daemon) Logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(d.LogLevel)); err != nil {
		return nil, fmt.Errorf("--log-level %q: want debug, info, warn or error", d.LogLevel)
	}
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: errorText}
	switch d.LogFormat {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, fmt.Errorf("--log-format %q: want text or json", d.LogFormat)
}
