package mdsctl

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/inspect"
	"github.com/canopyfs/canopy/internal/base"
)

// topRates are what `top` shows of anything, as JSON has it. Rates are those of now:
// older operations count less.
type topRates struct {
	OpsPerSecond float64 `json:"ops_per_second"`
	// Over: so many more there may have been, before it was among what is counted.
	Over    float64 `json:"over_ops_per_second"`
	Create  float64 `json:"create_ops_per_second"`
	Lookup  float64 `json:"lookup_ops_per_second"`
	Stat    float64 `json:"stat_ops_per_second"`
	ReadDir float64 `json:"readdir_ops_per_second"`
	Unlink  float64 `json:"unlink_ops_per_second"`
	Rename  float64 `json:"rename_ops_per_second"`
	Change  float64 `json:"change_ops_per_second"`
	Other   float64 `json:"other_ops_per_second"`
	// Seconds per second, the sum over all operations.
	Latency  float64 `json:"latency_seconds_per_second"`
	Serve    float64 `json:"serve_seconds_per_second"`
	Queue    float64 `json:"queue_seconds_per_second"`
	Conflict float64 `json:"conflict_seconds_per_second"`
}

func (r *topRates) add(m *canopyv1.HeatRates) {
	for _, x := range []struct {
		to   *float64
		rate float64
	}{
		{&r.Create, m.GetCreateOpsPerSecond()}, {&r.Lookup, m.GetLookupOpsPerSecond()}, {&r.Stat, m.GetStatOpsPerSecond()},
		{&r.ReadDir, m.GetReaddirOpsPerSecond()}, {&r.Unlink, m.GetUnlinkOpsPerSecond()}, {&r.Rename, m.GetRenameOpsPerSecond()},
		{&r.Change, m.GetChangeOpsPerSecond()}, {&r.Other, m.GetOtherOpsPerSecond()},
	} {
		*x.to += x.rate
		r.OpsPerSecond += x.rate
	}
	r.Over += m.GetOverOpsPerSecond()
	r.Latency += m.GetLatencySecondsPerSecond()
	r.Serve += m.GetServeSecondsPerSecond()
	r.Queue += m.GetQueueSecondsPerSecond()
	r.Conflict += m.GetConflictSecondsPerSecond()
}

// topReport is the outcome of `top`, as JSON has it.
type topReport struct {
	HalfLifeSeconds float64     `json:"half_life_seconds"`
	Dirs            []topDir    `json:"dirs"`    // the most used first
	Clients         []topClient `json:"clients"` // the most active first
	Ops             []topOp     `json:"ops"`
	Shards          []topShard  `json:"shards"` // by id
	Nodes           []topNode   `json:"nodes"`
}

type topDir struct {
	Ino  uint64 `json:"ino"`
	Path string `json:"path"` // "": not found out, or a file that was addressed by its number
	topRates
	TimeShare     float64     `json:"time_share"` // of the time that its shards work
	Entries       uint64      `json:"entries"`    // at the shards that answered
	Subdirs       uint64      `json:"subdirectories"`
	Places        []topPlace  `json:"places"`  // who has it now, the most used first
	Clients       []topWho    `json:"clients"` // who uses it most
	Names         []string    `json:"names"`   // some that were used lately
	CreatesByHash []float64   `json:"create_ops_per_second_by_hash"`
	Fragments     int         `json:"fragments"`
	Advice        *topAdvice  `json:"advice,omitempty"`
	Hint          string      `json:"hint"` // that in words
	parts         []*topShard // where it was used
}

// topPlace is where a directory lies, or a fragment of it.
type topPlace struct {
	Shard        uint64  `json:"shard"`
	Node         uint64  `json:"node"`
	Subtree      uint64  `json:"subtree"`
	OpsPerSecond float64 `json:"ops_per_second"`
	Entries      uint64  `json:"entries"`
}

// topWho is a client of a directory.
type topWho struct {
	Client       string  `json:"client"`
	Host         string  `json:"host"`
	Pid          uint32  `json:"pid"`
	Mount        string  `json:"mount"`
	OpsPerSecond float64 `json:"ops_per_second"`
}

type topClient struct {
	Client string `json:"client"`
	Host   string `json:"host"`
	Pid    uint32 `json:"pid"`
	Mount  string `json:"mount"`
	topRates
	TimeShare float64    `json:"time_share"`
	Dirs      []topWhere `json:"dirs"` // what it uses most
	Shards    []uint64   `json:"shards"`
}

type topWhere struct {
	Ino          uint64  `json:"ino"`
	Path         string  `json:"path"`
	OpsPerSecond float64 `json:"ops_per_second"`
}

type topOp struct {
	Op           string  `json:"op"`
	OpsPerSecond float64 `json:"ops_per_second"`
	TimeShare    float64 `json:"time_share"`
	Latency      float64 `json:"latency_seconds_per_second"`
	Serve        float64 `json:"serve_seconds_per_second"`
	Queue        float64 `json:"queue_seconds_per_second"`
	Conflict     float64 `json:"conflict_seconds_per_second"`
}

