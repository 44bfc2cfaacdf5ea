package clustertest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// topNamesWhoIsHot fills a directory through the mount: mdsctl top says which one it is,
// that this mount does it, where it lies, and how many names it has.
func (c *cluster) topNamesWhoIsHot(t *testing.T, below string) {
	t.Helper()
	const files = 300
	path := filepath.Join(below, "frames")
	if err := os.Mkdir(filepath.Join(c.mount, path), 0o755); err != nil {
		t.Fatal(err)
	}
	hot, err := os.OpenRoot(filepath.Join(c.mount, path)) // so that no directory above is asked for each file
	if err != nil {
		t.Fatal(err)
	}
	defer hot.Close()
	for i := range files {
		f, err := hot.Create(fmt.Sprint("frame", i))
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var top struct {
		Dirs []struct {
			Path    string
			Entries uint64
			Creates float64 `json:"create_ops_per_second"`
			Clients []struct{ Mount string }
			Places  []struct{ Shard, Node uint64 }
			Names   []string
		}
	}
	out := c.mdsctl(t, "top", "-o", "json")
	if err := json.Unmarshal([]byte(out), &top); err != nil || len(top.Dirs) == 0 {
		t.Fatalf("%v: %s", err, out)
	}
	d := top.Dirs[0]
	if d.Path != "/"+path || d.Entries != files || d.Creates <= 0 || len(d.Clients) != 1 || d.Clients[0].Mount != c.mount || len(d.Places) != 1 || d.Places[0].Shard != 1 || len(d.Names) == 0 {
		t.Errorf("the hottest directory is %+v", d)
	}
	for by, want := range map[string]string{"dir": "/" + path, "client": c.mount, "op": "create", "shard": "BUSY", "node": "BUSY"} {
		if text := c.mdsctl(t, "top", "--by", by, "--window", "10s"); !strings.Contains(text, want) {
			t.Errorf("by %s: %s", by, text)
		}
	}
}
