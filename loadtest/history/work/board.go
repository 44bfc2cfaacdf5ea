package work

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/canopyfs/canopy/loadtest/history"
)

// Bounds of what belongs together in a check, so that it takes little time: its
// operations, and those whose outcome is unknown, which go with every order.
const (
	groupOps     = 140
	registerOps  = 100
	maxUnknown   = 4
	groupNames   = 5
	clientsShare = 3 // how many clients use a group at a time, about
)

// group is a few names that clients use at the same time.
type group struct {
	number  int
	ofDirs  bool
	places  []place
	left    int // operations, guarded by the board
	unknown int
}

// place is a name, and in which directory.
type place struct {
	dir  int
	name string
}

func (p place) path(h *history.Header) string { return h.Dirs[p.dir] + "/" + p.name }

// register is an extended attribute of a file, or (name = "") of a directory.
type register struct {
	dir        int
	name, attr string
}

func (r register) key(h *history.Header) string {
	return strings.TrimSuffix(place{r.dir, r.name}.path(h), "/") + "#" + r.attr
}

// registersOf returns the registers that operations have used.
func registersOf(ops []*history.Op) []register {
	seen := map[string]bool{}
	var all []register
	for _, op := range ops {
		if op.Kind != history.Set || seen[op.A] {
			continue
		}
		seen[op.A] = true
		file, attr, _ := strings.Cut(op.A, "#")
		dirName, name, _ := strings.Cut(file, "/")
		if dir, err := strconv.Atoi(strings.TrimPrefix(dirName, "d")); err == nil {
			all = append(all, register{dir, name, attr})
		}
	}
	return all
}

// activeRegister is one that clients use.
type activeRegister struct {
	register
	left, unknown int
}

// board is what the clients work on. Its methods are safe for concurrent use.
type board struct {
	h *history.Header

	mu        sync.Mutex
	rng       *rand.Rand
	groups    []*group // each place of the list has another one when its operations are used up
	registers []*activeRegister
	made      int // groups and registers so far
}

func newBoard(h *history.Header, clients int) *board {
	b := &board{h: h, rng: rand.New(rand.NewPCG(h.Seed, uint64(clients)<<32))}
	n := max(2, clients/clientsShare)
	b.groups, b.registers = make([]*group, n), make([]*activeRegister, max(2, n/2))
	for i := range b.groups {
		b.groups[i] = b.newGroupLocked(i)
	}
	for i := range b.registers {
		b.registers[i] = b.newRegisterLocked()
	}
	return b
}

// newGroupLocked makes a group of a few directories. Every third is of directories.
func (b *board) newGroupLocked(i int) *group {
	b.made++
	g := &group{number: b.made, ofDirs: i%3 == 1, left: groupOps}
	dirs := b.rng.Perm(len(b.h.Dirs))[:1+b.rng.IntN(min(3, len(b.h.Dirs)))]
	for i := range groupNames {
		g.places = append(g.places, place{dirs[i%len(dirs)], fmt.Sprintf("g%d.%d", g.number, i)})
	}
	return g
}

func (b *board) newRegisterLocked() *activeRegister {
	b.made++
	r := &activeRegister{register: register{dir: b.rng.IntN(len(b.h.Dirs)), attr: fmt.Sprint("user.h", b.made)}, left: registerOps}
	if b.rng.IntN(2) == 0 {
		r.name = registerName
	}
	return r
}

// group returns one of files or of directories for a client's next operation.
func (b *board) group(ofDirs bool) *group {
	b.mu.Lock()
	defer b.mu.Unlock()
	var fit []int
	for i, g := range b.groups {
		if g.ofDirs == ofDirs {
			fit = append(fit, i)
		}
	}
	i := fit[b.rng.IntN(len(fit))]
	if g := b.groups[i]; g.left <= 0 || g.unknown > maxUnknown {
		b.groups[i] = b.newGroupLocked(i)
	}
	g := b.groups[i]
	g.left--
	return g
}

func (b *board) register() *activeRegister {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := b.rng.IntN(len(b.registers))
	if r := b.registers[i]; r.left <= 0 || r.unknown > maxUnknown {
		b.registers[i] = b.newRegisterLocked()
	}
	r := b.registers[i]
	r.left--
	return r
}

// ended counts an outcome in what counts them.
func (b *board) ended(op *history.Op, unknown *int) {
	if op.Outcome != history.Unknown {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	*unknown++
}

// two returns two different places of a group.
func (g *group) two(rng *rand.Rand) (place, place) {
	i := rng.IntN(len(g.places))
	rest := slices.Delete(slices.Clone(g.places), i, i+1)
	return g.places[i], rest[rng.IntN(len(rest))]
}
