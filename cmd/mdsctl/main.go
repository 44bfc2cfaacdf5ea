package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/canopyfs/canopy/mdsctl"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := mdsctl.Main(ctx, os.Args[1:], mdsctl.Env{Stdout: os.Stdout, Stderr: os.Stderr})
	stop()
	os.Exit(code)
}
