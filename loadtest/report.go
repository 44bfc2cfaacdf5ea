package loadtest

import (
	"time"

	"github.com/canopyfs/canopy/loadtest/hist"
	"github.com/canopyfs/canopy/loadtest/proc"
)

// ReportFormat is the version of the JSON form of Report. Fields are only added.
const ReportFormat = 1

// Report is the outcome of one command.
type Report struct {
	Format   int               `json:"format"`
	Command  string            `json:"command"` // meta, floor, list, data or checkpoint
	Machine  proc.Machine      `json:"machine"`
	Settings map[string]string `json:"settings"` // the flags that matter
	Series   []Series          `json:"series,omitempty"`
	Floors   []Floor           `json:"floors,omitempty"`
	Ratios   []Ratio           `json:"ratios,omitempty"`
	Notes    []string          `json:"notes,omitempty"`
}

// Names of series: what was measured, and the file systems that do the same calls
// for comparison.
const (
	SeriesTarget = "target"
	SeriesMemfs  = "floor: file system in memory"
	SeriesLoop   = "floor: go-fuse loopback over the local disk"
)

// Series is one pass over the phases.
type Series struct {
	Name   string  `json:"name"`
	Target string  `json:"target"`
	Phases []Phase `json:"phases"`
}

// Phase is one kind of operation in one kind of directory.
type Phase struct {
	Phase         string       `json:"phase"`
	Dirs          string       `json:"dirs"` // shared or own; of small files, their number
	Ops           int64        `json:"ops"`
	Entries       int64        `json:"entries,omitempty"` // names listed, of readdir
	Errors        int64        `json:"errors"`
	FirstError    string       `json:"first_error,omitempty"`
	Seconds       float64      `json:"seconds"`
	OpsPerSec     float64      `json:"ops_per_s"`
	EntriesPerSec float64      `json:"entries_per_s,omitempty"`
	Latency       hist.Latency `json:"latency"`
	CPU           []CPU        `json:"cpu,omitempty"`
}

// CPU is what a group of processes used during a phase.
type CPU struct {
	Who        string  `json:"who"` // "load", "mount", "servers" or "mount and servers"
	Seconds    float64 `json:"seconds"`
	PerKiloOps float64 `json:"seconds_per_1000_ops"`
}

// Floor is what one part does by itself.
type Floor struct {
	Name     string            `json:"name"`
	Rate     float64           `json:"rate"`
	Unit     string            `json:"unit"` // ops/s, entries/s or MB/s
	Latency  *hist.Latency     `json:"latency,omitempty"`
	CPU      []CPU             `json:"cpu,omitempty"`
	Settings map[string]string `json:"settings,omitempty"`
	NotTaken string            `json:"not_taken,omitempty"` // why there is no rate
}

// Ratio compares a phase with a floor of the same run.
type Ratio struct {
	What   string  `json:"what"`
	Value  float64 `json:"value"`
	Target float64 `json:"target,omitempty"`  // what Canopy aims for
	AtMost bool    `json:"at_most,omitempty"` // Target is an upper bound
}

// Met reports whether the ratio is what Canopy aims for; true without a Target.
func (r Ratio) Met() bool {
	switch {
	case r.Target == 0:
		return true
	case r.AtMost:
		return r.Value <= r.Target
	}
	return r.Value >= r.Target
}

// Find returns the phase of the series, nil if it has none such.
func (s *Series) Find(dirs, phase string) *Phase {
	for i := range s.Phases {
		if p := &s.Phases[i]; p.Dirs == dirs && p.Phase == phase {
			return p
		}
	}
	return nil
}

// Floor returns the floor of that name, nil if it was not taken.
func (r *Report) Floor(name string) *Floor {
	for i := range r.Floors {
		if f := &r.Floors[i]; f.Name == name && f.NotTaken == "" {
			return f
		}
	}
	return nil
}

// Failed returns how many operations failed in all series.
func (r *Report) Failed() (n int64) {
	for _, s := range r.Series {
		for _, p := range s.Phases {
			n += p.Errors
		}
	}
	return n
}

// NewCPU returns the CPU time of a group over ops operations.
func NewCPU(who string, used time.Duration, ops int64) CPU {
	c := CPU{Who: who, Seconds: used.Seconds()}
	if ops > 0 {
		c.PerKiloOps = c.Seconds / float64(ops) * 1000
	}
	return c
}