type topShard struct {
	Shard        uint64  `json:"shard"`
	Node         uint64  `json:"node"`
	SinceSeconds float64 `json:"since_seconds"` // so long it has been counted there
	topRates
	QueueCommands uint64 `json:"queue_commands"`
	LostOps       uint64 `json:"lost_ops"` // not counted: too many at once
	ReadOnly      string `json:"read_only,omitempty"`
	Off           bool   `json:"off,omitempty"`   // the node does not count
	Error         string `json:"error,omitempty"` // why nobody tells
}

type topNode struct {
	Node   uint64   `json:"node"`
	Host   string   `json:"host"`
	Shards []uint64 `json:"shards"` // that it holds
	topRates
}

// newTopReport joins what the holders of all shards tell.
func newTopReport(m *canopyv1.PlacementMap, all []inspect.ShardHeat, halfLifeSeconds float64, limit int) *topReport {
	r := &topReport{HalfLifeSeconds: halfLifeSeconds, Dirs: []topDir{}, Clients: []topClient{}, Ops: []topOp{}, Shards: []topShard{}, Nodes: []topNode{}}
	who := map[uint64]topWho{}
	for _, s := range all {
		x := topShard{Shard: uint64(s.Shard), Node: s.Heat.GetNode(), SinceSeconds: s.Heat.GetSinceSeconds(), QueueCommands: s.Heat.GetQueueCommands(),
			LostOps: s.Heat.GetLostOps(), ReadOnly: s.Heat.GetReadOnly(), Off: s.Heat.GetOff(), Error: errText(s.Err)}
		x.add(s.Heat.GetTotal())
		r.Shards = append(r.Shards, x)
		for _, c := range s.Heat.GetClients() {
			if c.GetHost() != "" || c.GetMount() != "" {
				who[c.GetClient()] = topWho{Host: c.GetHost(), Pid: c.GetPid(), Mount: c.GetMount()}
			}
		}
	}
	r.joinDirs(all, who)
	r.joinClients(all, who)
	r.joinOps(all)
	r.joinNodes(m)
	r.Dirs = r.Dirs[:min(limit, len(r.Dirs))]
	r.Clients = r.Clients[:min(limit, len(r.Clients))]
	for i := range r.Dirs {
		r.advise(&r.Dirs[i])
	}
	return r
}

// serve is the time that all shards work, or some.
func serve(shards []*topShard) (sum float64) {
	for _, s := range shards {
		sum += s.Serve
	}
	return sum
}

func (r *topReport) serve() (sum float64) {
	for i := range r.Shards {
		sum += r.Shards[i].Serve
	}
	return sum
}

func portion(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return min(part/whole, 1)
}

func (r *topReport) joinDirs(all []inspect.ShardHeat, who map[uint64]topWho) {
	byIno := map[uint64]*topDir{}
	for i, s := range all {
		told := map[uint64]bool{} // clients of a directory are told with each part of it
		for _, d := range s.Heat.GetDirs() {
			x := byIno[d.GetIno()]
			if x == nil {
				x = &topDir{Ino: d.GetIno(), Places: []topPlace{}, Clients: []topWho{}, Names: []string{}, CreatesByHash: []float64{}, Fragments: 1}
				byIno[d.GetIno()] = x
			}
			x.join(&r.Shards[i], d)
			if !told[d.GetIno()] {
				x.joinWho(d.GetClients(), who)
			}
			told[d.GetIno()] = true
		}
	}
	for _, x := range byIno {
		x.TimeShare = portion(x.Serve, serve(x.parts))
		slices.SortStableFunc(x.Places, func(a, b topPlace) int { return cmp.Compare(b.OpsPerSecond, a.OpsPerSecond) })
		slices.SortFunc(x.Clients, func(a, b topWho) int {
			return cmp.Or(cmp.Compare(b.OpsPerSecond, a.OpsPerSecond), cmp.Compare(a.Client, b.Client))
		})
		r.Dirs = append(r.Dirs, *x)
	}
	slices.SortFunc(r.Dirs, func(a, b topDir) int {
		return cmp.Or(cmp.Compare(b.OpsPerSecond, a.OpsPerSecond), cmp.Compare(a.Ino, b.Ino))
	})
}

// maxTopNames bounds the names of a directory, over all shards.
const maxTopNames = 4

// join adds what a shard tells of a directory.
func (x *topDir) join(s *topShard, d *canopyv1.DirHeat) {
	x.add(d.GetRates())
	if !slices.Contains(x.parts, s) {
		x.parts = append(x.parts, s)
	}
	for _, name := range d.GetNames() {
		if len(x.Names) < maxTopNames && !slices.Contains(x.Names, name) {
			x.Names = append(x.Names, name)
		}
	}
	for i, n := range d.GetCreateOpsPerSecondByHash() {
		if i == len(x.CreatesByHash) {
			x.CreatesByHash = append(x.CreatesByHash, 0)
		}
		x.CreatesByHash[i] += n
	}
	if !d.GetFound() {
		return // it was moved, or is a file that was addressed by its number
	}
	x.Entries += d.GetEntries()
	x.Subdirs += d.GetSubdirectories()
	x.Fragments = max(x.Fragments, len(d.GetFragments()))
	x.Places = append(x.Places, topPlace{Shard: s.Shard, Node: s.Node, Subtree: d.GetSubtree(), OpsPerSecond: opsOf(d.GetRates()), Entries: d.GetEntries()})
	if d.GetIno() == uint64(base.RootIno) {
		x.Path = "/"
	} else if x.Path == "" {
		x.Path = fmt.Sprintf(".../%s", d.GetName()) // until it is resolved
	}
}

