package discovery

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// deltaRounds is the number of random changes of TestDeltaModel. The test was run with 1,000,000:
// go test ./services/api/discovery -run TestDeltaModel -delta-rounds=1000000
var deltaRounds = flag.Int("delta-rounds", 20_000, "random changes of TestDeltaModel")

const modelID = "media/a"

// deltaModel is a server and a client of config discovery, and a link between them that has faults.
type deltaModel struct {
	*testing.T
	random  *rand.Rand
	current config.Config
	// published are the canonical forms that the server has published, by revision.
	published map[string]string
	server    *Server
	watcher   *watcher
	client    *watch
	link      [][]byte
	// running is the canonical form of the config that the client delivered last.
	running string
	counts  map[string]int
}

// connect opens a stream. Frames that are under way are lost.
func (m *deltaModel) connect() {
	if m.watcher != nil {
		m.server.unsubscribe(modelID, m.watcher)
	}
	m.link = nil
	m.watcher = &watcher{queue: newLatestQueue[published](), deliver: func() {}}
	m.watcher.deltas.enabled.Store(true)
	w := m.watcher
	m.client.deltas = deltaReader{request: func(r wholeRequest) {
		m.counts["whole configs requested"]++
		if w == m.watcher {
			m.server.sendWhole(modelID, w, r)
		}
	}}
	m.server.subscribe(modelID, m.watcher)
}

func (m *deltaModel) startServer() {
	m.server = NewServer(ServerOptions{})
	m.publish()
}

func (m *deltaModel) startClient() {
	m.client, m.running = newWatch("model", modelID), ""
}

func (m *deltaModel) publish() {
	revision, _ := m.server.Publish(m.current)
	m.published[revision] = string(m.current.Canonical())
	if config.RevisionOf([]byte(m.published[revision])) != revision {
		m.Fatalf("revision %s is not that of the canonical form", revision)
	}
}

// change changes a random part of the config. It shares the lists that it does not change, or none.
func (m *deltaModel) change() {
	c := m.current
	if m.random.IntN(4) == 0 {
		c = c.Clone()
	}
	c.Clusters = slices.Clone(c.Clusters)
	address := func() string { return fmt.Sprintf("10.0.0.%d:<7000-7999>", m.random.IntN(24)) }
	i := 0
	if len(c.Clusters) > 0 {
		i = m.random.IntN(len(c.Clusters))
	}
	switch kind := m.random.IntN(12); {
	case kind == 0:
		c.Auth.Realm = fmt.Sprint("realm-", m.random.IntN(5))
	case kind == 1 && len(c.Clusters) > 0:
		c.Clusters = slices.Delete(c.Clusters, i, i+1)
	case kind < 4 || len(c.Clusters) == 0:
		name := fmt.Sprintf("media/route-%d", m.random.IntN(10))
		if !slices.ContainsFunc(c.Clusters, func(c config.Cluster) bool { return c.Name == name }) {
			next := config.Cluster{Name: name, Endpoints: []string{address(), address(), address()}}
			c.Clusters = slices.Insert(c.Clusters, i, next)
		}
	case kind == 4:
		c.Clusters[i].Except = []string{"10.0.0.9"}
	case kind == 5:
		c.Clusters[i] = config.Cluster{
			Name: c.Clusters[i].Name, Type: config.StrictDNS, Endpoints: []string{"sfu.media.svc"},
		}
	default:
		if c.Clusters[i].Type == config.StrictDNS {
			c.Clusters[i].Type, c.Clusters[i].Endpoints = config.Static, nil
		}
		kept := slices.Clone(c.Clusters[i].Endpoints)
		for len(kept) > 0 && m.random.IntN(2) == 0 {
			at := m.random.IntN(len(kept))
			kept = slices.Delete(kept, at, at+1)
		}
		c.Clusters[i].Endpoints = append(kept, address())
	}
	m.current = c
	if m.random.IntN(500) == 0 {
		m.counts["deletions"]++
		m.server.Delete(modelID)
		m.send()
	}
	m.publish()
}

// send moves the queued configs to the link.
func (m *deltaModel) send() {
	for {
		p, ok := m.watcher.next()
		if !ok {
			return
		}
		frame := m.server.next(p, m.watcher)
		if isDelta(frame) {
			m.counts["deltas"]++
		} else {
			m.counts["whole configs"]++
		}
		m.link = append(m.link, frame)
	}
}

