// Package interop tests the dataplane with clients of other projects: coturn, aioice, libnice and Janus.
package interop

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
)

// The two credential mechanisms, as config of a dataplane and as arguments of coturn's client.
var (
	static    = bedtest.Static("carol", "sings-alto")
	ephemeral = bedtest.Ephemeral("shared-by-two")
)

var (
	carol  = []string{"-u", "carol", "-w", "sings-alto"}
	shared = []string{"-u", "carol", "-W", "shared-by-two"}
)

// transport is a transport between client and gateway.
type transport struct {
	name    string
	args    []string
	port    func(dataplane) int
	clients int // concurrent clients; over DTLS, each one loses a second per random attempt with DTLS 1.0
}

func plain(d dataplane) int  { return d.Plain }
func secure(d dataplane) int { return d.Secure }

var transports = []transport{
	{"UDP", nil, plain, 4},
	{"TCP", []string{"-t"}, plain, 4},
	{"TLS", []string{"-t", "-S"}, secure, 4},
	{"DTLS", []string{"-S"}, secure, 1},
}

// N-01, N-04, T-A7, J-10: coturn's clients call over every transport, with both credential mechanisms and both address
// families, and lose nothing.
// Features that the gateway does not offer give a clear error.
func TestCoturn(t *testing.T) {
	d, other := start(t, static), start(t, ephemeral)
	for _, c := range []struct {
		name string
		dataplane
		credential []string
	}{
		{"static", d, carol},
		{"ephemeral", other, shared},
	} {
		d := c.dataplane
		for _, over := range transports {
			t.Run(c.name+" credentials over "+over.name, func(t *testing.T) {
				echoed(t, d, call{credential: c.credential, over: over, args: []string{"-c"}})
			})
		}
		t.Run("wrong password for "+c.name+" credentials", func(t *testing.T) {
			refused(t, d, call{credential: []string{"-u", "carol", "-w", "guessed"}}, "Cannot complete Allocation")
		})
		t.Run("binding request with "+c.name+" credentials", func(t *testing.T) { binding(t, d) })
	}

	for _, over := range transports {
		t.Run("IPv6 over "+over.name, func(t *testing.T) {
			echoed(t, d, call{over: over, server: loopback6, peer: loopback6, args: []string{"-c", "-x"}})
		})
	}
	for name, c := range map[string]call{
		"IPv4 client, IPv6 relay":              {peer: loopback6, args: []string{"-c", "-x"}},
		"IPv6 client, IPv4 relay":              {server: loopback6, args: []string{"-c", "-X"}},
		"indications":                          {args: []string{"-c", "-s"}},
		"indications over TLS":                 {over: transports[2], args: []string{"-c", "-s"}},
		"padded ChannelData":                   {args: []string{"-c", "-D"}},
		"a mobility ticket nobody gives":       {args: []string{"-c", "-M"}},
		"forbidden peers in between":           {args: []string{"-c", "-G"}},
		"many allocations":                     {clients: 50, args: []string{"-c"}},
		"messages of 1,200 bytes":              {args: []string{"-c", "-l", "1200"}},
		"clients with each other":              {peer: none, args: []string{"-c", "-y"}},
		"clients with each other, indications": {peer: none, args: []string{"-c", "-y", "-s"}},
		"clients with each other, TCP":         {peer: none, over: transports[1], args: []string{"-c", "-y"}},
	} {
		t.Run(name, func(t *testing.T) { echoed(t, d, c) })
	}
	for name, c := range map[string]call{
		"pairs of ports":             {},
		"pairs of ports, IPv6":       {server: loopback6, peer: loopback6, args: []string{"-x"}},
		"pairs of ports, one to one": {peer: none, args: []string{"-y"}},
	} {
		t.Run(name, func(t *testing.T) { reserved(t, d, c) })
	}
	for name, c := range map[string]struct {
		call
		says string
	}{
		"don't fragment": {call{args: []string{"-c", "-g"}}, "error 420 (Unknown Attribute)"},
		"TCP relay":      {call{peer: none, args: []string{"-T"}}, "error 442 (Unsupported Transport Protocol)"},
	} {
		t.Run("refused: "+name, func(t *testing.T) { refused(t, d, c.call, c.says) })
	}
	t.Run("NAT discovery is not offered", func(t *testing.T) { noDiscovery(t, d) })
}

// none is the peer of clients that send to each other.
const none = "none"

// messages is the number of messages per client.
const messages = 20

// call is a run of coturn's client. Defaults: user carol, UDP, IPv4 on both sides, and the number of clients of the
// transport.
type call struct {
	credential   []string
	over         transport
	server, peer string
	clients      int
	args         []string
}

