package base

import "testing"

func TestInoNamesItsShard(t *testing.T) {
	i := NewIno(MaxShard, 7)
	if i.Shard() != MaxShard {
		t.Fatalf("shard of %v = %v, want %v", i, i.Shard(), MaxShard)
	}
	if int64(i) < 0 {
		t.Fatalf("inode number %v of the largest shard is negative as a signed integer", i)
	}
}

func TestParseAgreesWithString(t *testing.T) {
	if got, err := ParseIno(NewIno(3, 99).String()); err != nil || got != NewIno(3, 99) {
		t.Errorf("ParseIno: %v, %v", got, err)
	}
	if got, err := ParseShardID(ShardID(12).String()); err != nil || got != 12 {
		t.Errorf("ParseShardID: %v, %v", got, err)
	}
	if got, err := ParseSubtreeID(SubtreeID(12).String()); err != nil || got != 12 {
		t.Errorf("ParseSubtreeID: %v, %v", got, err)
	}
	if got, err := ParseNodeID(NodeID(12).String()); err != nil || got != 12 {
		t.Errorf("ParseNodeID: %v, %v", got, err)
	}
	if got, err := ParseClientID(ClientID(0xabc).String()); err != nil || got != 0xabc {
		t.Errorf("ParseClientID: %v, %v", got, err)
	}
	for _, bad := range []string{"", "0", "-1", "x", "1 "} {
		if _, err := ParseShardID(bad); err == nil {
			t.Errorf("ParseShardID(%q) accepted it", bad)
		}
	}
	if _, err := ParseShardID("524288"); err == nil {
		t.Error("ParseShardID accepted 2^19")
	}
}
