package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/canopyfs/canopy/clientfuse/mountopt"
	"github.com/canopyfs/canopy/loadtest/floor"
	"github.com/canopyfs/canopy/loadtest/loopfs"
	"github.com/canopyfs/canopy/loadtest/memfs"
	"github.com/canopyfs/canopy/loadtest/meta"
)

// childCommand holds what loadtest runs in processes of its own. Each lives
// until its standard input ends.
func childCommand() *cobra.Command {
	c := &cobra.Command{Use: "child", Hidden: true, Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	c.AddCommand(
		&cobra.Command{Use: "worker", Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error {
			return meta.Child(c.Context(), open, os.Stdin, os.Stdout)
		}},
		&cobra.Command{Use: "stream", Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error {
			return floor.ServeStream(c.Context(), os.Stdin, os.Stdout)
		}},
		&cobra.Command{Use: "memfs DIR OPTIONS", Args: cobra.ExactArgs(2), RunE: func(c *cobra.Command, args []string) error {
			options := mountopt.Options{}
			if err := options.Set(args[1]); err != nil {
				return fmt.Errorf("options: %w", err)
			}
			return memfs.Serve(c.Context(), args[0], options, os.Stdin, os.Stdout)
		}},
		&cobra.Command{Use: "loopback BACKING DIR OPTIONS", Args: cobra.ExactArgs(3), RunE: func(c *cobra.Command, args []string) error {
			options := mountopt.Options{}
			if err := options.Set(args[2]); err != nil {
				return fmt.Errorf("options: %w", err)
			}
			return loopfs.Serve(c.Context(), args[0], args[1], options, os.Stdin, os.Stdout)
		}},
	)
	return c
}

// self returns the command that runs this program with other arguments.
func self(ctx context.Context, args ...string) *exec.Cmd {
	name, err := os.Executable()
	if err != nil {
		name = os.Args[0]
	}
	return exec.CommandContext(ctx, name, args...)
}

func spawnWorker(ctx context.Context) *exec.Cmd {
	cmd := self(ctx, "child", "worker")
	cmd.Stderr = os.Stderr
	return cmd
}

func spawnStream(ctx context.Context) *exec.Cmd { return self(ctx, "child", "stream") }

func spawnMemfs(ctx context.Context, dir string, options mountopt.Options) *exec.Cmd {
	return self(ctx, "child", "memfs", dir, options.String())
}

func spawnLoopback(ctx context.Context, backing, dir string, options mountopt.Options) *exec.Cmd {
	return self(ctx, "child", "loopback", backing, dir, options.String())
}
