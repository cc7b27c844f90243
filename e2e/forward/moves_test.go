package forward

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

var (
	allMoves = flag.Bool("all", false, "make TestMoves measure all of its rows, and not only a few")
	moveRows = flag.String("rows", "", "regular expression that selects rows of TestMoves")
)

// moveRow is a pair of programs. The relayed address of the first program changes during a call.
type moveRow struct {
	client, peer string
	// offers is set if the client makes the offer. The side that makes the offer is controlling, except with a lite
	// agent.
	offers bool
	// soft is the result for the sessions of the call when their pod drains.
	soft result
	// survives is set if the call continues after its pod is lost.
	survives bool
	// quick rows are measured without -all, and only soft.
	quick bool
}

// result is the result for a session of a draining pod.
type result int

const (
	// taken: the peer uses the new relayed address.
	taken result = iota
	// kept: the peer gets connectivity checks from the new address, and continues to use the former address.
	kept
	// stays: the session stays at its pod.
	stays
)

const (
	chromiumClient = "Chromium"
	pionFull       = "pion"
	pionLite       = "pion lite"
	aioice         = "aioice"
	libnice        = "libnice"
	janus          = "Janus"
	samePage       = "Chromium, not relayed"
	relayedPage    = "Chromium, relayed"
	noICE          = "without ICE"
)

// moveRowsAll are the rows of the table.
var moveRowsAll = []moveRow{
	{chromiumClient, pionFull, true, taken, true, false},
	{chromiumClient, pionFull, false, kept, false, false},
	{chromiumClient, pionLite, true, taken, true, false},
	{chromiumClient, pionLite, false, taken, true, false},
	{chromiumClient, aioice, true, taken, true, false},
	{chromiumClient, aioice, false, taken, true, false},
	{chromiumClient, libnice, true, taken, true, false},
	{chromiumClient, libnice, false, taken, true, false},
	{chromiumClient, janus, true, taken, true, false},
	{chromiumClient, janus, false, taken, true, false},
	{chromiumClient, samePage, true, taken, true, true},
	{chromiumClient, samePage, false, taken, true, false},
	{chromiumClient, relayedPage, true, stays, false, false},
	{pionFull, pionFull, true, taken, true, true},
	{pionFull, pionFull, false, kept, false, true},
	{pionFull, pionLite, true, taken, true, true},
	{aioice, aioice, true, taken, true, false},
	{aioice, aioice, false, taken, true, false},
	{libnice, libnice, true, kept, false, false},
	{libnice, libnice, false, kept, false, false},
	{"pion/turn", noICE, true, stays, false, true},
}

// ends is the result for a call that ends.
const ends = "ends"

func (r moveRow) String() string {
	verb := map[bool]string{true: "offers", false: "answers"}[r.offers]
	return fmt.Sprintf("%s %s, peer %s", r.client, verb, r.peer)
}

// source sends the messages of a flow, and sink receives them.
type source interface {
	sent() int
	stop()
}

type sink interface {
	arrived() int
	// lap returns the longest time without a message since its last call.
	lap() time.Duration
}

// flow is one direction of a call.
type flow struct {
	source
	sink
}

// moveCall is the call of a row: the flow to the peer and the flow to the client, which are the same if the peer
// echoes. end deletes the allocation.
type moveCall struct {
	up, down flow
	end      func()
}

// pageEnd is one end of a call in the page.
type pageEnd struct {
	page *page
	end  int
	laps *pageLaps
}

// pageLaps are the gaps of the last lap that lap has not returned to both ends yet.
type pageLaps map[int]time.Duration

func (e pageEnd) sent() int    { sent, _ := e.page.counters(e.end); return sent }
func (e pageEnd) arrived() int { _, arrived := e.page.counters(e.end); return arrived }
func (e pageEnd) stop()        { e.page.stop() }

func (e pageEnd) lap() time.Duration {
	gap, ok := (*e.laps)[e.end]
	if !ok {
		*e.laps = pageLaps(maps.Collect(slices.All(e.page.lap())))
		gap = (*e.laps)[e.end]
	}
	delete(*e.laps, e.end)
	return gap
}

