package interop

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// pionMode is a way to run the client of pion/turn v5.
type pionMode struct {
	name, transport string
	server          string
	secure          bool
	// family is the requested family of the relay. 0 means the family of the client.
	family int
}

var pionModes = []pionMode{
	{"UDP", "udp", harness.Loopback, false, 0},
	{"TCP", "tcp", harness.Loopback, false, 0},
	{"TLS", "tls", harness.Loopback, true, 0},
	{"DTLS", "dtls", harness.Loopback, true, 0},
	{"IPv6 client", "udp", loopback6, false, 0},
	{"IPv6 client over DTLS", "dtls", loopback6, true, 0},
	{"IPv4 relay", "udp", harness.Loopback, false, 4},
	{"IPv4 client, IPv6 relay", "udp", harness.Loopback, false, 6},
	{"IPv4 client over TLS, IPv6 relay", "tls", harness.Loopback, true, 6},
	{"IPv6 client, IPv4 relay", "udp", loopback6, false, 4},
}

// relayFamily returns the family of the relay that a client requests.
func (m pionMode) relayFamily() int {
	switch {
	case m.family != 0:
		return m.family
	case m.server == loopback6:
		return 6
	}
	return 4
}

// N-01, A-07, T-A9: the client of pion/turn v5 calls over every transport and with both address families: it gets its
// address and a relay, a peer without a route is refused, messages are echoed by Send indications and in a channel, and
// its Refresh ends the allocation. coturn's own server has the same results.
//
// The client of v5.0 sends REQUESTED-ADDRESS-FAMILY after MESSAGE-INTEGRITY. coturn accepts it there. stunnerd ignores
// it (RFC 8489 §9): the relay has IPv4, and the request is counted.
func TestPionV5(t *testing.T) {
	current, before := buildPion(t, "go.mod"), buildPion(t, "before.mod")
	ours, coturn := start(t, static), startCoturn(t)
	want := 0
	for _, m := range pionModes {
		t.Run(m.name+" at stunnerd", func(t *testing.T) { m.calls(t, current, ours, m.relayFamily()) })
		if m.relayFamily() == 6 {
			want++ // v5.0 sends REQUESTED-ADDRESS-FAMILY for IPv6 only
		}
		if m.transport == "dtls" {
			t.Logf("%s at coturn: coturn 4.6 allocates, but does not relay data of this client over DTLS", m.name)
			continue
		}
		t.Run(m.name+" at coturn", func(t *testing.T) { m.calls(t, current, coturn, m.relayFamily()) })
		t.Run(m.name+" at coturn with v5.0", func(t *testing.T) { m.calls(t, before, coturn, m.relayFamily()) })
	}
	if n := ignored(t, ours); n != 0 {
		t.Errorf("%d requests of the current client are counted", n)
	}
	for _, m := range pionModes {
		t.Run(m.name+" at stunnerd with v5.0", func(t *testing.T) { m.calls(t, before, ours, 4) })
	}
	if n := ignored(t, ours); n != want {
		t.Errorf("%d requests are counted, want %d", n, want)
	}
}

// pionSays matches the output of the client.
var pionSays = regexp.MustCompile(`^mapped (\S+)\nrelay (\S+)\ndenied true\nechoed 20\nclosed\n$`)

// calls runs a client whose relay must have a family.
func (m pionMode) calls(t *testing.T, program string, d dataplane, family int) {
	t.Helper()
	port, peer, denied := d.Plain, harness.Loopback, "192.0.2.1:9"
	if m.secure {
		port = d.Secure
	}
	if family == 6 {
		peer, denied = loopback6, "[2001:db8::1]:9"
	}
	out, err := client(t, nil, program, "-server", net.JoinHostPort(m.server, strconv.Itoa(port)),
		"-transport", m.transport, "-family", strconv.Itoa(m.family), "-user", carol[1], "-password", carol[3],
		"-realm", static.Realm, "-peer", net.JoinHostPort(peer, strconv.Itoa(d.peer)), "-denied", denied)
	says := pionSays.FindStringSubmatch(out)
	if err != nil || says == nil {
		t.Fatalf("%v\n%s", err, out)
	}
	mapped, relay := netip.MustParseAddrPort(says[1]).Addr(), netip.MustParseAddrPort(says[2]).Addr()
	if mapped.String() != m.server || relay.Is4() != (family == 4) {
		t.Errorf("mapped address %s, want %s; relay at %s, want family %d", mapped, m.server, relay, family)
	}
}

// ignored returns the number of attributes after MESSAGE-INTEGRITY that a dataplane has counted.
func ignored(t *testing.T, d dataplane) int {
	t.Helper()
	n, err := harness.Metric(t.Context(), d.Metrics, "stunner_ignored_attributes_total")
	harnesstest.NoError(t, err)
	return int(n)
}

// buildPion builds the client with the versions of a file.
func buildPion(t *testing.T, versions string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), strings.TrimSuffix(versions, ".mod"))
	cmd := exec.CommandContext(t.Context(), "go", "build", "-modfile="+versions, "-o", program, ".")
	cmd.Dir, cmd.Env = "pionclient", append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatal(fmt.Errorf("build the client with %s: %w\n%s", versions, err, out))
	}
	return program
}
