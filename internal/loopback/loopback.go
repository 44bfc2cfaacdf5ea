// Package loopback gives tests addresses to listen at that stay theirs: a port
// that was free a moment ago, or that belongs to a server that is stopped for a
// while, can be taken by any test beside it as long as all use 127.0.0.1. Here each
// test has an address in 127.0.0.0/8 of its own. Only tests use it.
package loopback

import (
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"testing"
)

// Host returns the test's own loopback address: by the process's id, then by the
// test's name.
func Host(t testing.TB) string {
	name := fnv.New32a()
	name.Write([]byte(t.Name()))
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 1+pid>>8%254, pid%256, 1+name.Sum32()%254)
}

// Addresses returns n different addresses, host and port, that nobody listens at.
func Addresses(t testing.TB, n int) []string {
	t.Helper()
	var all []string
	for range n {
		l, err := net.Listen("tcp", net.JoinHostPort(Host(t), "0"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() // only when all are known: otherwise one may come twice
		all = append(all, l.Addr().String())
	}
	return all
}
