package mdsctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/client/inspect"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
)

// hot gives the fake cluster a storm of creates in one directory of shard 1, by a client
// that uses shard 2 as well, where a directory lies that was split over both.
func (f *fakeCluster) hot() {
	names := make([]float64, 16)
	for i := range names {
		names[i] = 1000.0 / 16
	}
	storm := &canopyv1.HeatRates{CreateOpsPerSecond: 1000, LookupOpsPerSecond: 500, LatencySecondsPerSecond: 6, ServeSecondsPerSecond: 0.03, QueueSecondsPerSecond: 3, ConflictSecondsPerSecond: 0.15}
	half := &canopyv1.HeatRates{LookupOpsPerSecond: 50, OverOpsPerSecond: 5, ServeSecondsPerSecond: 0.001, LatencySecondsPerSecond: 0.01}
	split := shard.FragmentMap{{Lo: 0, Subtree: 1}, {Lo: shard.BorderEnd / 2, Subtree: 77}}.Proto()
	f.status[node1].heat = []*canopyv1.ShardHeat{{
		Shard: 1, Node: 1, LeaseEpoch: 5, SinceSeconds: 42, HalfLifeSeconds: 60, QueueCommands: 12,
		Total: &canopyv1.HeatRates{CreateOpsPerSecond: 1000, LookupOpsPerSecond: 560, ReaddirOpsPerSecond: 1, ChangeOpsPerSecond: 3, LatencySecondsPerSecond: 6.2, ServeSecondsPerSecond: 0.04, QueueSecondsPerSecond: 3, ConflictSecondsPerSecond: 0.15},
		Ops: []*canopyv1.OpHeat{{Op: "lookup", OpsPerSecond: 560, ServeSecondsPerSecond: 0.01, LatencySecondsPerSecond: 0.2},
			{Op: "create", OpsPerSecond: 1000, ServeSecondsPerSecond: 0.03, LatencySecondsPerSecond: 6, QueueSecondsPerSecond: 3, ConflictSecondsPerSecond: 0.15}},
		Dirs: []*canopyv1.DirHeat{
			{Ino: 100, Subtree: 1, Rates: storm, Names: []string{"f1.jpg", "bad\x1b[2J"}, CreateOpsPerSecondByHash: names, Found: true, Entries: 123456, Subdirectories: 1, Parent: 1, Name: []byte("frames"),
				Clients: []*canopyv1.PairHeat{{Dir: 100, Client: 0xabc, Rates: storm}}},
			{Ino: 1, Subtree: 1, Rates: half, Found: true, Entries: 10, Subdirectories: 3, Parent: 1, Fragments: split, Clients: []*canopyv1.PairHeat{{Dir: 1, Client: 0xdef, Rates: half}}},
			{Ino: 300, Subtree: 9, Rates: &canopyv1.HeatRates{ChangeOpsPerSecond: 3}},
		},
		Clients: []*canopyv1.ClientHeat{{Client: 0xabc, Host: "gpu7", Pid: 55, Mount: "/mnt", Rates: storm, Dirs: []*canopyv1.PairHeat{{Dir: 100, Client: 0xabc, Rates: storm}}}},
	}}
	f.status[node2].heat = []*canopyv1.ShardHeat{{
		Shard: 2, Node: 2, LeaseEpoch: 5, SinceSeconds: 3600, HalfLifeSeconds: 60, LostOps: 7, Total: half,
		Ops:     []*canopyv1.OpHeat{{Op: "lookup", OpsPerSecond: 50, ServeSecondsPerSecond: 0.001, LatencySecondsPerSecond: 0.01}},
		Dirs:    []*canopyv1.DirHeat{{Ino: 1, Subtree: 77, Rates: half, Found: true, Entries: 12, Parent: 1, Fragments: split, Clients: []*canopyv1.PairHeat{{Dir: 1, Client: 0xabc, Rates: half}}}},
		Clients: []*canopyv1.ClientHeat{{Client: 0xabc, Host: "gpu7", Pid: 55, Mount: "/mnt", Rates: half, Dirs: []*canopyv1.PairHeat{{Dir: 1, Client: 0xabc, Rates: half}}}, {Client: 0xdef, Rates: half}},
	}}
}

func TestTopOutput(t *testing.T) {
	f := newFake(t)
	f.hot()
	for args, file := range map[string]string{
		"top": "top.txt", "top --by client": "top-client.txt", "top --by op": "top-op.txt", "top --by shard": "top-shard.txt", "top --by node": "top-node.txt", "top -o json": "top.json",
	} {
		code, stdout, stderr := f.run(strings.Fields(args)...)
		if code != 0 || stderr != "" {
			t.Errorf("%s: exit %d, %s", args, code, stderr)
		}
		golden(t, file, stdout)
	}
	if _, stdout, _ := f.run("top", "-n", "1", "-o", "json"); !isJSON(stdout, func(r topReport) bool { return len(r.Dirs) == 1 && r.Dirs[0].Ino == 100 && len(r.Clients) == 1 }) {
		t.Errorf("with -n 1: %s", stdout)
	}
}

