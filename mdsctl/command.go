package mdsctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/canopyfs/canopy/api/wire"
	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/client/inspect"
	"github.com/canopyfs/canopy/internal/local"
)

// Env is what the commands take from the process around them.
type Env struct {
	Stdout, Stderr io.Writer
	Stdin          io.Reader // who can be asked; nil: nobody
}

// app is one run of the command.
type app struct {
	env     Env
	cluster string
	output  string
	timeout time.Duration
	dial    []grpc.DialOption // added to every connection, by tests
	// dirPaths looks for the paths of directories, as far as ctx allows; nil: in the
	// namespace.
	dirPaths func(ctx context.Context, inos []uint64, found map[uint64]string)
}

const rootHelp = `mdsctl shows and checks a Canopy cluster.

It finds the cluster by --cluster HOST:PORT[,HOST:PORT...] (metadata nodes), else
by the environment variable CANOPY_CLUSTER, else it takes the "canopy up" that
runs on this machine.

PATH is a path of the namespace, such as /data, or a path at or below a Canopy
mount on this machine.

Exit code 0: all is well. 1: the command failed, or status, checksum or fsck
found something wrong; one line on standard error says what.`

// New returns the root command, ready for Execute.
func New(env Env) *cobra.Command { return (&app{env: env}).command() }

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use: "mdsctl", Short: "Show and check a Canopy cluster", Long: rootHelp,
		SilenceUsage: true, SilenceErrors: true,
		Example: "  mdsctl status\n  mdsctl stat /data/set/train.tar\n  mdsctl fsck --data -o json",
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if a.output != "table" && a.output != "json" {
				return fmt.Errorf("-o %s: want table or json", a.output)
			}
			if a.timeout <= 0 {
				return fmt.Errorf("--timeout %v: want a positive time, such as 5s", a.timeout)
			}
			return nil
		},
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetOut(a.env.Stdout)
	root.SetErr(a.env.Stderr)
	f := root.PersistentFlags()
	f.StringVar(&a.cluster, "cluster", "", "host:port[,host:port...] of metadata nodes")
	f.StringVarP(&a.output, "output", "o", "table", "table or json")
	f.DurationVar(&a.timeout, "timeout", 5*time.Second, "how long one process may take to answer")
	root.AddCommand(a.statusCommand(), a.nodeCommand(), a.shardCommand(), a.subtreeCommand(), a.sessionCommand(),
		a.poolCommand(), a.dataServerCommand(), a.scrubCommand(), a.keyCommand(), a.statCommand(), a.layoutCommand(), a.lockCommand(), a.quotaCommand(), a.policyCommand(), a.migrateCommand(), a.splitCommand(), a.mergeCommand(), a.fragmentsCommand(), a.checksumCommand(), a.fsckCommand(), a.topCommand())
	return root
}

// group makes a command that only has subcommands.
func group(use, short string, subcommands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: noArgs, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	c.AddCommand(subcommands...)
	return c
}

// noArgs refuses arguments; of a group they are a subcommand that is not known.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if c.HasSubCommands() {
		return fmt.Errorf("unknown command %q: see %s --help", args[0], c.CommandPath())
	}
	return fmt.Errorf("%s takes no arguments, got %q", c.CommandPath(), args[0])
}

// oneArg wants exactly one argument of that name.
func oneArg(name string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("%s wants one %s, got %d arguments (see %s --help)", c.CommandPath(), name, len(args), c.CommandPath())
		}
		return nil
	}
}

// Main runs the command line args and returns the exit code: 0, or 1 after one
// line on Stderr.
func Main(ctx context.Context, args []string, env Env) int { return (&app{env: env}).main(ctx, args) }

func (a *app) main(ctx context.Context, args []string) int {
	root := a.command()
	root.SetArgs(args)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w (see %s --help)", err, c.CommandPath())
	})
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintf(a.env.Stderr, "mdsctl: %s\n", oneLine(err))
		return 1
	}
	return 0
}

func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// connect finds the cluster and its placement map.
func (a *app) connect(ctx context.Context) (*inspect.Cluster, error) {
	address, err := local.Find(a.cluster)
	if err != nil {
		return nil, err
	}
	host, _ := os.Hostname() // only for people
	return inspect.Connect(ctx, address, inspect.Options{Timeout: a.timeout, Caller: wire.Caller{Host: host, PID: os.Getpid()}, DialOptions: a.dial})
}

// withCluster runs do with a connection.
func (a *app) withCluster(ctx context.Context, do func(*inspect.Cluster) error) (err error) {
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	return do(c)
}

// cred is who runs the command.
func (a *app) cred() client.Cred {
	return client.Cred{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
}

// walk finds what path names: its attributes, and the path in the namespace.
func (a *app) walk(ctx context.Context, typed string, follow bool) (attr *client.Attr, path string, err error) {
	return a.at(ctx, typed, follow, func(context.Context, *client.Client, *client.Inode) error { return nil })
}

// at is walk, and calls do with what the path leads to.
func (a *app) at(ctx context.Context, typed string, follow bool, do func(context.Context, *client.Client, *client.Inode) error) (attr *client.Attr, path string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 4*a.timeout)
	defer cancel()
	err = a.reach(ctx, typed, follow, func(c *client.Client, n *client.Inode, at *client.Attr, p string) error {
		attr, path = at, p
		return do(ctx, c, n)
	})
	if path == "" {
		return nil, "", err
	}
	return attr, path, err
}

// reach calls do with what a path leads to, for as long as do takes.
func (a *app) reach(ctx context.Context, typed string, follow bool, do func(c *client.Client, n *client.Inode, attr *client.Attr, path string) error) (err error) {
	path, err := local.NamespacePath(typed)
	if err != nil {
		return err
	}
	// From here on the path says which cluster is meant.
	if a.cluster, err = local.FindFor(a.cluster, typed); err != nil {
		return err
	}
	finding, cancel := context.WithTimeout(ctx, 4*a.timeout)
	defer cancel()
	c, err := client.Connect(finding, client.Config{Cluster: a.cluster, Mount: "mdsctl"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(ctx)) }()
	n, attr, err := c.FS(a.cred()).Walk(finding, path, follow)
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = fmt.Errorf("%s: %w", path, pe.Err) // which step of the walk failed is no news
	}
	if err != nil {
		return err
	}
	defer n.Release()
	return do(c, n, attr, path)
}
