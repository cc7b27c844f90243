// Package interop tests the dataplane with clients of other projects: coturn, aioice, libnice and Janus.
package interop

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// The two credential mechanisms, as config of a dataplane and as arguments of coturn's client.
var (
	static    = harnesstest.Static("carol", "sings-alto")
	ephemeral = harnesstest.Ephemeral("shared-by-two")
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
	clients int // concurrent clients; over DTLS, each client loses a second per random attempt with DTLS 1.0
}

func plain(d dataplane) int  { return d.Plain }
func secure(d dataplane) int { return d.Secure }

var transports = []transport{
	{"UDP", nil, plain, 4},
	{"TCP", []string{"-t"}, plain, 4},
	{"TLS", []string{"-t", "-S"}, secure, 4},
	{"DTLS", []string{"-S"}, secure, 1},
}

// mode is a way to run coturn's client.
type mode struct {
	name string
	call
	// outcome checks the run against a server.
	outcome func(t *testing.T, d dataplane, c call)
	// differs is why the outcome with coturn's own server in Debian differs, or empty if it is the same.
	differs string
	// coturn is the outcome of coturn's own server if it differs.
	coturn func(t *testing.T, d dataplane, c call)
}

// lossyTLS is why coturn's own server may lose messages over TLS.
const lossyTLS = "coturn 4.6 refuses TLS 1.0 and 1.1, which its client tries at random, and loses some messages then"

// modes are the modes with static credentials.
var modes = []mode{
	{name: "UDP", call: call{over: transports[0], args: []string{"-c"}}, outcome: echoed},
	{name: "TCP", call: call{over: transports[1], args: []string{"-c"}}, outcome: echoed},
	{
		name: "TLS", call: call{over: transports[2], args: []string{"-c"}}, outcome: echoed,
		differs: lossyTLS, coturn: partly,
	},
	{name: "DTLS", call: call{over: transports[3], args: []string{"-c"}}, outcome: echoed},
	{
		name: "IPv6 over UDP", outcome: echoed,
		call: call{over: transports[0], server: loopback6, peer: loopback6, args: []string{"-c", "-x"}},
	},
	{
		name: "IPv6 over TCP", outcome: echoed,
		call: call{over: transports[1], server: loopback6, peer: loopback6, args: []string{"-c", "-x"}},
	},
	{
		name: "IPv6 over TLS", outcome: echoed, differs: lossyTLS, coturn: partly,
		call: call{over: transports[2], server: loopback6, peer: loopback6, args: []string{"-c", "-x"}},
	},
	{
		name: "IPv6 over DTLS", outcome: echoed,
		call: call{over: transports[3], server: loopback6, peer: loopback6, args: []string{"-c", "-x"}},
	},
	{name: "IPv4 client, IPv6 relay", call: call{peer: loopback6, args: []string{"-c", "-x"}}, outcome: echoed},
	{name: "IPv6 client, IPv4 relay", call: call{server: loopback6, args: []string{"-c", "-X"}}, outcome: echoed},
	{name: "indications", call: call{args: []string{"-c", "-s"}}, outcome: echoed},
	{
		name: "indications over TLS", call: call{over: transports[2], args: []string{"-c", "-s"}}, outcome: echoed,
		differs: lossyTLS, coturn: partly,
	},
	{name: "padded ChannelData", call: call{args: []string{"-c", "-D"}}, outcome: echoed},
	{name: "a mobility ticket nobody gives", call: call{args: []string{"-c", "-M"}}, outcome: echoed},
	{name: "forbidden peers in between", call: call{args: []string{"-c", "-G"}}, outcome: echoed},
	{name: "no permissions of its own", call: call{args: []string{"-c", "-I"}}, outcome: echoed},
	{name: "random disconnects", call: call{args: []string{"-c", "-B"}}, outcome: echoed},
	{name: "many allocations", call: call{clients: 50, args: []string{"-c"}}, outcome: echoed},
	{name: "messages of 1,200 bytes", call: call{args: []string{"-c", "-l", "1200"}}, outcome: echoed},
	{name: "don't fragment", call: call{args: []string{"-c", "-g"}}, outcome: echoed},
	{name: "don't fragment, indications", call: call{args: []string{"-c", "-s", "-g"}}, outcome: echoed},
	{
		name: "both families", call: call{args: []string{"-Z"}},
		outcome: mayBeRefused("error 443 (Peer Address Family Mismatch)"),
		differs: "an allocation has one relay; its answer has ADDRESS-ERROR-CODE 440 for IPv6", coturn: echoed,
	},
	{name: "clients with each other", call: call{peer: none, args: []string{"-c", "-y"}}, outcome: echoed},
	{
		name: "clients with each other, indications", outcome: echoed,
		call: call{peer: none, args: []string{"-c", "-y", "-s"}},
	},
	{
		name: "clients with each other, TCP", outcome: echoed,
		call: call{peer: none, over: transports[1], args: []string{"-c", "-y"}},
	},
	{name: "pairs of ports", call: call{}, outcome: reserved},
	{
		name: "pairs of ports, IPv6", call: call{server: loopback6, peer: loopback6, args: []string{"-x"}},
		outcome: reserved,
	},
	{name: "pairs of ports, one to one", call: call{peer: none, args: []string{"-y"}}, outcome: reserved},
	{
		name: "wrong password", call: call{credential: []string{"-u", "carol", "-w", "guessed"}},
		outcome: refusal("Cannot complete Allocation"),
	},
	{
		name: "unknown user", call: call{credential: []string{"-u", "mallory", "-w", "sings-alto"}},
		outcome: refusal("Cannot complete Allocation"),
	},
	{
		name: "TCP relay", call: call{peer: none, args: []string{"-T"}},
		outcome: refusal("error 442 (Unsupported Transport Protocol)"),
		differs: "coturn relays over TCP (RFC 6062)", coturn: echoed,
	},
}