// run runs the client to its end, and returns the number of expected echoes.
func (c call) run(t *testing.T, d dataplane) (out string, sent int, err error) {
	t.Helper()
	over, credential, peer := c.over, c.credential, cmp.Or(c.peer, bed.Loopback)
	if over.port == nil {
		over = transports[0]
	}
	if credential == nil {
		credential = carol
	}
	clients := cmp.Or(c.clients, over.clients)
	args := slices.Concat(credential, over.args, []string{
		"-p", strconv.Itoa(over.port(d)), "-m", strconv.Itoa(clients), "-n", strconv.Itoa(messages), "-l", "170",
	}, c.args)
	if peer != none {
		args = append(args, "-e", peer, "-r", strconv.Itoa(d.peer))
	}
	args = append(args, cmp.Or(c.server, bed.Loopback))
	out, err = client(t, nil, installed(t, "turnutils_uclient", "coturn"), args...)
	return out, clients * messages, err
}

// Patterns of the client's output.
var (
	lostPattern    = regexp.MustCompile(`Total lost packets (\d+) \(([0-9.]+)%\)`)
	figuresPattern = regexp.MustCompile(`start_mclient: tot_send_msgs=(\d+), tot_recv_msgs=(\d+)\n`)
)

// echoed runs a call that must lose nothing. The client sleeps most of its time.
func echoed(t *testing.T, d dataplane, c call) string {
	t.Helper()
	t.Parallel()
	out, sent, err := c.run(t, d)
	if err != nil {
		t.Fatalf("client failed: %v\n%s", err, out)
	}
	lost, figures := lostPattern.FindStringSubmatch(out), figuresPattern.FindStringSubmatch(out)
	if lost == nil || figures == nil {
		t.Fatalf("no loss figures in the output:\n%s", out)
	}
	if want := strconv.Itoa(sent); lost[1] != "0" || figures[1] != want || figures[2] != want {
		t.Errorf("sent %s, received %s, lost %s, want 0 of %s lost:\n%s", figures[1], figures[2], lost[1], want, out)
	}
	return out
}

// relayPattern matches the client's output for an allocation: relayed address, and reservation token or 0.
var relayPattern = regexp.MustCompile(`Received relay addr: (\S+):(\d+)\n.*clnet_allocate: rtv=(\d+)\n`)

// reserved runs a call whose clients request an even port and reserve the next one (RFC 8656 §7.2), and use the token.
func reserved(t *testing.T, d dataplane, c call) {
	c.args = append([]string{"-v"}, c.args...)
	out := echoed(t, d, c)
	allocations := relayPattern.FindAllStringSubmatch(out, -1)
	used := 0
	for i, a := range allocations[:max(0, len(allocations)-1)] {
		if a[3] == "0" {
			continue
		}
		even, _ := strconv.Atoi(a[2])
		got, want := allocations[i+1][1:3], []string{a[1], strconv.Itoa(even + 1)}
		if even%2 != 0 || !slices.Equal(got, want) {
			t.Errorf("reservation after %s:%d gave %q, want %q", a[1], even, got, want)
		}
		used++
	}
	if used == 0 {
		t.Errorf("no token was used:\n%s", out)
	}
}

// refused runs a call that the gateway must refuse with an error in the client's output.
func refused(t *testing.T, d dataplane, c call, says string) {
	t.Helper()
	t.Parallel()
	out, _, err := c.run(t, d)
	if err == nil || !strings.Contains(out, says) {
		t.Errorf("not refused with %q: %v\n%s", says, err, out)
	}
}

// binding requests the client's reflexive address.
func binding(t *testing.T, d dataplane) {
	for _, server := range []string{bed.Loopback, loopback6} {
		out, err := client(t, nil, installed(t, "turnutils_stunclient", "coturn"), "-p", strconv.Itoa(d.Plain), server)
		if err != nil || !strings.Contains(out, "UDP reflexive addr: "+server) {
			t.Errorf("no reflexive address from %s: %v\n%s", server, err, out)
		}
	}
}

// noDiscovery checks that a server with one address does not take part in NAT discovery (RFC 5780 §4): it sends no
// OTHER-ADDRESS, and rejects requests for the feature.
func noDiscovery(t *testing.T, d dataplane) {
	discover := func(args ...string) string {
		out, err := client(
			t, nil, installed(t, "turnutils_natdiscovery", "coturn"),
			append(args, "-p", strconv.Itoa(d.Plain), bed.Loopback)...,
		)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return out
	}
	for _, question := range []string{"-m", "-f"} {
		out := discover(question)
		if claim := claimPattern.FindString(out); claim != "" ||
			!strings.Contains(out, "UDP reflexive addr: "+bed.Loopback) {
			t.Errorf("output %q, want the reflexive address and no result about a NAT:\n%s", claim, out)
		}
	}
	if out := discover("-m", "-P"); !strings.Contains(out, "error 420 (Unknown Attribute)") {
		t.Errorf("PADDING is not rejected:\n%s", out)
	}
}

// claimPattern matches the client's output when a server takes part in NAT discovery.
var claimPattern = regexp.MustCompile(`.*(NAT|ALG|RFC 5780 response).*`)
