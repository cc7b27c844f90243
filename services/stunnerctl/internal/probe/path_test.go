package probe

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/diagnose"
)

// nat passes the datagrams of clients to a server from a port for each client, which it changes when forget is set.
type nat struct {
	at netip.AddrPort
	// most is the length of the longest datagram that passes.
	most   atomic.Int32
	forget atomic.Bool
}

func newNAT(t *testing.T, server int) *nat {
	t.Helper()
	in, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	t.Cleanup(func() { in.Close() })
	n := &nat{at: in.LocalAddr().(*net.UDPAddr).AddrPort()}
	n.most.Store(maxDatagram)
	go func() {
		mappings := map[netip.AddrPort]net.Conn{}
		defer func() {
			for _, m := range mappings {
				_ = m.Close()
			}
		}()
		buf := make([]byte, maxDatagram)
		for {
			size, client, err := in.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			if size > int(n.most.Load()) {
				continue
			}
			if m := mappings[client]; m == nil || n.forget.Load() {
				if mappings[client], err = net.DialUDP("udp", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: server}); err != nil {
					return
				}
				if m != nil {
					_ = m.Close()
				}
				go func(out net.Conn) {
					back := make([]byte, maxDatagram)
					for {
						size, err := out.Read(back)
						if err != nil {
							return
						}
						_, _ = in.WriteToUDPAddrPort(back[:size], client)
					}
				}(mappings[client])
			}
			_, _ = mappings[client].Write(buf[:size])
		}
	}()
	return n
}

// behind returns the target of a UDP listener behind a NAT.
func behind(t *testing.T) (*nat, config.Config) {
	t.Helper()
	c, _ := serve(t, x509.Certificate{})
	n := newNAT(t, c.Listeners[0].Port)
	c.Listeners = c.Listeners[:1]
	c.Listeners[0].Port = int(n.at.Port())
	return n, c
}

// TestPausedClients: if a NAT keeps the mapping of a client during a pause, there is no finding. If the NAT changes the
// mapping, there is a finding.
func TestPausedClients(t *testing.T) {
	n, c := behind(t)
	for _, forgets := range []bool{false, true} {
		n.forget.Store(false)
		targets, _ := Options{Config: c}.targets(t.Context())
		u, f := targets[0].probe(t.Context())
		if u.Result != diagnose.ProbeAnswered || f == nil {
			t.Fatalf("%+v, translated %v", u, f != nil)
		}
		before := f.client
		n.forget.Store(forgets)
		switch m := f.pause(t.Context(), 0); {
		case !forgets && m != nil:
			t.Errorf("a mapping that was kept: %+v", m)
		case forgets && (m == nil || m.Before != before || m.After == before || !m.After.IsValid()):
			t.Errorf("a mapping that was lost: %+v", m)
		}
	}
	direct, _ := serve(t, x509.Certificate{})
	targets, _ := Options{Config: direct}.targets(t.Context())
	for _, one := range targets {
		if _, f := one.probe(t.Context()); f != nil {
			t.Errorf("%s is behind a NAT", one.uri)
		}
	}
}

// TestLongDatagrams: a path that loses long datagrams is distinguished from a path that loses all. Long datagrams are
// then not sent to backends.
func TestLongDatagrams(t *testing.T) {
	n, c := behind(t)
	echo, _ := peer(t, "127.0.0.1", true)
	c.Clusters = []config.Cluster{{Name: "meet/media", Endpoints: []string{endpoint(echo)}}}
	n.most.Store(1200)
	got := Run(t.Context(), Options{Config: c, Credential: password("pw")})
	u := got.URLs[0]
	if u.Result != diagnose.ProbeAnswered || u.Answered != u.Sent || u.Long.Sent != u.Sent || u.Long.Answered != 0 {
		t.Errorf("%+v", u)
	}
	if len(got.Backends) != 1 || got.Backends[0].Result != diagnose.ProbeAnswered || got.Backends[0].Long.Sent != 0 {
		t.Errorf("%+v", got.Backends)
	}
}

// Answers of a backend from another port are named. Those from an unknown address are not if two backends are silent.
func TestAnswersFromOtherPortsAreNamed(t *testing.T) {
	c, _ := serve(t, x509.Certificate{})
	c.Listeners = c.Listeners[:1]
	asked, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	t.Cleanup(func() { asked.Close() })
	other, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	t.Cleanup(func() { other.Close() })
	go func() {
		buf := make([]byte, maxDatagram)
		for {
			size, from, err := asked.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = other.WriteToUDPAddrPort(buf[:size], from)
		}
	}()
	mute, _ := peer(t, "127.0.0.2", false)
	closed, _ := peer(t, "127.0.0.3", false)
	dropped := netip.MustParseAddrPort("10.0.0.9:5")
	c.Clusters = []config.Cluster{
		{Name: "meet/media", Endpoints: []string{endpoint(asked.LocalAddr().(*net.UDPAddr).AddrPort()), endpoint(mute), endpoint(closed)}},
	}
	begun := time.Now()
	got := Run(t.Context(), Options{Config: c, Credential: password("pw"),
		Seen: func(_ context.Context, user string, client netip.Addr, since time.Time) Seen {
			if user != "stunnerctl" || client != netip.MustParseAddr("127.0.0.1") || since.Before(begun) {
				t.Errorf("asked for %s at %s since %s", user, client, since)
			}
			return Seen{
				Unexpected:  []netip.AddrPort{dropped, netip.MustParseAddrPort("[2001:db8::1]:5")},
				Undelivered: []netip.AddrPort{closed},
			}
		}})
	from := other.LocalAddr().String()
	if len(got.Backends) != 3 || got.Backends[0].Elsewhere != from || got.Backends[1].Elsewhere != "" ||
		got.Backends[2].Result != diagnose.ProbeUndelivered || got.Backends[2].Elsewhere != "" {
		t.Errorf("%+v", got.Backends)
	}
}

// TestExpiryOfChains: an expired certificate of a CA is distinguished from an expired certificate of the server.
func TestExpiryOfChains(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	now := time.Now()
	make := func(name string, notAfter time.Time) *x509.Certificate {
		c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: now.AddDate(-1, 0, 0), NotAfter: notAfter}
		raw, err := x509.CreateCertificate(rand.Reader, c, &x509.Certificate{Subject: pkix.Name{CommonName: name + " issuer"}}, key.Public(), key)
		must(t, err)
		c, err = x509.ParseCertificate(raw)
		must(t, err)
		return c
	}
	year, day := now.AddDate(1, 0, 0), now.AddDate(0, 0, -1)
	for _, row := range []struct {
		leaf, ca time.Time
		want     string
	}{
		{year, year, ""}, {year, day, "CN=ca"}, {day, year, ""}, {day, day.Add(time.Hour), ""}, {day, day.Add(-time.Hour), "CN=ca"},
	} {
		c := certificate([]*x509.Certificate{make("leaf", row.leaf), make("ca", row.ca)}, "host", now)
		if c.ExpiredIssuer != row.want || c.Trusted {
			t.Errorf("leaf until %s, CA until %s: %+v", row.leaf, row.ca, c)
		}
	}
}