func isJSON(text string, ok func(topReport) bool) bool {
	var r topReport
	return json.Unmarshal([]byte(text), &r) == nil && ok(r)
}

// TestTopOfAClusterThatIsNotWell: a shard that nobody tells of is a row, and no failure
// of the others.
func TestTopOfAClusterThatIsNotWell(t *testing.T) {
	f := newFake(t)
	f.hot()
	f.kill(node2)
	for by, file := range map[string]string{"dir": "top-problem.txt", "shard": "top-shard-problem.txt"} {
		code, stdout, stderr := f.run("top", "--by", by)
		if code != 0 || stderr != "" {
			t.Errorf("exit %d, %s", code, stderr)
		}
		golden(t, file, stdout)
	}
	f.status[node1].heat = nil
	if code, _, stderr := f.run("top"); code != 1 || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "shard 1: no holder answers: node 2: ") {
		t.Errorf("nobody tells: exit %d, %s", code, stderr)
	}
	// Of two nodes that both believe to hold a shard the later lease counts.
	old := &canopyv1.ShardHeat{Shard: 1, Node: 1, LeaseEpoch: 4}
	f.status[node1].heat, f.status[node3].heat = []*canopyv1.ShardHeat{old}, []*canopyv1.ShardHeat{{Shard: 1, Node: 3, LeaseEpoch: 6}}
	if _, stdout, _ := f.run("top", "-o", "json"); !isJSON(stdout, func(r topReport) bool { return r.Shards[0].Node == 3 }) {
		t.Errorf("the former holder counts: %s", stdout)
	}
}

func TestTopBadInput(t *testing.T) {
	f := newFake(t)
	for args, want := range map[string]string{"top --by x": "want one of client, dir", "top --window 5m": "want 10s, 1m or 10m", "top -n 0": "at least 1", "top x": "no arguments"} {
		if code, _, stderr := f.run(strings.Fields(args)...); code != 1 || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit %d, %s", args, code, stderr)
		}
	}
}

// load makes a report of shards with a directory in some of them.
func load(shards []float64, dir topDir) *topReport {
	r := &topReport{}
	for i, ops := range shards {
		r.Shards = append(r.Shards, topShard{Shard: uint64(i + 1), topRates: topRates{OpsPerSecond: ops}})
	}
	dir.Fragments = max(dir.Fragments, 1)
	for _, p := range dir.Places {
		dir.OpsPerSecond += p.OpsPerSecond
	}
	r.Dirs = []topDir{dir}
	return r
}

// TestAdvice: what a split or a move would do is worked out by what is counted.
func TestAdvice(t *testing.T) {
	at := func(ops ...float64) (places []topPlace) {
		for i, x := range ops {
			places = append(places, topPlace{Shard: uint64(i + 1), OpsPerSecond: x})
		}
		return places
	}
	skewed := make([]float64, 16)
	skewed[5] = 95
	skewed[12] = 5
	for name, x := range map[string]struct {
		shards []float64
		dir    topDir
		hint   string
	}{
		"a directory that is nearly all of a shard": {[]float64{1000, 100, 100, 100}, topDir{Ino: 7, Places: at(950)},
			"95 % of shard 1; split in 4: names fall 25/25/25/25 %, shard 1 1000 -> 288/s, the busiest (2) 338/s"},
		"three shards take four parts": {[]float64{1000, 0, 0}, topDir{Ino: 7, Places: at(1000)},
			"100 % of shard 1; split in 4: names fall 25/25/25/25 %, shard 1 1000 -> 500/s, the busiest (1) 500/s"},
		"names that hash alike": {[]float64{1000, 0, 0, 0}, topDir{Ino: 7, Places: at(1000), CreatesByHash: skewed},
			"100 % of shard 1; neither a split nor a move would help"},
		"one of several hot directories": {[]float64{1000, 100}, topDir{Ino: 7, Places: at(400)},
			"40 % of shard 1; move to shard 2: shard 1 1000 -> 600/s, the busiest (1) 600/s"},
		"the root cannot be moved":           {[]float64{1000, 100}, topDir{Ino: 1, Places: at(400)}, "40 % of shard 1; split in 2: names fall 50/50 %, shard 1 1000 -> 800/s, the busiest (1) 800/s"},
		"a small part":                       {[]float64{1000, 100}, topDir{Ino: 7, Places: at(50)}, "leave: 5 % of shard 1"},
		"a shard that is not busier":         {[]float64{1000, 1000}, topDir{Ino: 7, Places: at(500)}, "50 % of shard 1; neither a split nor a move would help"},
		"one shard":                          {[]float64{1000}, topDir{Ino: 7, Places: at(500)}, "50 % of shard 1; no other shard can take any of it: mdsctl shard create"},
		"a directory that is split":          {[]float64{1000, 800}, topDir{Ino: 7, Places: at(500, 400), Fragments: 4}, "50 % of shard 1, split in 4 already"},
		"one that has gone, or an open file": {[]float64{1000, 100}, topDir{Ino: 7}, ""},
	} {
		r := load(x.shards, x.dir)
		r.advise(&r.Dirs[0])
		if d := r.Dirs[0]; d.Hint != x.hint {
			t.Errorf("%s: %q, want %q (%+v)", name, d.Hint, x.hint, d.Advice)
		} else if d.Advice != nil && d.Advice.Split != nil {
			sum := 0.0
			for _, s := range d.Advice.Split.Shares {
				sum += s
			}
			if math.Abs(sum-1) > 1e-9 {
				t.Errorf("%s: shares %v", name, d.Advice.Split.Shares)
			}
		}
	}
	// Shards that are full or silent get nothing.
	r := load([]float64{1000, 0, 0, 10}, topDir{Ino: 7, Places: at(400)})
	r.Shards[1].ReadOnly, r.Shards[2].Error = "its disk is full", "no holder answers"
	r.advise(&r.Dirs[0])
	if a := r.Dirs[0].Advice; a.Move.To != 4 || a.Split.Fragments != 2 {
		t.Errorf("%+v %+v", a.Move, a.Split)
	}
}

