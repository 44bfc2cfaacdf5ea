package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// printReady says what listens where, and what to try.
func printReady(out io.Writer, c *cluster, mount string, took time.Duration) {
	fmt.Fprintf(out, "ready after %.1f s; everything is kept in %s\n\n", took.Seconds(), c.dir)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(what, address, http string) {
		if http != "" {
			http = "http://" + http + "/metrics"
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\n", what, address, http)
	}
	a := c.plan.Addresses
	for i := 1; i <= c.plan.Nodes; i++ {
		row(fmt.Sprintf("metadata node %d", i), a[nodeRole(i)], a[nodeRole(i)+".http"])
	}
	row("layout service", a["layoutsvc"], a["layoutsvc.http"])
	for i := 1; i <= c.plan.DataServers; i++ {
		row(fmt.Sprintf("data server %d", c.servers[i-1]), a[dataServerRole(i)], a[dataServerRole(i)+".http"])
	}
	if len(c.plan.Etcd) > 0 {
		row("etcd (not ours)", strings.Join(c.plan.Etcd, ","), "")
	} else {
		row("etcd", a["etcd"], "")
	}
	if mount != "" {
		row("mounted at", mount, "")
	}
	w.Flush()
	fmt.Fprintf(out, "\ntry:\n")
	target := "/"
	if mount != "" {
		target = mount + "/hello"
		fmt.Fprintf(out, "  echo hello > %s && cat %s\n", target, target)
	} else {
		fmt.Fprintf(out, "  go run ./cmd/clientfuse MOUNTPOINT\n")
	}
	fmt.Fprintf(out, "  go run ./cmd/mdsctl status\n")
	fmt.Fprintf(out, "  go run ./cmd/mdsctl stat %s\n\nCtrl-C ends it.\n", target)
}
