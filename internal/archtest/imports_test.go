package archtest

import (
	"strings"
	"testing"
)

// rule says what packages at or below pkg may import of ours.
type rule struct {
	pkg    string
	may    []string // folders: the package itself, or all below it with "/..."
	reason string
}

var level0 = []string{"internal/base", "internal/fserr", "internal/capability", "internal/invariants", "api/..."}

func with(lists ...[]string) []string {
	var all []string
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// rules: the first whose pkg matches counts, so the specific ones come first.
var rules = []rule{
	{"internal/fserr", []string{"internal/base"}, "level 0 imports nothing of ours but ids"},
	{"internal/base", nil, "level 0"},
	{"internal/capability", []string{"internal/base", "api/..."}, "level 0: what three services and the tools share"},
	{"internal/invariants", nil, "level 0"},
	{"internal/protogen", nil, "a build tool"},
	{"internal/archtest", nil, "reads the tree as text"},
	{"internal/await", nil, "for tests: the one poll loop"},
	{"internal/loopback", nil, "for tests: addresses of their own"},
	{"internal/mutation", nil, "a build tool: reads and builds the tree, imports nothing of it"},
	{"internal/local", nil, "what programs of one machine share about it"},
	{"internal/service", level0, "level 1: the front that daemons share"},
	{"internal/clustertest", with(level0, []string{"client/...", "internal/...", "clientfuse/posix"}), "starts real binaries; speaks to them as a user does"},
	{"api", []string{"api/..."}, "level 0: the protobuf and gRPC runtime only"},

	{"shard/schema", with(level0, []string{"shard"}), "level 1"},
	{"shard/heat", with(level0, []string{"shard"}), "level 1: pure; what keeps a shard busy"},
	{"shard/memkv", with(level0, []string{"shard", "shard/schema"}), "level 1: the view of keys in memory, for tests"},
	{"shard/edge", with(level0, []string{"shard"}), "level 1: pure; what shards and tools say of the borders of subtrees"},
	{"shard/namespace", with(level0, []string{"shard", "shard/schema", "shard/edge", "shard/memkv", "layoutsvc/policy"}), "level 2"},
	{"shard/txn", with(level0, []string{"shard", "shard/schema"}), "level 2"},
	{"shard/migrate", with(level0, []string{"shard", "shard/schema"}), "level 2"},
	{"shard/store", with(level0, []string{"shard", "shard/schema", "shard/store/..."}), "level 3: storage engines do not know each other"},
	{"shard/raftgroup", with(level0, []string{"shard", "shard/schema", "shard/raftgroup/..."}), "level 3"},
	{"shard", level0, "level 1: the vocabulary"},

	{"layoutsvc/stripe", level0, "level 1: arithmetic shared with clients"},
	{"layoutsvc/policy", with(level0, []string{"layoutsvc/stripe"}), "level 1: what policies mean, shared with clients"},
	{"balancer/policy", with(level0, []string{"shard"}), "level 1"},
	{"balancer/sim", with(level0, []string{"shard", "balancer/policy"}), "level 2: the policy's code in a model of a cluster"},
	{"dataserver/chunkstore", with(level0, []string{"dataserver/chunkstore/..."}), "level 3"},
	{"placement", with(level0, []string{"shard", "shard/schema", "layoutsvc/stripe", "placement/..."}), "level 3: the only user of etcd"},

	{"client", with(level0, []string{"client/...", "layoutsvc/stripe", "shard", "shard/edge"}), "level 4: a library that others import"},

	{"mds", with(level0, []string{"mds/...", "shard/...", "placement/...", "client/...", "internal/service"}), "level 5: services speak over api, never import each other"},
	{"layoutsvc", with(level0, []string{"layoutsvc/...", "shard", "placement/...", "client/...", "internal/service"}), "level 5"},
	{"dataserver", with(level0, []string{"dataserver/...", "layoutsvc/stripe", "shard", "client/...", "internal/service"}), "level 5"},
	{"balancer", with(level0, []string{"balancer/...", "shard/...", "placement/...", "client/...", "internal/service"}), "level 5"},

	{"clientfuse", with(level0, []string{"clientfuse/...", "client/...", "internal/local"}), "level 6"},
	{"loadtest", with(level0, []string{"loadtest/...", "client/...", "clientfuse/mountopt", "shard/raftgroup/floor", "layoutsvc/stripe", "internal/local", "balancer/sim", "balancer/policy"}), "level 6; the floor of the log is measured by its only user, the balancer by its simulator"},
	{"mdsctl", with(level0, []string{"mdsctl/...", "client/...", "layoutsvc/stripe", "layoutsvc/policy", "shard", "internal/local"}), "level 6"},
	{"cmd", []string{"..."}, "level 7: wiring"},
}

func allowed(patterns []string, imported string) bool {
	for _, p := range patterns {
		if p == "..." || p == imported {
			return true
		}
		if base, ok := strings.CutSuffix(p, "/..."); ok && (imported == base || strings.HasPrefix(imported, base+"/")) {
			return true
		}
	}
	return false
}

func ruleFor(pkg string) (rule, bool) {
	for _, r := range rules {
		if pkg == r.pkg || strings.HasPrefix(pkg, r.pkg+"/") {
			return r, true
		}
	}
	return rule{}, false
}

// checkImports: tests may reach further (a client is tested over the real state
// machine), but nothing ever imports cmd, and only cmd imports loadtest.
func checkImports(t *testing.T, files []file) {
	for _, f := range files {
		r, ok := ruleFor(f.pkg)
		if !ok {
			t.Errorf("%s: no import rule for package %s", f.name, f.pkg)
			continue
		}
		ours, _ := f.imports()
		for _, imported := range ours {
			inCmd := strings.HasPrefix(f.pkg, "cmd/")
			if strings.HasPrefix(imported, "cmd/") && !inCmd {
				t.Errorf("%s imports %s: nothing imports cmd", f.name, imported)
			}
			if !f.test && imported != f.pkg && !allowed(r.may, imported) {
				t.Errorf("%s imports %s, which %s may not (%s)", f.name, imported, r.pkg, r.reason)
			}
		}
	}
}

// soleUsers: each engine has one home.
var soleUsers = []struct {
	library string
	homes   []string
}{
	{"github.com/cockroachdb/pebble", []string{"shard/store"}},
	{"github.com/lni/dragonboat", []string{"shard/raftgroup"}},
	{"go.etcd.io/etcd", []string{"placement"}},
	{"github.com/hanwen/go-fuse", []string{"clientfuse", "loadtest/memfs", "loadtest/loopfs", "loadtest/mounted"}},
	{"github.com/anishathalye/porcupine", []string{"loadtest/history/check"}},
	{"github.com/spf13/cobra", []string{"cmd", "mdsctl", "loadtest"}},
}

func checkSoleUsers(t *testing.T, files []file) {
	for _, f := range files {
		_, others := f.imports()
		for _, imported := range others {
			for _, u := range soleUsers {
				if !strings.HasPrefix(imported, u.library) || f.test {
					continue
				}
				home := false
				for _, h := range u.homes {
					home = home || f.pkg == h || strings.HasPrefix(f.pkg, h+"/")
				}
				if !home {
					t.Errorf("%s imports %s: only %s may", f.name, imported, strings.Join(u.homes, ", "))
				}
			}
		}
	}
}
