// Package interop lets clients that nobody here wrote use the dataplane: those of coturn, aioice, libnice and Janus.
package interop

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

// The two kinds of credentials: of a dataplane, and as arguments of coturn's client.
const (
	static    = `{type: static, realm: interop.example.org, credentials: {username: carol, password: sings-alto}}`
	ephemeral = `{type: ephemeral, realm: interop.example.org, credentials: {secret: shared-by-two}}`
)

var (
	carol  = []string{"-u", "carol", "-w", "sings-alto"}
	shared = []string{"-u", "carol", "-W", "shared-by-two"}
)

// transport is a way to the gateway.
type transport struct {
	name    string
	args    []string
	port    func(dataplane) int
	clients int // at a time; over DTLS, each loses a second for every try with DTLS 1.0, which it makes at random
}

func plain(d dataplane) int  { return d.turn }
func secure(d dataplane) int { return d.secure }

var transports = []transport{
	{"UDP", nil, plain, 4},
	{"TCP", []string{"-t"}, plain, 4},
	{"TLS", []string{"-t", "-S"}, secure, 4},
	{"DTLS", []string{"-S"}, secure, 1},
}

// N-01, N-04, T-A7, J-10: coturn's clients call over every transport, with both kinds of credentials and in both families, and lose nothing.
// What the gateway does not offer gives a clear error.
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
			refused(t, d, call{credential: []string{"-u", "carol", "-w", "guessed"}, over: transports[0]}, "Cannot complete Allocation")
		})
		t.Run("binding request beside "+c.name+" credentials", func(t *testing.T) { binding(t, d) })
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

// none stands for the peer of clients that talk to each other.
const none = "none"

// messages that each of the clients of a call sends.
const messages = 20

// call is a run of coturn's client. What is not given is: carol, UDP, both ends in IPv4, and so many clients as suit the transport.
type call struct {
	credential   []string
	over         transport
	server, peer string
	clients      int
	args         []string
}

// run runs the client to its end, and returns how many messages were to come back.
func (c call) run(t *testing.T, d dataplane) (out string, sent int, err error) {
	t.Helper()
	or := func(value *string, otherwise string) {
		if *value == "" {
			*value = otherwise
		}
	}
	or(&c.server, bed.Loopback)
	or(&c.peer, bed.Loopback)
	if c.over.port == nil {
		c.over = transports[0]
	}
	if c.credential == nil {
		c.credential = carol
	}
	if c.clients == 0 {
		c.clients = c.over.clients
	}
	args := slices.Concat(c.credential, c.over.args, []string{
		"-p", strconv.Itoa(c.over.port(d)), "-m", strconv.Itoa(c.clients), "-n", strconv.Itoa(messages), "-l", "170",
	}, c.args)
	if c.peer != none {
		args = append(args, "-e", c.peer, "-r", strconv.Itoa(d.peer))
	}
	out, err = client(t, nil, installed(t, "turnutils_uclient", "coturn"), append(args, c.server)...)
	return out, c.clients * messages, err
}

// Figures that the client prints.
var (
	lostPattern    = regexp.MustCompile(`Total lost packets (\d+) \(([0-9.]+)%\)`)
	figuresPattern = regexp.MustCompile(`start_mclient: tot_send_msgs=(\d+), tot_recv_msgs=(\d+)\n`)
)

// echoed is a call that loses nothing: what it sends comes back. The client waits most of its time.
func echoed(t *testing.T, d dataplane, c call) string {
	t.Helper()
	t.Parallel()
	out, sent, err := c.run(t, d)
	if err != nil {
		t.Fatalf("client failed: %v\n%s", err, out)
	}
	lost, figures := lostPattern.FindStringSubmatch(out), figuresPattern.FindStringSubmatch(out)
	if lost == nil || figures == nil {
		t.Fatalf("client does not say what was lost:\n%s", out)
	}
	if want := strconv.Itoa(sent); lost[1] != "0" || figures[1] != want || figures[2] != want {
		t.Errorf("sent %s, received %s, lost %s packets (%s %%), want 0 of %s lost:\n%s", figures[1], figures[2], lost[1], lost[2], want, out)
	}
	return out
}

// relayPattern is what the client prints of an allocation: its relayed address, and the token of the port above, or 0.
var relayPattern = regexp.MustCompile(`Received relay addr: (\S+):(\d+)\n.*clnet_allocate: rtv=(\d+)\n`)

// reserved is a call whose client asks for an even port and the next one (RFC 8656 §7.2): the token that it gets is good for that.
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
			t.Errorf("reservation beside %s:%d led to %q, want %q", a[1], even, got, want)
		}
		used++
	}
	if used == 0 {
		t.Errorf("no token was used:\n%s", out)
	}
}

// refused is a call that the gateway does not take, for a reason that the client says.
func refused(t *testing.T, d dataplane, c call, says string) {
	t.Helper()
	t.Parallel()
	out, _, err := c.run(t, d)
	if err == nil || !strings.Contains(out, says) {
		t.Errorf("not refused with %q: %v\n%s", says, err, out)
	}
}

// binding asks for the client's own address.
func binding(t *testing.T, d dataplane) {
	for _, server := range []string{bed.Loopback, loopback6} {
		out, err := client(t, nil, installed(t, "turnutils_stunclient", "coturn"), "-p", strconv.Itoa(d.turn), server)
		if err != nil || !strings.Contains(out, "UDP reflexive addr: "+server) {
			t.Errorf("no reflexive address from %s: %v\n%s", server, err, out)
		}
	}
}

// noDiscovery: a server with one address cannot tell what NAT a client is behind (RFC 5780 §4), and must lead no client to believe it: not by
// OTHER-ADDRESS, nor by an answer to what it does not do.
func noDiscovery(t *testing.T, d dataplane) {
	discover := func(args ...string) string {
		out, err := client(t, nil, installed(t, "turnutils_natdiscovery", "coturn"), append(args, "-p", strconv.Itoa(d.turn), bed.Loopback)...)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return out
	}
	for _, question := range []string{"-m", "-f"} {
		out := discover(question)
		if claim := claimPattern.FindString(out); claim != "" || !strings.Contains(out, "UDP reflexive addr: "+bed.Loopback) {
			t.Errorf("client says %q, want its own address and nothing about a NAT:\n%s", claim, out)
		}
	}
	if out := discover("-m", "-P"); !strings.Contains(out, "error 420 (Unknown Attribute)") {
		t.Errorf("PADDING is not refused:\n%s", out)
	}
}

// claimPattern is what the client says when a server takes part in NAT discovery.
var claimPattern = regexp.MustCompile(`.*(NAT|ALG|RFC 5780 response).*`)
