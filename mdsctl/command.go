package mdsctl

import (
	"context"
	"io"

	"github.com/spf13/cobra"
)

// Env is what the commands take from the process around them.
type Env struct {
	Stdout, Stderr io.Writer
	// Getenv is os.Getenv; CANOPY_CLUSTER is read through it.
	Getenv func(string) string
}

// New returns the root command, ready for Execute.
func New(env Env) *cobra.Command {
	root := &cobra.Command{Use: "mdsctl", SilenceUsage: true, SilenceErrors: true}
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	return root
}

// Main runs the command line args and returns the exit code: 0, or 1 after one
// line on Stderr.
func Main(ctx context.Context, args []string, env Env) int {
	root := New(env)
	root.SetArgs(args)
	if err := root.ExecuteContext(ctx); err != nil {
		_, _ = io.WriteString(env.Stderr, "mdsctl: "+err.Error()+"\n")
		return 1
	}
	return 0
}
