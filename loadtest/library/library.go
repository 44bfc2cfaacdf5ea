// Package library puts a load on Canopy by its client library: each operation
// by a directory's inode and a name, as a mount or a program does.
package library

import (
	"context"
	"log/slog"
	"path"
	"syscall"
	"time"

	"github.com/canopyfs/canopy/client"
	"github.com/canopyfs/canopy/loadtest/target"
)

const (
	fileMode = 0o644
	dirMode  = 0o755
)

// Config says how to reach a cluster.
type Config struct {
	Cluster string        // host:port[,host:port...]
	Root    string        // path in the namespace below which the load works
	Relaxed time.Duration // see client.Config
	Logger  *slog.Logger  // may be nil
}

type libTarget struct {
	c    *client.Client
	fsys *client.FS
	cred client.Cred
	root string
}

// Open connects to the cluster.
func Open(ctx context.Context, cfg Config) (target.Target, error) {
	c, err := client.Connect(ctx, client.Config{Cluster: cfg.Cluster, Mount: "loadtest", Relaxed: cfg.Relaxed, Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	cred := client.Cred{UID: uint32(syscall.Getuid()), GID: uint32(syscall.Getgid())}
	return &libTarget{c: c, fsys: c.FS(cred), cred: cred, root: path.Clean("/" + cfg.Root)}, nil
}

func (t *libTarget) Describe() string { return "library, " + t.root }

func (t *libTarget) Close(ctx context.Context) error { return t.c.Close(ctx) }

func (t *libTarget) path(rel string) string { return path.Join(t.root, rel) }

func (t *libTarget) MkdirAll(ctx context.Context, rel string) error {
	return t.fsys.MkdirAll(ctx, t.path(rel), dirMode)
}

func (t *libTarget) RemoveAll(ctx context.Context, rel string) error {
	return t.fsys.RemoveAll(ctx, t.path(rel))
}

func (t *libTarget) Dir(ctx context.Context, rel string) (target.Dir, error) {
	n, _, err := t.fsys.Walk(ctx, t.path(rel), true)
	if err != nil {
		return nil, err
	}
	return &libDir{t: t, n: n}, nil
}

type libDir struct {
	t *libTarget
	n *client.Inode
}

func (d *libDir) Close() error { d.n.Release(); return nil }

func (d *libDir) Mkdir(ctx context.Context, name string) error {
	n, _, _, err := d.t.c.Mkdir(ctx, d.t.cred, d.n, name, dirMode)
	if err == nil {
		n.Release()
	}
	return err
}

func (d *libDir) Rmdir(ctx context.Context, name string) error {
	_, err := d.t.c.Rmdir(ctx, d.t.cred, d.n, name)
	return err
}

func (d *libDir) Create(ctx context.Context, name string) error {
	made, err := d.t.c.Create(ctx, d.t.cred, d.n, name, fileMode, syscall.O_EXCL|syscall.O_WRONLY)
	if err != nil {
		return err
	}
	err = made.File.Close(ctx)
	made.Inode.Release()
	return err
}

func (d *libDir) Stat(ctx context.Context, name string) error {
	n, _, _, err := d.t.c.Lookup(ctx, d.t.cred, d.n, name)
	if err == nil {
		n.Release()
	}
	return err
}

func (d *libDir) Open(ctx context.Context, name string) error {
	n, _, _, err := d.t.c.Lookup(ctx, d.t.cred, d.n, name)
	if err != nil {
		return err
	}
	defer n.Release()
	f, err := d.t.c.Open(ctx, d.t.cred, n, syscall.O_RDONLY)
	if err != nil {
		return err
	}
	return f.Close(ctx)
}

func (d *libDir) Rename(ctx context.Context, from, to string) error {
	_, _, err := d.t.c.Rename(ctx, d.t.cred, d.n, from, d.n, to, 0)
	return err
}

func (d *libDir) Unlink(ctx context.Context, name string) error {
	_, err := d.t.c.Unlink(ctx, d.t.cred, d.n, name)
	return err
}

func (d *libDir) List(ctx context.Context, visit func(name string, ino uint64)) (int, error) {
	return d.list(ctx, false, visit)
}

func (d *libDir) ListAttrs(ctx context.Context) (int, error) { return d.list(ctx, true, nil) }

func (d *libDir) list(ctx context.Context, plus bool, visit func(name string, ino uint64)) (int, error) {
	req := client.ReadDirRequest{Plus: plus}
	count := 0
	for {
		page, err := d.t.c.ReadDir(ctx, d.t.cred, d.n, req)
		if err != nil {
			return count, err
		}
		for _, e := range page.Entries {
			count++
			req.Cookie = e.GetCookie()
			if visit != nil {
				visit(string(e.GetName()), e.GetIno())
			}
		}
		if page.EOF {
			return count, nil
		}
		req.Mark = page.Mark
	}
}