func opsOf(m *canopyv1.HeatRates) float64 {
	var r topRates
	r.add(m)
	return r.OpsPerSecond
}

func (x *topDir) joinWho(pairs []*canopyv1.PairHeat, who map[uint64]topWho) {
	for _, p := range pairs {
		w := who[p.GetClient()]
		w.Client, w.OpsPerSecond = base.ClientID(p.GetClient()).String(), opsOf(p.GetRates())
		if i := slices.IndexFunc(x.Clients, func(k topWho) bool { return k.Client == w.Client }); i >= 0 {
			x.Clients[i].OpsPerSecond += w.OpsPerSecond
		} else {
			x.Clients = append(x.Clients, w)
		}
	}
}

func (r *topReport) joinClients(all []inspect.ShardHeat, who map[uint64]topWho) {
	byID := map[uint64]*topClient{}
	for _, s := range all {
		for _, c := range s.Heat.GetClients() {
			x := byID[c.GetClient()]
			if x == nil {
				w := who[c.GetClient()]
				x = &topClient{Client: base.ClientID(c.GetClient()).String(), Host: w.Host, Pid: w.Pid, Mount: w.Mount, Dirs: []topWhere{}}
				byID[c.GetClient()] = x
			}
			x.add(c.GetRates())
			x.Shards = append(x.Shards, uint64(s.Shard))
			for _, p := range c.GetDirs() {
				if i := slices.IndexFunc(x.Dirs, func(k topWhere) bool { return k.Ino == p.GetDir() }); i >= 0 {
					x.Dirs[i].OpsPerSecond += opsOf(p.GetRates())
				} else {
					x.Dirs = append(x.Dirs, topWhere{Ino: p.GetDir(), OpsPerSecond: opsOf(p.GetRates())})
				}
			}
		}
	}
	for _, x := range byID {
		x.TimeShare = portion(x.Serve, r.serve())
		slices.SortFunc(x.Dirs, func(a, b topWhere) int {
			return cmp.Or(cmp.Compare(b.OpsPerSecond, a.OpsPerSecond), cmp.Compare(a.Ino, b.Ino))
		})
		r.Clients = append(r.Clients, *x)
	}
	slices.SortFunc(r.Clients, func(a, b topClient) int {
		return cmp.Or(cmp.Compare(b.OpsPerSecond, a.OpsPerSecond), cmp.Compare(a.Client, b.Client))
	})
}

func (r *topReport) joinOps(all []inspect.ShardHeat) {
	for _, s := range all {
		for _, o := range s.Heat.GetOps() {
			i := slices.IndexFunc(r.Ops, func(x topOp) bool { return x.Op == o.GetOp() })
			if i < 0 {
				i = len(r.Ops)
				r.Ops = append(r.Ops, topOp{Op: o.GetOp()})
			}
			x := &r.Ops[i]
			x.OpsPerSecond += o.GetOpsPerSecond()
			x.Latency += o.GetLatencySecondsPerSecond()
			x.Serve += o.GetServeSecondsPerSecond()
			x.Queue += o.GetQueueSecondsPerSecond()
			x.Conflict += o.GetConflictSecondsPerSecond()
		}
	}
	for i := range r.Ops {
		r.Ops[i].TimeShare = portion(r.Ops[i].Serve, r.serve())
	}
	slices.SortFunc(r.Ops, func(a, b topOp) int {
		return cmp.Or(cmp.Compare(b.OpsPerSecond, a.OpsPerSecond), strings.Compare(a.Op, b.Op))
	})
}

func (r *topReport) joinNodes(m *canopyv1.PlacementMap) {
	for _, n := range m.GetNodes() {
		x := topNode{Node: n.GetNode(), Host: n.GetHost(), Shards: []uint64{}}
		for _, s := range r.Shards {
			if s.Node != n.GetNode() || s.Error != "" {
				continue
			}
			x.Shards = append(x.Shards, s.Shard)
			x.sum(&s.topRates)
		}
		r.Nodes = append(r.Nodes, x)
	}
	slices.SortFunc(r.Nodes, func(a, b topNode) int { return cmp.Compare(a.Node, b.Node) })
}

// sum adds the rates of another.
func (r *topRates) sum(o *topRates) {
	r.OpsPerSecond += o.OpsPerSecond
	r.Over += o.Over
	r.Create += o.Create
	r.Lookup += o.Lookup
	r.Stat += o.Stat
	r.ReadDir += o.ReadDir
	r.Unlink += o.Unlink
	r.Rename += o.Rename
	r.Change += o.Change
	r.Other += o.Other
	r.Latency += o.Latency
	r.Serve += o.Serve
	r.Queue += o.Queue
	r.Conflict += o.Conflict
}