// moves is the Gateway of TestMoves. Each call has two pods of its own. Its datagrams are sent to the first pod.
type moves struct {
	*gateway
	page  *page // nil before the first call of a browser
	janus *janusServer
	pods  []*pod
}

// TestMoves prints how pairs of ICE agents react when the relayed address of the client changes. soft: its
// pod drains. No datagram is lost, whether the peer accepts the new address or not; peers that do not are counted.
// hard: its pod is cut off.
//
//	make moves ARGS='-rows Janus'
func TestMoves(t *testing.T) {
	g := newGateway(t)
	g.config.Admin.MetricsEndpoint = "http://0.0.0.0:8080"
	g.config.Clusters[0].Endpoints = append(g.config.Clusters[0].Endpoints, g.net.Home[0].String(),
		netip.PrefixFrom(g.peer.Addr(), 24).Masked().String(), g.net.Nodes[0].Pods().String())
	g.discovery.Publish(g.config)
	undo, err := g.net.ReachPublic()
	must(t, err)
	t.Cleanup(func() { must(t, undo()) })
	selected, err := regexp.Compile(*moveRows)
	must(t, err)
	m := &moves{gateway: g}
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "call\tmove\tresult\tlost down/up\tlongest gap down/up\twithout a move")
	for _, r := range moveRowsAll {
		if !selected.MatchString(r.String()) || !*allMoves && *moveRows == "" && !r.quick {
			continue
		}
		fmt.Fprintln(table, m.measure(r, false))
		if *allMoves || *moveRows != "" {
			fmt.Fprintln(table, m.measure(r, true))
		}
	}
	table.Flush()
	t.Logf("what agents do when a relayed address moves:\n%s", text.String())
}

// measure makes a call of a row, moves it, and returns a row of the table.
func (m *moves) measure(r moveRow, hard bool) string {
	t := m.t
	t.Helper()
	name := fmt.Sprintf("%s\t%s", r, map[bool]string{false: "soft", true: "hard"}[hard])
	m.pods = m.add(2)
	defer m.remove()
	m.sendAll(m.pods[0])
	c := m.start(r)
	if !c.arrive(100, limit) {
		t.Fatalf("%s: before the move, %d of %d messages arrive down, %d of %d up", name, c.down.arrived(), c.down.sent(),
			c.up.arrived(), c.up.sent())
	}
	c.down.lap()
	c.up.lap()
	if !c.arrive(100, limit) {
		t.Fatalf("%s: before the move, %d of %d messages arrive down, %d of %d up", name, c.down.arrived(), c.down.sent(),
			c.up.arrived(), c.up.sent())
	}
	beforeDown, beforeUp := c.down.lap(), c.up.lap()
	move := m.drainPod
	if hard {
		move = m.losePod
	}
	result := move(r, c)
	gapDown, gapUp := c.down.lap(), c.up.lap()
	lostDown, lostUp := c.lost(hard)
	c.end()
	if !hard && lostDown+lostUp > 0 {
		t.Errorf("%s: %d messages lost down, %d up", name, lostDown, lostUp)
	}
	if !hard {
		awaitExit(t, m.pods[0])
	}
	lost, gaps := c.pair(lostDown, lostUp), c.gaps(gapDown, gapUp)
	switch {
	case result == ends:
		lost, gaps = "–", "–"
	case hard && r.peer == janus: // a browser handles a jump of more than 50 RTP packets as the start of a new stream
		lost = "–"
	}
	line := fmt.Sprintf("%s\t%s\t%s\t%s\t%s", name, result, lost, gaps, c.gaps(beforeDown, beforeUp))
	t.Log(line)
	return line
}

// pair formats the figures of both directions. A flow in both directions has one figure.
func (c *moveCall) pair(down, up any) string {
	if c.up == c.down {
		return fmt.Sprint(down)
	}
	return fmt.Sprintf("%v/%v", down, up)
}

func (c *moveCall) gaps(down, up time.Duration) string {
	return c.pair(down.Milliseconds(), up.Milliseconds()) + " ms"
}

