package layoutsvc

import (
	"fmt"
	"testing"
	"time"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
)

// shardTerm is a term in which the servers of one erasure coded group, of 4 and 2
// shards, are what the letters say: s it serves, l it serves without what it lost in a
// crash when none of the others had been heard of since, k it is at the door and has
// kept all, x it is at the door without what it lost, d its lease is over, g it has been
// gone for long, u its lease runs but it was last heard of before those at the door came.
func shardTerm(states string) (*term, *canopyv1.PlacementGroup) {
	now := time.Now()
	t := &term{s: &instance{config: Config{ServerLease: 10 * time.Second}}, servers: map[base.NodeID]*lease{}, changed: make(chan struct{})}
	pg := &canopyv1.PlacementGroup{Epoch: 7}
	for i, state := range states {
		id := uint64(i + 1)
		pg.Members, pg.InSync, pg.Shards = append(pg.Members, id), append(pg.InSync, id), append(pg.Shards, uint32(i))
		l := &lease{heard: true, heardAt: now.Add(-time.Second), until: now.Add(time.Second)}
		switch state {
		case 'l':
			l.lostAt = now.Add(-500 * time.Millisecond)
		case 'k', 'x':
			l.knocks, l.firstKnock, l.lastKnock, l.lostUnsynced = true, now.Add(-1500*time.Millisecond), now, state == 'x'
		case 'u':
			l.heardAt = now.Add(-2 * time.Second)
		case 'd':
			l.until, l.goneSince = now.Add(-500*time.Millisecond), now.Add(-400*time.Millisecond)
		case 'g':
			l.until, l.goneSince = now.Add(-time.Hour), now.Add(-time.Hour)
		}
		t.servers[base.NodeID(id)] = l
	}
	return t, pg
}

// TestShardSources is PROTOCOLS J3 for the first of a group's servers, which starts
// anew: it leaves the in-sync set if the others have all bytes without it, and else stays.
// One that lost bytes leaves for those that kept them, also if they are only at the door.
func TestShardSources(t *testing.T) {
	for states, leaves := range map[string]bool{
		"kssss":  true,
		"xssss":  true,
		"ksss":   false, // only three shards are left
		"xsss":   false,
		"xsssk":  true, // who kept all stays in sync, and is waited for
		"xsskk":  true,
		"xkkkk":  true,
		"ksssk":  false, // of two that kept all one must stay
		"xsssx":  false, // that one has no more than this
		"xsssd":  false,
		"kssslk": false, // who lost bytes when this one was away does not replace it
		"klllll": false,
		"kuuuuu": false, // they may have died with this one
		"xuuuuu": true,  // if they did and lost nothing, they have what this one lost
		"xlllll": false, // after a power loss of all each has what the others lack
		"xlsssk": true,
	} {
		term, pg := shardTerm(states)
		if got := term.sourceLocked(pg, 4, 1, states[0] == 'x'); got != leaves {
			t.Errorf("%s: leaves %v, want %v", states, got, leaves)
		}
	}
}

// TestShardsHeardOf: who may stay when the first of a group's servers is taken out,
// since it does not answer.
func TestShardsHeardOf(t *testing.T) {
	for states, want := range map[string]string{
		"ssssss": "[] [2 3 4 5 6]", // none of them was heard of since the report came
		"dssssd": "[] [2 3 4 5]",
		"dsskkx": "[] [2 3]",
		"dlllls": "[] [6]", // the first may come back with what the others lost
		"glllls": "[] [2 3 4 5 6]",
	} {
		term, pg := shardTerm(states)
		heard, may, _ := term.heardOf(pg, 1, time.Now())
		if got := fmt.Sprint(heard, may); got != want {
			t.Errorf("%s: %s, want %s", states, got, want)
		}
		heard, _, _ = term.heardOf(pg, 1, time.Now().Add(-time.Minute))
		if fmt.Sprint(heard) != fmt.Sprint(may) {
			t.Errorf("%s: heard of %v lately, want %v", states, heard, may)
		}
		for _, l := range term.servers {
			l.heardAt = l.heardAt.Add(-6 * time.Second) // more than half a lease
		}
		if heard, _, _ = term.heardOf(pg, 1, time.Now().Add(-time.Minute)); len(heard) > 0 {
			t.Errorf("%s: %v count as heard of lately", states, heard)
		}
	}
}
