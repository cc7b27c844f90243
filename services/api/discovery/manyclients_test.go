package discovery

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// narrow is a listener whose connections have small buffers, so that a client that does not read soon blocks the
// writer.
type narrow struct{ net.Listener }

func (l narrow) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		err = conn.(*net.TCPConn).SetWriteBuffer(16 << 10)
	}
	return conn, err
}

// manyClients is a server with many clients, which count the frames that they receive.
type manyClients struct {
	*testing.T
	server *Server
	url    string
	// received counts the frames that contain a text.
	mu       sync.Mutex
	received map[string]int
}

func newManyClients(t *testing.T) *manyClients {
	c := &manyClients{T: t, server: NewServer(ServerOptions{}), received: map[string]int{}}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &http.Server{Handler: c.server, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() { defer close(done); _ = h.Serve(narrow{ln}) }()
	t.Cleanup(func() { _ = h.Close(); <-done; eventually(t, func() bool { return c.server.Streams() == 0 }) })
	c.url = "http://" + ln.Addr().String() + apiPath
	return c
}

// join opens a stream.
func (c *manyClients) join(path string) *websocket.Conn {
	c.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil {
			err = conn.(*net.TCPConn).SetReadBuffer(16 << 10)
		}
		return conn, err
	}}
	conn, _, err := websocket.Dial(
		c.Context(), c.url+path+"?watch=true", &websocket.DialOptions{HTTPClient: &http.Client{Transport: transport}},
	)
	if err != nil {
		c.Fatal(err)
	}
	conn.SetReadLimit(frameLimit)
	c.Cleanup(func() { _ = conn.CloseNow() })
	return conn
}

// realm extracts the realm of a config without parsing all of it.
var realm = regexp.MustCompile(`"realm":"([^"]*)"`)

// listen counts the frames of a stream by realm.
func (c *manyClients) listen(conn *websocket.Conn) {
	for {
		_, data, err := conn.Read(context.WithoutCancel(c.Context()))
		if err != nil {
			return
		}
		found := realm.FindSubmatch(data)
		c.mu.Lock()
		c.received[string(found[1])]++
		c.mu.Unlock()
	}
}

// publish publishes a config and returns the time until n clients have received it, each once.
func (c *manyClients) publish(realm string, n int) time.Duration {
	c.Helper()
	begun := time.Now()
	c.server.Publish(sample("media/a", realm))
	for {
		c.mu.Lock()
		received := c.received[realm]
		c.mu.Unlock()
		switch took := time.Since(begun); {
		case received == n:
			return took
		case received > n || took > time.Minute:
			c.Fatalf("%d of %d have heard %s after %s", received, n, realm, took)
		}
		time.Sleep(time.Millisecond)
	}
}

func memory() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// K-12: large configs change while 1,000 clients are connected, 100 of which never read. The other clients receive each
// change at once and exactly once. Each client that does not read uses memory for only one config of each name.
func TestStalledReadersDoNotDelayOthers(t *testing.T) {
	const readers, stalled = 900, 100
	usual := serverKeepalive // stalled clients are not disconnected in this test
	serverKeepalive = keepalive{ping: usual.ping, silence: time.Hour, write: time.Hour}
	t.Cleanup(func() { serverKeepalive = usual })
	before := memory()
	c := newManyClients(t)
	var listening sync.WaitGroup
	t.Cleanup(listening.Wait)
	for range readers {
		conn := c.join("/media/a")
		listening.Go(func() { c.listen(conn) })
	}
	c.publish("warm", readers)
	alone := c.publish("alone", readers)
	for range stalled {
		c.join("")
	}
	eventually(t, func() bool {
		c.server.registry.mu.Lock()
		defer c.server.registry.mu.Unlock()
		return len(c.server.watchers[""]) == stalled
	})
	large := sample("media/large", "")
	for change := range 20 {
		large.Clusters = []config.Cluster{
			{Name: "media/route", Endpoints: []string{strings.Repeat("x", 200_000+change)}},
		}
		c.server.Publish(large)
	}
	among := c.publish("among", readers)
	if limit := 2*alone + usual.write/2; among > limit { // waiting for a stalled client would take longer
		t.Errorf("a change took %s, without readers that do not read %s", among, alone)
	}
	grown := int64(memory()) - int64(before)
	t.Logf(
		"%d readers hear a change after %s, among %d that do not read after %s; memory of both sides has grown by %d MB",
		readers, alone, stalled, among, grown>>20,
	)
	if grown > 100<<20 {
		t.Errorf("memory has grown by %d MB", grown>>20)
	}
	c.server.registry.mu.Lock()
	if n := len(c.server.watchers[""]); n != stalled {
		t.Errorf("%d that do not read are left, want %d: nothing was proved", n, stalled)
	}
	for w := range c.server.watchers[""] {
		if n := len(w.queue.items); n > 2 {
			t.Errorf("%d configs wait for one reader", n)
		}
	}
	c.server.registry.mu.Unlock()
}

// after a restart of the server its clients do not reconnect all at once, and receive changed configs only, once.
func TestClientsReconnectOneByOne(t *testing.T) {
	const clients = 200
	changed, same := sample("media/changed", "r1"), sample("media/same", "r1")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := ln.Addr().String()
	var arrivals atomic.Int64
	run := func(ln net.Listener, configs ...config.Config) (s *Server, stop func()) {
		s = NewServer(ServerOptions{})
		for _, c := range configs {
			s.Publish(c)
		}
		all, end := context.WithCancel(context.Background())
		h := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			arrivals.Add(1)
			s.ServeHTTP(w, r)
		}))
		_ = h.Listener.Close()
		h.Listener = ln
		h.Config.BaseContext = func(net.Listener) context.Context { return all }
		h.Start()
		return s, func() { end(); h.Close() }
	}
	s, stop := run(ln, changed, same)
	var configs, lost atomic.Int64
	var listening sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for range clients {
		events := open(t, "http://"+address, Options{}).Watch(ctx)
		listening.Go(func() {
			for e := range events {
				switch {
				case errors.Is(e.Err, ErrRejected), e.Deleted:
					t.Errorf("event %+v", e)
				case e.Err != nil:
					lost.Add(1)
				case e.ID != "":
					configs.Add(1)
				}
			}
		})
	}
	defer func() { cancel(); listening.Wait() }()
	await := func(what string, done func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %d streams, %d configs", what, s.Streams(), configs.Load())
			}
		}
	}
	await("first connection", func() bool { return s.Streams() == clients && configs.Load() == 2*clients })
	stop()
	await("loss", func() bool { return lost.Load() >= clients })
	if ln, err = net.Listen("tcp", address); err != nil {
		t.Fatal(err)
	}
	changed.Auth.Realm = "r2"
	arrivals.Store(0)
	begun := time.Now()
	s, stop = run(ln, changed, same)
	defer stop()
	await("reconnection", func() bool { return s.Streams() == clients && configs.Load() >= 3*clients })
	t.Logf("%d clients are back after %s, with %d requests", clients, time.Since(begun), arrivals.Load())
	if n := arrivals.Load(); n > 2*clients {
		t.Errorf("%d requests of %d clients", n, clients)
	}
	if n := configs.Load(); n != 3*clients {
		t.Errorf("%d configs were delivered, want %d: what is known is no news", n, 3*clients)
	}
}