// arrive waits until more messages have arrived in both directions.
func (c *moveCall) arrive(more int, within time.Duration) bool {
	down, up := c.down.arrived()+more, c.up.arrived()+more
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return harness.Until(ctx, func(context.Context) error {
		if c.down.arrived() < down || c.up.arrived() < up {
			return fmt.Errorf("%d down, %d up", c.down.arrived(), c.up.arrived())
		}
		return nil
	}) == nil
}

// lost stops both flows and returns the number of messages that have not arrived. After a hard move, it does not wait
// for further messages.
func (c *moveCall) lost(hard bool) (down, up int) {
	c.down.stop()
	c.up.stop()
	within := 10 * time.Second
	if hard {
		within = time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	_ = harness.Until(ctx, func(context.Context) error { // later messages count as lost
		down, up = c.down.sent()-c.down.arrived(), c.up.sent()-c.up.arrived()
		if down+up > 0 {
			return fmt.Errorf("%d and %d messages are missing", down, up)
		}
		return nil
	})
	return down, up
}

// drainPod terminates the first pod, and returns the result for the call.
func (m *moves) drainPod(r moveRow, c *moveCall) string {
	t, leaving := m.t, m.pods[0]
	t.Helper()
	sessions := len(leaving.sessions())
	asked := map[result]int{taken: 0, kept: sessions, stays: 0}[r.soft]
	want := fmt.Sprintf("0 moved, %d stay (%[1]d peer)", sessions)
	if r.soft == taken {
		want = fmt.Sprintf("%d moved", sessions)
	}
	must(t, leaving.process.Signal(syscall.SIGTERM))
	begun := time.Now()
	var took time.Duration
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	err := harness.Until(ctx, func(ctx context.Context) error {
		if took == 0 && m.pods[1].metric(telemetry.PeersMoved) > 0 {
			took = time.Since(begun)
		}
		var status inspection.Status
		_, body, err := harness.Get(ctx, leaving.admin("status"))
		if err = errors.Join(err, json.Unmarshal(body, &status)); err != nil || status.Drain == nil {
			return fmt.Errorf("status of the pod that drains: %w", err)
		}
		n, got := int(m.pods[1].metric(telemetry.PeersNotMoved)), status.Drain.String()
		if got != want || n != asked {
			return fmt.Errorf("%s, want %s; %d peers counted as not moved, want %d", got, want, n, asked)
		}
		return nil
	})
	if err != nil {
		t.Errorf("%s: %v", r, err)
	}
	if took == 0 { // both values were read in one round
		took = time.Since(begun)
	}
	if r.soft != taken && err == nil {
		owned := map[result]int{kept: 0, stays: sessions}[r.soft]
		if n := len(leaving.sessions()); n != owned {
			t.Errorf("%s: the pod that drains has %d sessions, want %d", r, n, owned)
		}
		leaving.await("it stays ready", harness.Answers(leaving.admin("ready"), http.StatusOK))
	}
	if !c.arrive(50, limit) {
		t.Errorf("%s: the call does not go on", r)
	}
	return map[result]string{
		taken: fmt.Sprintf("taken within %d ms", took.Milliseconds()), kept: "not taken, stays", stays: "stays",
	}[r.soft]
}

// losePod cuts off the first pod, and returns the result for the call.
func (m *moves) losePod(r moveRow, c *moveCall) string {
	t := m.t
	t.Helper()
	if r.survives {
		copied(m.pods[1:], 1)
	}
	must(t, m.pods[0].net.Unplug())
	m.sendElsewhere()
	within := 15 * time.Second
	if r.survives {
		within = limit
	}
	survives := c.arrive(50, within)
	if survives != r.survives {
		t.Errorf("%s: the call goes on after its pod is lost: %t, want %t", r, survives, r.survives)
	}
	return map[bool]string{true: "goes on", false: ends}[survives]
}

// sendElsewhere makes the load balancer send the clients of the first pod to the next pod.
func (m *moves) sendElsewhere() {
	m.t.Helper()
	m.sendAll(m.pods[1])
	must(m.t, m.net.Forget(m.pods[0].addr.Addr()))
}

// remove kills the pods of a call: a lost pod keeps its sessions.
func (m *moves) remove() {
	m.t.Helper()
	for _, p := range m.pods {
		must(m.t, p.process.Kill())
		m.announce(func() { delete(m.reported, p.name) })
	}
}

func (m *moves) start(r moveRow) *moveCall {
	t := m.t
	t.Helper()
	switch {
	case r.client == chromiumClient:
		return m.startPage(r)
	case r.peer == noICE:
		return m.startEcho()
	}
	return callBetween(t, m.client(r), m.peerOf(r))
}

// callBetween starts a call between two agents.
func callBetween(t *testing.T, client, peer agent) *moveCall {
	t.Helper()
	ends := connectBoth(t, client, peer)
	up, down := newSender(ends[0]), newSender(ends[1])
	return &moveCall{
		up: flow{up, newReceiver(ends[1])}, down: flow{down, newReceiver(ends[0])},
		end: func() { ends[0].Close(); ends[1].Close() },
	}
}

// client returns the relayed agent of a row.
func (m *moves) client(r moveRow) agent {
	if r.client == pionFull {
		return pionClient(m.t, m.service.Addr(), r.offers)
	}
	return m.scriptAgent(m.t, r.client+"_end.py", m.net.Clients, m.net.Client[0], r.offers, true)
}

// peerOf returns the agent of the peer of a row. A lite agent is never controlling.
func (m *moves) peerOf(r moveRow) agent {
	switch r.peer {
	case pionFull:
		return m.pionPeer(m.t, !r.offers, false)
	case pionLite:
		return m.pionPeer(m.t, false, true)
	}
	return m.scriptAgent(m.t, r.peer+"_end.py", m.net.Peers, m.net.Peer(0)[0], !r.offers, false)
}

// startPage starts a call of the browser.
func (m *moves) startPage(r moveRow) *moveCall {
	if m.page == nil {
		m.page = m.openPage()
	}
	p, laps := m.page, &pageLaps{}
	client := pageEnd{p, 0, laps}
	relays := []harness.ICEServer{{
		URLs: []string{fmt.Sprintf("turn:%s?transport=udp", m.service)}, Username: user, Credential: password,
	}}
	switch r.peer {
	case samePage, relayedPage:
		o := order{Peer: "page", Media: "data", ICEServers: relays}
		if r.peer == relayedPage {
			o.Peer = "relayed page"
		}
		if !r.offers {
			o.Description = &description{}
		}
		p.call(o)
		peer := pageEnd{p, 1, laps}
		return &moveCall{up: flow{client, peer}, down: flow{peer, client}, end: p.end}
	case janus:
		if m.janus == nil {
			m.janus = m.startJanus()
		}
		m.janus.call(p, r.offers, relays)
		// Janus returns the packets of the client, or sends a stream. The page counts the lost packets.
		return &moveCall{up: flow{client, client}, down: flow{client, client}, end: p.end}
	}
	channel := p.callAgent(m.peerOf(r), r.offers, relays)
	return &moveCall{
		up: flow{client, newReceiver(channel)}, down: flow{newSender(channel), client},
		end: func() { p.end(); channel.Close() },
	}
}

// echoEnd is both ends of a call with an echo peer.
type echoEnd struct {
	*call.Call
	ending *sync.Once
}

func (e echoEnd) sent() int          { return e.Stats().Sent }
func (e echoEnd) arrived() int       { return e.Stats().Received }
func (e echoEnd) lap() time.Duration { return e.Lap() }
func (e echoEnd) stop()              { e.ending.Do(func() { e.End(10 * time.Second) }) }

// startEcho starts a call with a peer that does not use ICE.
func (m *moves) startEcho() *moveCall {
	m.t.Helper()
	c, err := call.Start(m.t.Context(), call.Options{
		Gateway: m.service, Network: call.UDP, Username: user, Password: password, Peer: m.gateway.peer, Interval: voice,
	})
	must(m.t, err)
	e := echoEnd{c, new(sync.Once)}
	return &moveCall{up: flow{e, e}, down: flow{e, e}, end: e.stop}
}
