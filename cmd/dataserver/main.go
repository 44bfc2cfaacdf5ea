// Command dataserver runs a data server. See dataserver --help.
package main

import (
	"os"

	"github.com/canopyfs/canopy/cmd/internal/cli"
	"github.com/canopyfs/canopy/cmd/internal/daemon"
)

func main() { os.Exit(cli.Main(daemon.DataServer())) }
