package clustertest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/canopyfs/canopy/internal/loopback"
)

// A registry of made-up packages for the real npm: the load of installing some
// hundred packages without a network.
const (
	npmPackages = 200
	npmNested   = 30 // of them want an old version of their neighbour, which lands in their own node_modules
)

// npmPackage is what package.json says, and the rest of the files.
type npmPackage struct {
	manifest map[string]any
	files    map[string]string
}

func npmName(i int) string {
	if i%10 == 3 {
		return fmt.Sprintf("@scope%d/p%03d", i%3, i)
	}
	return fmt.Sprintf("p%03d", i)
}

// npmVersion makes package i: a binary tree of dependencies below package 0, some
// programs, one that runs a script when it is installed.
func npmVersion(i int, version string) npmPackage {
	deps := map[string]string{}
	for _, d := range []int{2*i + 1, 2*i + 2} {
		if d < npmPackages {
			deps[npmName(d)] = ">=1.0.0"
		}
	}
	if i >= npmPackages-npmNested && version == "2.0.0" {
		deps[npmName(i-npmNested)] = "1.0.0"
	}
	p := npmPackage{
		manifest: map[string]any{"name": npmName(i), "version": version, "dependencies": deps, "main": "lib/index.js"},
		files: map[string]string{
			"README.md":    strings.Repeat(fmt.Sprintf("Package %d, %s.\n", i, version), 1+i*7%100),
			"LICENSE":      "made up\n",
			"lib/index.js": fmt.Sprintf("module.exports = %q;\n", npmName(i)+"@"+version),
		},
	}
	for n := range i % 6 {
		p.files[fmt.Sprintf("lib/part/%d.js", n)] = strings.Repeat(fmt.Sprintf("// %d %d\n", i, n), 20*n)
	}
	if i%6 == 0 {
		p.manifest["bin"] = map[string]string{fmt.Sprintf("tool%d", i): "bin/tool.js"}
		p.files["bin/tool.js"] = "#!/usr/bin/env node\nconsole.log(require('../lib/index.js'));\n"
	}
	if i == 5 {
		p.manifest["scripts"] = map[string]string{"postinstall": "node -e \"require('fs').writeFileSync('installed', 'yes')\""}
	}
	manifest, err := json.MarshalIndent(p.manifest, "", "  ")
	if err != nil {
		panic(err)
	}
	p.files["package.json"] = string(manifest) + "\n"
	return p
}

// tarball packs the package as npm does, below package/.
func (p npmPackage) tarball() []byte {
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	w := tar.NewWriter(zip)
	for name, content := range p.files {
		mode := int64(0o644)
		if strings.HasPrefix(name, "bin/") {
			mode = 0o755
		}
		if err := w.WriteHeader(&tar.Header{Name: "package/" + name, Mode: mode, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
			panic(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			panic(err)
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	if err := zip.Close(); err != nil {
		panic(err)
	}
	return packed.Bytes()
}

// npmRegistry serves all packages in versions 1.0.0 and 2.0.0.
func npmRegistry(t *testing.T) *httptest.Server {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(loopback.Host(t), "0"))
	if err != nil {
		t.Fatal(err)
	}
	base := "http://" + l.Addr().String()
	answers := map[string][]byte{}
	for i := range npmPackages {
		versions := map[string]any{}
		for _, v := range []string{"1.0.0", "2.0.0"} {
			p := npmVersion(i, v)
			packed := p.tarball()
			sum := sha512.Sum512(packed)
			at := fmt.Sprintf("/%s/-/%d-%s.tgz", npmName(i), i, v)
			answers[at] = packed
			p.manifest["dist"] = map[string]string{"tarball": base + at, "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])}
			versions[v] = p.manifest
		}
		about, err := json.Marshal(map[string]any{"name": npmName(i), "dist-tags": map[string]string{"latest": "2.0.0"}, "versions": versions})
		if err != nil {
			t.Fatal(err)
		}
		answers["/"+npmName(i)] = about
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, err := url.PathUnescape(r.URL.EscapedPath())
		body, ok := answers[path]
		if err != nil || !ok {
			http.NotFound(w, r)
			return
		}
		w.Write(body)
	}))
	server.Listener.Close()
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	return server
}

// npmInstall is an everyday program: npm installs, updates and removes packages. dir
// and other are one directory through two mounts.
func npmInstall(t *testing.T, dir, other string) {
	registry := npmRegistry(t)
	project, cache := filepath.Join(dir, "project"), t.TempDir()
	npm := func(where string, args ...string) string {
		t.Helper()
		cmd := exec.Command("npm", args...)
		cmd.Dir = where
		cmd.Env = append(os.Environ(), "npm_config_registry="+registry.URL, "npm_config_cache="+cache,
			"npm_config_userconfig=/dev/null", "npm_config_noproxy="+loopback.Host(t),
			"npm_config_audit=false", "npm_config_fund=false", "npm_config_update_notifier=false")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("npm %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	if err := os.Mkdir(project, 0o755); err != nil {
		t.Fatal(err)
	}
	first := fmt.Sprintf(`{"name": "project", "version": "1.0.0", "dependencies": {%q: "2"}}`, npmName(0))
	if err := os.WriteFile(filepath.Join(project, "package.json"), []byte(first), 0o644); err != nil {
		t.Fatal(err)
	}
	npm(project, "install")
	modules := filepath.Join(other, "project", "node_modules")
	checkInstalled(t, modules)
	if b, err := os.ReadFile(filepath.Join(modules, "p005", "installed")); err != nil || string(b) != "yes" {
		t.Errorf("the script after the installation: %q, %v", b, err)
	}
	if out := npm(project, "install"); !strings.Contains(out, "up to date") {
		t.Errorf("a second install: %s", out)
	}

	// Another version: npm renames what is there aside, unpacks, and removes it.
	npm(filepath.Join(other, "project"), "install", npmName(6)+"@1.0.0", npmName(12)+"@1.0.0")
	npm(project, "ls", "--all") // fails if anything is missing or of a wrong version
	out, err := exec.Command(filepath.Join(project, "node_modules", ".bin", "tool12")).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != npmName(12)+"@1.0.0" {
		t.Errorf("tool12 of another version: %q, %v", out, err)
	}
	npm(project, "uninstall", npmName(0), npmName(6), npmName(12))
	// It keeps its list, and empty directories.
	err = filepath.WalkDir(modules, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != ".package-lock.json" {
			t.Errorf("left of what npm removed: %s", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// checkInstalled compares every file with what the registry has.
func checkInstalled(t *testing.T, modules string) {
	t.Helper()
	check := func(at string, p npmPackage) {
		for name, want := range p.files {
			if got, err := os.ReadFile(filepath.Join(modules, at, name)); err != nil || string(got) != want {
				t.Errorf("%s/%s: %d bytes, %v", at, name, len(got), err)
			}
		}
	}
	for i := range npmPackages {
		check(npmName(i), npmVersion(i, "2.0.0"))
		if i >= npmPackages-npmNested {
			check(filepath.Join(npmName(i), "node_modules", npmName(i-npmNested)), npmVersion(i-npmNested, "1.0.0"))
		}
		if i%6 != 0 {
			continue
		}
		link := filepath.Join(modules, ".bin", fmt.Sprintf("tool%d", i))
		if target, err := os.Readlink(link); err != nil || !strings.HasSuffix(target, "/bin/tool.js") {
			t.Errorf("%s: %q, %v", link, target, err)
		}
		if st, err := os.Stat(link); err != nil || st.Mode().Perm() != 0o755 {
			t.Errorf("%s leads to %v, %v", link, st, err)
		}
	}
}