// N-01, N-04, T-A7, T-A11, J-10: coturn's clients call over every transport, with both credential mechanisms and both
// address families, and lose nothing. Each mode has the same outcome with coturn's own server, unless its row gives the
// reason.
func TestCoturn(t *testing.T) {
	servers := []struct {
		name string
		dataplane
		own bool
	}{{"stunnerd", start(t, static), false}, {"coturn", startCoturn(t), true}}
	for _, m := range modes {
		for _, server := range servers {
			outcome := m.outcome
			if server.own && m.differs != "" {
				outcome = m.coturn
				t.Logf("%s: %s", m.name, m.differs)
			}
			t.Run(m.name+" at "+server.name, func(t *testing.T) { outcome(t, server.dataplane, m.call) })
		}
	}
	other := start(t, ephemeral)
	for _, over := range transports {
		t.Run("ephemeral credentials over "+over.name, func(t *testing.T) {
			echoed(t, other, call{credential: shared, over: over, args: []string{"-c"}})
		})
	}
	t.Run("wrong password for ephemeral credentials", func(t *testing.T) {
		refused(t, other, call{credential: []string{"-u", "carol", "-w", "guessed"}}, "Cannot complete Allocation")
	})
	for _, d := range []dataplane{servers[0].dataplane, other} {
		t.Run("binding request", func(t *testing.T) { binding(t, d) })
	}
	t.Run("NAT discovery is not offered", func(t *testing.T) { noDiscovery(t, servers[0].dataplane) })
}

// coturn with a shared secret accepts a credential with caveats, as a credential of a user with a longer name. stunnerd
// accepts the same credential and enforces the caveats.
func TestCaveatsInCoturn(t *testing.T) {
	authority := ephemeral.Authority()
	secret := string(authority.SharedSecret)
	theirs := coturn(t, "--use-auth-secret", "--static-auth-secret="+secret)
	ours := start(t, ephemeral)
	mint := func(c credential.Caveats) []string {
		minted, err := authority.MintWith(c, "carol", time.Hour, time.Now())
		harnesstest.NoError(t, err)
		return []string{"-u", minted.Username, "-w", string(minted.Password)}
	}
	peers := credential.Caveats{Routes: []string{"test/peers"}, Allocations: 100, NotBefore: time.Now().Unix()}
	for name, c := range map[string]credential.Caveats{"no caveats": {}, "caveats": peers} {
		for server, d := range map[string]dataplane{"coturn": theirs, "stunnerd": ours} {
			t.Run(name+" at "+server, func(t *testing.T) {
				echoed(t, d, call{credential: mint(c), args: []string{"-c"}})
			})
		}
	}
	others := mint(credential.Caveats{Routes: []string{"test/others"}})
	t.Run("a peer of another route at coturn", func(t *testing.T) {
		echoed(t, theirs, call{credential: others, args: []string{"-c"}})
	})
	t.Run("a peer of another route at stunnerd", func(t *testing.T) {
		refused(t, ours, call{credential: others, args: []string{"-c"}}, "error 403")
	})
	broken := mint(peers)
	broken[1] = strings.Replace(broken[1], "test_peers", "test_other", 1)
	for server, d := range map[string]dataplane{"coturn": theirs, "stunnerd": ours} {
		t.Run("a changed caveat at "+server, func(t *testing.T) {
			refused(t, d, call{credential: broken, args: []string{"-c"}}, "Cannot complete Allocation")
		})
	}
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
	over, credential, peer := c.over, c.credential, cmp.Or(c.peer, harness.Loopback)
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
	args = append(args, cmp.Or(c.server, harness.Loopback))
	out, err = client(t, nil, installed(t, "turnutils_uclient", "coturn"), args...)
	return out, clients * messages, err
}

// Patterns of the client's output.
var (
	lostPattern    = regexp.MustCompile(`Total lost packets (\d+) \(([0-9.]+)%\)`)
	figuresPattern = regexp.MustCompile(`start_mclient: tot_send_msgs=(\d+), tot_recv_msgs=(\d+)\n`)
)

