// Command mds runs a metadata node. See mds --help.
package main

import (
	"os"

	"github.com/canopyfs/canopy/cmd/internal/cli"
	"github.com/canopyfs/canopy/cmd/internal/daemon"
)

func main() { os.Exit(cli.Main(daemon.MDS())) }
