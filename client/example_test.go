package client_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"time"

	"github.com/canopyfs/canopy/client"
)

// A program writes a checkpoint by path: complete or the previous version, never
// half of it.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.Connect(ctx, client.Config{Cluster: "localhost:7700"})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	fsys := c.FS(client.Cred{UID: 1000, GID: 1000})
	if err := fsys.MkdirAll(ctx, "/run/checkpoints", 0o755); err != nil {
		log.Fatal(err)
	}
	f, err := fsys.Create(ctx, "/run/checkpoints/step-100.tmp")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := f.WriteAt(ctx, make([]byte, 64<<20), 0); err != nil {
		log.Fatal(err)
	}
	if err := f.Fsync(ctx); err != nil { // durable on all in-sync replicas
		log.Fatal(err)
	}
	if err := f.Close(ctx); err != nil {
		log.Fatal(err)
	}
	if err := fsys.Rename(ctx, "/run/checkpoints/step-100.tmp", "/run/checkpoints/step-100"); err != nil {
		log.Fatal(err)
	}
}

// Errors answer to the errors of io/fs.
func ExampleFS_Stat() {
	ctx := context.Background()
	c, err := client.Connect(ctx, client.Config{Cluster: "node1:7700,node2:7700,node3:7700"})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	info, err := c.FS(client.Cred{}).Stat(ctx, "/data/manifest.json")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		fmt.Println("no manifest yet")
	case err != nil:
		log.Fatal(err)
	default:
		fmt.Println(info.Size(), info.ModTime())
	}
}

// Several processes append lines to one log; no line is lost or mixed.
func ExampleFile_Append() {
	ctx := context.Background()
	c, err := client.Connect(ctx, client.Config{Cluster: "localhost:7700"})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	f, err := c.FS(client.Cred{}).OpenFile(ctx, "/logs/eval.log", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close(ctx)
	off, err := f.Append(ctx, []byte("step 100 loss 0.25\n"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the line is at", off)
}

// Listing a large directory page by page, by inode.
func ExampleClient_ReadDir() {
	ctx := context.Background()
	c, err := client.Connect(ctx, client.Config{Cluster: "localhost:7700", Relaxed: time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	dir, _, err := c.FS(client.Cred{}).Walk(ctx, "/data", true)
	if err != nil {
		log.Fatal(err)
	}
	defer dir.Release()
	req := client.ReadDirRequest{Plus: true}
	for {
		page, err := c.ReadDir(ctx, client.Cred{}, dir, req)
		if err != nil {
			log.Fatal(err)
		}
		for _, e := range page.Entries {
			fmt.Println(string(e.Name), e.GetAttr().GetSize())
			req.Cookie = e.Cookie
		}
		if page.EOF {
			break
		}
		req.Mark = page.Mark
	}
}
