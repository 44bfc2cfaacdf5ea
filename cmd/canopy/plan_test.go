package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func flagsFor() plan {
	return plan{Nodes: 1, Replicas: 1, Shards: 1, DataServers: 3, Listen: "127.0.0.1:0"}
}

func none(string) bool { return false }

func reached([]string) error { return nil }

// A wrong --etcd leaves nothing behind, and a right one can move.
func TestPlanFollowsAnOutsideEtcd(t *testing.T) {
	dir := t.TempDir()
	given := func(f string) bool { return f == "etcd" }
	with := func(etcd ...string) plan {
		p := flagsFor()
		p.Etcd = etcd
		return p
	}
	away := func([]string) error { return errors.New("no answer") }
	if _, err := settle(dir, with("wrong:1"), given, away); err == nil {
		t.Fatal("an etcd that does not answer was taken")
	}
	if _, err := settle(dir, with("right:1"), given, reached); err != nil {
		t.Fatal(err)
	}
	if _, err := settle(dir, with("wrong:1"), given, away); err == nil {
		t.Fatal("a move to an etcd that does not answer was taken")
	}
	if p, err := settle(dir, with("right:1", "right:2"), given, reached); err != nil || len(p.Etcd) != 2 {
		t.Fatalf("%v, %v", p, err)
	}
	if p, err := settle(dir, flagsFor(), none, reached); err != nil || len(p.Etcd) != 2 {
		t.Fatalf("%v, %v", p, err)
	}
	embedded := t.TempDir()
	if _, err := settle(embedded, flagsFor(), none, reached); err != nil {
		t.Fatal(err)
	}
	if _, err := settle(embedded, with("right:1"), given, reached); err == nil || !strings.Contains(err.Error(), "embedded etcd") {
		t.Fatalf("from an embedded etcd to an outside one: %v", err)
	}
}

func TestPlanIsKeptOverRestarts(t *testing.T) {
	dir := t.TempDir()
	first, err := settle(dir, flagsFor(), none, reached)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, role := range first.roles() {
		a := first.Addresses[role]
		if a == "" || seen[a] != "" {
			t.Errorf("%s has address %q (also %q's)", role, a, seen[a])
		}
		seen[a] = role
	}
	again, err := settle(dir, flagsFor(), none, reached)
	if err != nil {
		t.Fatal(err)
	}
	if again.Addresses["node1.raft"] != first.Addresses["node1.raft"] {
		t.Error("the raft address changed over a restart")
	}
}

func TestPlanRefuses(t *testing.T) {
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "thesis.tex"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	newer := t.TempDir()
	if err := os.WriteFile(filepath.Join(newer, planFile), []byte(`{"format":99}`), 0o644); err != nil {
		t.Fatal(err)
	}
	used := t.TempDir()
	if _, err := settle(used, flagsFor(), none, reached); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		dir    string
		change func(*plan)
		given  string
		want   string
	}{
		"replicas":    {t.TempDir(), func(p *plan) { p.Replicas = 2 }, "", "want 1, 3 or 5"},
		"few nodes":   {t.TempDir(), func(p *plan) { p.Replicas = 3 }, "", "--nodes 3"},
		"listen":      {t.TempDir(), func(p *plan) { p.Listen = "nonsense" }, "", "HOST:PORT"},
		"foreign":     {foreign, func(*plan) {}, "", "not empty"},
		"newer":       {newer, func(*plan) {}, "", "newer version"},
		"other nodes": {used, func(p *plan) { p.Nodes = 3 }, "nodes", "made with --nodes 1"},
	} {
		p := flagsFor()
		c.change(&p)
		_, err := settle(c.dir, p, func(f string) bool { return f == c.given }, reached)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want something with %q", name, err, c.want)
		}
	}
}

func TestCalledByMount(t *testing.T) {
	for args, want := range map[string]bool{
		"127.0.0.1:7400 /mnt -o rw,dev,suid": true, "h:1,h:2:/sub /mnt": true,
		"": false, "up": false, "up /mnt": false, "frob": false, "help /mnt": false, "mds --data /d": false,
	} {
		if got := calledByMount(newCommand(), strings.Fields(args)); got != want {
			t.Errorf("canopy %s: %v, want %v", args, got, want)
		}
	}
}
