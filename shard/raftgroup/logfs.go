package raftgroup

import (
	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/vfs"
)

func newLogFS() config.IFS { return vfs.Default }
