package resolve

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// answers without addresses and failures of name servers are distinguished.
func TestSystem(t *testing.T) {
	both := addrs("192.0.2.1", "192.0.2.2", "2001:db8::1")
	cases := map[string]struct {
		reply reply
		want  []netip.Addr // for IPv4
		fails bool
	}{
		"addresses":               {reply{addrs: both}, both[:2], false},
		"addresses of an alias":   {reply{addrs: both, alias: true}, both[:2], false},
		"two thousand addresses":  {reply{addrs: numbered(2000)}, numbered(2000), false},
		"no such host":            {reply{code: dnsmessage.RCodeNameError}, nil, false},
		"no address":              {reply{}, nil, false},
		"other family only":       {reply{addrs: both[2:]}, nil, false},
		"alias of nothing":        {reply{alias: true}, nil, false},
		"server failure":          {reply{code: dnsmessage.RCodeServerFailure}, nil, true},
		"failure with an address": {reply{code: dnsmessage.RCodeServerFailure, addrs: both}, nil, true},
		"refused":                 {reply{code: dnsmessage.RCodeRefused}, nil, true},
		"format error":            {reply{code: dnsmessage.RCodeFormatError}, nil, true},
		"not for this server":     {reply{lame: true}, nil, true},
		"silence":                 {reply{silent: true}, nil, true},
		"noise":                   {reply{raw: "noise"}, nil, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newNameServer(t)
			s.set(tc.reply)
			timeout := lookupTimeout
			if tc.reply.silent || tc.reply.raw != "" { // the lookup ends with the timeout
				timeout = time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			got, err := System(s.dial)(ctx, "ip4", "sfu.test.")
			if (err != nil) != tc.fails {
				t.Errorf("error %v", err)
			}
			if !slices.Equal(normalize(got), normalize(tc.want)) {
				t.Errorf("addresses %v, want %v", got, tc.want)
			}
		})
	}
}

func TestSystemRequestsOneFamily(t *testing.T) {
	s := newNameServer(t)
	s.set(reply{addrs: addrs("192.0.2.1", "2001:db8::1")})
	if got, err := System(s.dial)(t.Context(), "ip6", "sfu.test."); err != nil ||
		!slices.Equal(got, addrs("2001:db8::1")) {
		t.Errorf("addresses %v, %v", got, err)
	}
}

func TestSystemResolverDoesNotCache(t *testing.T) {
	s := newNameServer(t)
	lookup := System(s.dial)
	for _, addr := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.1"} {
		s.set(reply{addrs: addrs(addr)})
		if got, err := lookup(t.Context(), "ip4", "sfu.test."); err != nil || !slices.Equal(got, addrs(addr)) {
			t.Errorf("addresses %v, %v, want %s", got, err, addr)
		}
	}
}

// The hosts file contains localhost, and an address resolves to itself; cluster.Resolve excludes such results.
func TestSystemReadsTheHostsFile(t *testing.T) {
	lookup := System(newNameServer(t).dial)
	for host, want := range map[string]netip.Addr{
		"localhost": netip.MustParseAddr("127.0.0.1"), "192.0.2.9": netip.MustParseAddr("192.0.2.9"),
	} {
		if got, err := lookup(t.Context(), "ip4", host); err != nil || !slices.Contains(normalize(got), want) {
			t.Errorf("%s has the addresses %v, %v", host, got, err)
		}
	}
	if got, err := lookup(t.Context(), "ip6", "192.0.2.9"); err != nil || len(got) != 0 {
		t.Errorf("an IPv4 address has the IPv6 addresses %v, %v", got, err)
	}
}

func TestCloseDoesNotWaitForANameServer(t *testing.T) {
	s := newNameServer(t)
	s.set(reply{silent: true})
	asked := make(chan struct{}, 8)
	lookup := System(s.dial)
	r := New(func(ctx context.Context, family, host string) ([]netip.Addr, error) {
		asked <- struct{}{}
		return lookup(ctx, family, host)
	}, func() {}, slog.New(slog.DiscardHandler))
	r.Watch([]string{"sfu.test."})
	<-asked
	start := time.Now()
	r.Close()
	if waited := time.Since(start); waited > 4*time.Second { // the resolver waits 5 s for an answer
		t.Errorf("Close waits %s", waited)
	}
}

// A name is resolved by a name server over the network, and changed is called.
func TestResolverResolvesAName(t *testing.T) {
	s := newNameServer(t)
	s.set(reply{addrs: addrs("192.0.2.1", "2001:db8::1")})
	told := make(chan struct{}, 8)
	r := New(System(s.dial), func() { told <- struct{}{} }, slog.New(slog.DiscardHandler))
	defer r.Close()
	r.Watch([]string{"sfu.test."})
	deadline := time.After(30 * time.Second)
	for !slices.Equal(r.Answers()["sfu.test."], addrs("192.0.2.1", "2001:db8::1")) {
		select {
		case <-told:
		case <-deadline:
			t.Fatalf("answers %v", r.Answers())
		}
	}
}