// fault damages the link, or restarts a side.
func (m *deltaModel) fault() {
	i := 0
	if len(m.link) > 0 {
		i = m.random.IntN(len(m.link))
	}
	kind := m.random.IntN(8)
	if kind < 5 && len(m.link) == 0 {
		return
	}
	switch kind {
	case 0:
		m.counts["dropped"]++
		m.link = slices.Delete(m.link, i, i+1)
	case 1:
		m.counts["doubled"]++
		m.link = slices.Insert(m.link, i, m.link[i])
	case 2:
		m.counts["reordered"]++
		j := m.random.IntN(len(m.link))
		m.link[i], m.link[j] = m.link[j], m.link[i]
	case 3:
		m.counts["cut"]++
		m.link[i] = m.link[i][:m.random.IntN(len(m.link[i])+1)]
	case 4:
		if m.link[i] = bytes.Clone(m.link[i]); len(m.link[i]) == 0 {
			return
		}
		m.counts["damaged"]++
		m.link[i][m.random.IntN(len(m.link[i]))] = "0123456789abcdef{}\":,"[m.random.IntN(21)]
	case 5:
		m.counts["reconnections"]++
		m.connect()
	case 6:
		m.counts["restarts of the server"]++
		m.server.unsubscribe(modelID, m.watcher)
		m.watcher = nil
		m.startServer()
		m.connect()
	case 7:
		m.counts["restarts of the client"]++
		m.startClient()
		m.connect()
	}
}

// receive reads the frames of the link, and checks each delivered config. damaged is set if frames may be damaged: a
// damaged whole config may be another valid config.
func (m *deltaModel) receive(damaged bool) {
	pending := newFrames()
	for _, frame := range m.link {
		pending.put(frame)
		if m.random.IntN(2) == 0 {
			m.client.receiveNewest(pending.takeAll())
		}
	}
	m.link = nil
	m.client.receiveNewest(pending.takeAll())
	for {
		e, ok := m.client.events.pop()
		if !ok {
			return
		}
		if e.Err != nil || e.Deleted || e.Connected {
			continue
		}
		if m.running = string(e.Config.Canonical()); damaged {
			continue
		}
		if want, ok := m.published[e.Revision]; !ok || m.running != want {
			m.Fatalf("the client runs\n%s\nas revision %s, which is\n%s", m.running, e.Revision, want)
		}
	}
}

// settle makes changes without faults, and checks that the client then runs the published config. The client runs it
// after the first change, unless it has requested a whole config that was lost.
func (m *deltaModel) settle(round int) {
	m.send()
	m.receive(true)
	for turn := range m.client.deltas.ignore + 1 {
		m.current.Auth.Realm = fmt.Sprint("round-", round, "-", turn)
		m.publish()
		for range 2 { // the change, and the whole config after a request
			m.send()
			m.receive(false)
		}
	}
	if want := string(m.current.Canonical()); m.running != want {
		m.Fatalf("round %d: the client runs\n%s\nwant\n%s", round, m.running, want)
	}
	clear(m.published)
	m.publish()
}

// Whatever happens to the frames and the processes, a client runs a config that the server has published, and at
// last the newest one, byte for byte.
func TestDeltaModel(t *testing.T) {
	const seed = 5
	m := &deltaModel{
		T: t, random: rand.New(rand.NewPCG(seed, 0)), current: sample(modelID, "r"), published: map[string]string{},
		counts: map[string]int{},
	}
	m.startServer()
	m.startClient()
	m.connect()
	for round := range *deltaRounds {
		m.change()
		m.send()
		if m.random.IntN(6) == 0 {
			m.fault()
			m.counts["faults"]++
		}
		switch m.random.IntN(8) {
		case 0, 1:
			m.receive(true)
		case 2:
			m.settle(round)
		}
	}
	m.settle(*deltaRounds)
	t.Logf("%d changes: %v", *deltaRounds, m.counts)
	for _, kind := range []string{
		"deltas", "whole configs", "whole configs requested", "dropped", "doubled", "reordered", "cut", "damaged",
		"reconnections", "restarts of the server", "restarts of the client", "deletions",
	} {
		if m.counts[kind] < *deltaRounds/2_000 {
			t.Errorf("%d %s are too few for this test", m.counts[kind], kind)
		}
	}
}
