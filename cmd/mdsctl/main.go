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
	env := mdsctl.Env{Stdout: os.Stdout, Stderr: os.Stderr}
	if info, err := os.Stdin.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
		env.Stdin = os.Stdin
	}
	code := mdsctl.Main(ctx, os.Args[1:], env)
	stop()
	os.Exit(code)
}
