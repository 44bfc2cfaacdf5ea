// Command layoutsvc runs a layout service. See layoutsvc --help.
package main

import (
	"os"

	"github.com/canopyfs/canopy/cmd/internal/cli"
	"github.com/canopyfs/canopy/cmd/internal/daemon"
)

func main() { os.Exit(cli.Main(daemon.LayoutService())) }