// echoed runs a call that must lose nothing.
func echoed(t *testing.T, d dataplane, c call) { lossless(t, d, c) }

// lossless runs a call that must lose nothing, and returns the output. The client sleeps most of its time.
func lossless(t *testing.T, d dataplane, c call) string {
	t.Helper()
	t.Parallel()
	out, sent, err := c.run(t, d)
	if err != nil {
		t.Fatalf("client failed: %v\n%s", err, out)
	}
	receivedAll(t, out, sent)
	return out
}

// receivedAll fails unless the client's output reports that all expected echoes have arrived.
func receivedAll(t *testing.T, out string, sent int) {
	t.Helper()
	lost, figures := lostPattern.FindStringSubmatch(out), figuresPattern.FindStringSubmatch(out)
	if lost == nil || figures == nil {
		t.Fatalf("no loss figures in the output:\n%s", out)
	}
	if want := strconv.Itoa(sent); lost[1] != "0" || figures[1] != want || figures[2] != want {
		t.Errorf("sent %s, received %s, lost %s, want 0 of %s lost:\n%s", figures[1], figures[2], lost[1], want, out)
	}
}

// partly runs a call that may lose some messages, but not all.
func partly(t *testing.T, d dataplane, c call) {
	t.Helper()
	t.Parallel()
	out, sent, err := c.run(t, d)
	figures := figuresPattern.FindStringSubmatch(out)
	if err != nil || figures == nil || figures[1] != strconv.Itoa(sent) || figures[2] == "0" {
		t.Errorf("want %d messages sent and some received: %v\n%s", sent, err, out)
	}
}

// relayPattern matches the client's output for an allocation: relayed address, and reservation token or 0.
var relayPattern = regexp.MustCompile(`Received relay addr: (\S+):(\d+)\n.*clnet_allocate: rtv=(\d+)\n`)

// reserved runs a call whose clients request an even port, reserve the next port (RFC 8656 §7.2), and use the token.
func reserved(t *testing.T, d dataplane, c call) {
	c.args = append([]string{"-v"}, c.args...)
	out := lossless(t, d, c)
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

// refusal is the outcome of a call that must be refused with an error.
func refusal(says string) func(t *testing.T, d dataplane, c call) {
	return func(t *testing.T, d dataplane, c call) {
		t.Helper()
		refused(t, d, c, says)
	}
}

// mayBeRefused is the outcome of a call in which the client chooses at random whether to make a request that must be
// refused with an error. After the error, the client ends or continues without losses.
func mayBeRefused(says string) func(t *testing.T, d dataplane, c call) {
	return func(t *testing.T, d dataplane, c call) {
		t.Helper()
		t.Parallel()
		out, sent, err := c.run(t, d)
		switch {
		case err == nil:
			receivedAll(t, out, sent)
		case !strings.Contains(out, says):
			t.Errorf("failed without %q: %v\n%s", says, err, out)
		}
	}
}

// refused runs a call that the server must refuse with an error in the client's output. The client has an address of
// its own: stunnerd refuses clients at the address and port of a client that has sent wrong passwords for a minute, and
// the client of another call may get the same port.
func refused(t *testing.T, d dataplane, c call, says string) {
	t.Helper()
	t.Parallel()
	c.args = append(slices.Clip(c.args), "-L", "127.0.0.2")
	out, _, err := c.run(t, d)
	if err == nil || !strings.Contains(out, says) {
		t.Errorf("not refused with %q: %v\n%s", says, err, out)
	}
}

// binding requests the client's reflexive address.
func binding(t *testing.T, d dataplane) {
	for _, server := range []string{harness.Loopback, loopback6} {
		out, err := client(t, nil, installed(t, "turnutils_stunclient", "coturn"), "-p", strconv.Itoa(d.Plain), server)
		if err != nil || !strings.Contains(out, "UDP reflexive addr: "+server) {
			t.Errorf("no reflexive address from %s: %v\n%s", server, err, out)
		}
	}
}

// noDiscovery checks that a server with one address does not take part in NAT discovery (RFC 5780 §4): it sends no
// OTHER-ADDRESS. A request with PADDING is answered.
func noDiscovery(t *testing.T, d dataplane) {
	discover := func(args ...string) string {
		out, err := client(
			t, nil, installed(t, "turnutils_natdiscovery", "coturn"),
			append(args, "-p", strconv.Itoa(d.Plain), harness.Loopback)...,
		)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return out
	}
	for _, question := range [][]string{{"-m"}, {"-f"}, {"-m", "-P"}} {
		out := discover(question...)
		if claim := claimPattern.FindString(out); claim != "" ||
			!strings.Contains(out, "UDP reflexive addr: "+harness.Loopback) {
			t.Errorf("output %q, want the reflexive address and no result about a NAT:\n%s", claim, out)
		}
	}
}

// claimPattern matches the client's output when a server takes part in NAT discovery.
var claimPattern = regexp.MustCompile(`.*(NAT|ALG|RFC 5780 response).*`)
