package loopback

import (
	"net"
	"testing"
)

func TestHostIsOnesOwn(t *testing.T) {
	own := Host(t)
	if ip := net.ParseIP(own); !ip.IsLoopback() || own == "127.0.0.1" {
		t.Errorf("host %s", own)
	}
	t.Run("another", func(t *testing.T) {
		if other := Host(t); other == own {
			t.Errorf("both at %s", other)
		}
	})
}

func TestAddresses(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range Addresses(t, 20) {
		if seen[a] {
			t.Errorf("%s twice", a)
		}
		seen[a] = true
		l, err := net.Listen("tcp", a)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
}