func TestFrame(t *testing.T) {
	got := frame("0123456789\nnäme \x1b[2J\nthird\nfourth\n", 6, 4)
	if want := screenHome + "012345" + lineEnd + "näme \uFFFD" + lineEnd + "third\x1b[K" + screenRest; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// top is a run of the command over the fake cluster.
func (f *fakeCluster) top(t *testing.T, out *bytes.Buffer) *top {
	a := &app{env: Env{Stdout: out, Stderr: out}, dial: []grpc.DialOption{f.dialer()}, dirPaths: f.dirPaths, cluster: node1, output: "table", timeout: 2 * time.Second}
	cl, err := a.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	return &top{app: a, cl: cl, by: "dir", window: time.Minute, n: 5}
}

// TestTopOnAScreen: keys and a new size change what is shown; q ends it.
func TestTopOnAScreen(t *testing.T) {
	f := newFake(t)
	f.hot()
	var out bytes.Buffer
	width := 200
	keys := strings.NewReader("cs")
	key := func() (byte, error) {
		b, err := keys.ReadByte()
		if err != nil && width == 200 {
			width = 20
			return 0, nil
		} else if err != nil {
			return 'q', nil
		}
		return b, nil
	}
	x := f.top(t, &out)
	if err := x.draw(t.Context(), &out, func() (int, int) { return width, 30 }, key); err != nil {
		t.Fatal(err)
	}
	frames := strings.Split(out.String(), screenHome)[1:]
	if len(frames) != 4 || !strings.Contains(frames[0], "/data/frames") || !strings.Contains(frames[1], "gpu7[55]:/mnt") || !strings.Contains(frames[2], "WAITING") {
		t.Fatalf("%d frames: %q", len(frames), frames)
	}
	for line := range strings.SplitSeq(frames[3], lineEnd) {
		if len(strings.TrimSuffix(line, "\x1b[K"+screenRest)) > 20 {
			t.Errorf("a line is longer than the screen: %q", line)
		}
	}
	if ask := x.pressed('w'); !ask || x.window != 10*time.Minute {
		t.Errorf("the next window is %v", x.window)
	}
}

// TestTopInBlocks: without a terminal --watch prints one look, and ends with the command.
func TestTopInBlocks(t *testing.T) {
	f := newFake(t)
	f.hot()
	var out bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	x := f.top(t, &out)
	x.env.Stdout = writerFunc(func(b []byte) (int, error) {
		if strings.Contains(string(b), "/data/frames") {
			cancel() // seen
		}
		return out.Write(b)
	})
	if err := x.inBlocks(ctx); err != nil || !strings.Contains(out.String(), "ops/s at 2 of 2 shards") {
		t.Errorf("%v: %s", err, out.String())
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestTopOfNobody: a report without any answer has no rows that mislead.
func TestTopOfNobody(t *testing.T) {
	r := newTopReport(&canopyv1.PlacementMap{}, []inspect.ShardHeat{{Shard: 3, Err: fserr.New(fserr.NotReady, "", errors.New("it starts"))}}, 60, 5)
	if text := r.text("dir"); !strings.Contains(text, "0 ops/s at 0 of 1 shards") || !strings.Contains(text, "shard 3: ") {
		t.Error(text)
	}
	if got := pathText("", 9); got != "inode "+fmt.Sprint(base.Ino(9)) {
		t.Error(got)
	}
}
