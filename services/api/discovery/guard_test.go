package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// piped serves over in-memory connections, for tests in virtual time. It returns a client that connects to the server.
func piped(t *testing.T, s *Server) *http.Client {
	t.Helper()
	ln := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	h := &http.Server{Handler: s}
	go func() { _ = h.Serve(ln) }()
	t.Cleanup(func() { _ = h.Close() })
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(
		context.Context, string, string,
	) (net.Conn, error) {
		near, far := net.Pipe()
		ln.conns <- far
		return near, nil
	}}}
}

// follows opens a stream in virtual time.
func follows(t *testing.T, c *http.Client, path string) *websocket.Conn {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), "http://discovery"+apiPath+path, &websocket.DialOptions{HTTPClient: c})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	return conn
}

// K-01: a stream ends within ten minutes after its token has become invalid, but not while tokens cannot be reviewed.
func TestAStreamEndsWithItsToken(t *testing.T) {
	revoked, away, moved := errors.New("the token is no longer good"), fmt.Errorf(
		"review token: %w", ErrUndecided,
	), Grant{ID: "media/a", Node: "other"}
	for name, c := range map[string]struct {
		grant Grant
		err   error
		ends  bool
	}{
		"good":          {Grant{ID: "media/a"}, nil, false},
		"no longer":     {Grant{}, revoked, true},
		"for another":   {Grant{ID: "media/b"}, nil, true},
		"on other node": {moved, nil, true},
		"nobody knows":  {Grant{}, away, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var asked atomic.Int64
				s := NewServer(ServerOptions{Authorize: func(*http.Request) (Grant, error) {
					if asked.Add(1) == 1 {
						return Grant{ID: "media/a"}, nil
					}
					return c.grant, c.err
				}})
				conn := follows(t, piped(t, s), "/media/a?watch=true")
				ended := conn.CloseRead(context.Background())
				time.Sleep(reviewInterval/2 - time.Second)
				if asked.Load() != 1 || ended.Err() != nil {
					t.Errorf("asked %d times within %s", asked.Load(), reviewInterval/2)
				}
				time.Sleep(reviewInterval/2 + time.Second)
				synctest.Wait()
				if got := ended.Err() != nil; got != c.ends || asked.Load() < 2 {
					t.Errorf("ended %t after %d questions, want %t", got, asked.Load(), c.ends)
				}
				_ = conn.CloseNow()
				synctest.Wait()
				if s.Streams() != 0 {
					t.Errorf("%d streams are left", s.Streams())
				}
			})
		})
	}
}

// K-12: a client that does not read for the write timeout is disconnected. A silent client is disconnected too.
func TestClientsThatDoNotReadAreDisconnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(ServerOptions{})
		client := piped(t, s)
		stuck := follows(t, client, "?watch=true")
		reading := follows(t, client, "?watch=true")
		reading.CloseRead(context.Background())
		synctest.Wait()
		if s.Streams() != 2 {
			t.Fatalf("%d streams", s.Streams())
		}
		time.Sleep(serverKeepalive.silence + time.Second) // the pings of the server are not answered
		synctest.Wait()
		if s.Streams() != 1 {
			t.Errorf("%d streams, want that of the one who answers", s.Streams())
		}
		_, _ = stuck, reading.CloseNow()
		synctest.Wait()

		stuck = follows(t, client, "?watch=true")
		s.Publish(sample("media/a", "r"))
		time.Sleep(serverKeepalive.write + time.Second)
		synctest.Wait()
		if s.Streams() != 0 {
			t.Errorf("%d streams, want none: a write has taken too long", s.Streams())
		}
		_ = stuck.CloseNow()
	})
}

// K-12: a stream beyond the limit gets 503 with Retry-After.
func TestStreamsAreBounded(t *testing.T) {
	var refused []Refusal
	s, h := serve(
		t, ServerOptions{Limits: Limits{Streams: 2}, OnRefusal: func(why Refusal) { refused = append(refused, why) }},
		sample("media/a", "r"),
	)
	first := dial(t, h, apiPath+"?watch=true")
	dial(t, h, apiPath+"?watch=true")
	_, response, err := websocket.Dial(t.Context(), h.URL+apiPath+"?watch=true", nil)
	if err == nil || response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") == "" {
		t.Errorf("one too many: %v, %+v", err, response)
	}
	if status, _ := get(t, h.URL+apiPath); status != http.StatusOK {
		t.Errorf("a request that is no stream: %d", status)
	}
	_ = first.CloseNow()
	eventually(t, func() bool { return s.Streams() == 1 })
	dial(t, h, apiPath+"?watch=true")
	if len(refused) != 1 || refused[0] != TooManyStreams {
		t.Errorf("refused %q", refused)
	}
}

// K-12: a source has ten requests a second and a burst of twenty, independent of other sources.
func TestRequestsOfAnAddressAreBounded(t *testing.T) {
	unloaded, now := NewServer(ServerOptions{}), time.Unix(1_000, 0)
	allowed := func(address string, tries int) (n int) {
		for range tries {
			if unloaded.withinRate(address, now) {
				n++
			}
		}
		return n
	}
	for _, c := range []struct {
		after   time.Duration
		address string
		want    int
	}{
		{0, "192.0.2.1:1", 20}, {0, "192.0.2.1:2", 0}, {0, "192.0.2.2:1", 20}, {0, "[::ffff:192.0.2.2]:1", 0},
		{time.Second, "192.0.2.1:1", 10}, {time.Minute, "192.0.2.1:1", 20},
		{0, "[2001:db8::1]:1", 20}, {0, "[2001:db8::2]:1", 0}, {0, "[2001:db8:0:1::2]:1", 20},
		{0, "[fe80::1%eth0]:1", 20}, {0, "[fe80::2]:1", 0},
		{0, "127.0.0.1:1", 100}, {0, "[::1]:1", 100}, {0, "@", 100},
	} {
		now = now.Add(c.after)
		if got := allowed(c.address, 100); got != c.want {
			t.Errorf("%s: %d of 100, want %d", c.address, got, c.want)
		}
	}
	s, h := serve(t, ServerOptions{Limits: Limits{Rate: 1, Burst: 3, Loopback: true}})
	var codes []int
	for range 4 {
		code, _ := get(t, h.URL+apiPath)
		codes = append(codes, code)
	}
	if want := []int{200, 200, 200, 429}; fmt.Sprint(codes) != fmt.Sprint(want) {
		t.Errorf("codes %v of %v, want %v", codes, s.options.Limits, want)
	}
}

// A reader that connects after its config was deleted receives the deletion for an hour. For an id that was never
// published it receives nothing.
func TestDeletionsAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(ServerOptions{})
		first := func(want selector) (frames []string) {
			w := &watcher{queue: newLatestQueue[published](), deliver: func() {}}
			s.subscribe(want, w)
			defer s.unsubscribe(want, w)
			for p, ok := w.queue.pop(); ok; p, ok = w.queue.pop() {
				frames = append(frames, string(s.show(p, w.readerScope)))
			}
			return frames
		}
		a, zero := sample("media/a", "r"), string(config.Zero("media/a").Canonical())
		s.Publish(a)
		s.Delete("media/a")
		for _, want := range []selector{"media/a", "media/", ""} {
			if got := first(want); len(got) != 1 || got[0] != zero {
				t.Errorf("%q receives %q", want, got)
			}
		}
		for _, want := range []selector{"media/b", "web/"} {
			if got := first(want); len(got) != 0 {
				t.Errorf("%q, which was never published, receives %q", want, got)
			}
		}
		s.Publish(a)
		if got := first("media/a"); len(got) != 1 || got[0] != string(a.Canonical()) {
			t.Errorf("made again: %q", got)
		}
		s.Delete("media/a")
		time.Sleep(tombstoneTime + time.Second)
		if got := first(""); len(got) != 0 {
			t.Errorf("after more than an hour: %q", got)
		}
	})
	g, now := newTombstones(), time.Unix(1_000, 0)
	for i := range tombstoneLimit + 100 {
		g.add(fmt.Sprintf("media/%d", i), now)
	}
	if n := len(g.matching("", now)); n != tombstoneLimit || len(g.order) != tombstoneLimit ||
		g.matching("media/99", now) != nil || g.matching("media/100", now) == nil {
		t.Errorf("%d deletions are remembered, want the newest %d", n, tombstoneLimit)
	}
	if g.add("media/last", now.Add(2*tombstoneTime)); len(g.order) != 1 || len(g.deleted) != 1 {
		t.Errorf("%d deletions of long ago are kept", len(g.order)-1)
	}
}

// A dataplane receives the address of its own node only.
func TestNodesHaveAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := sample("media/a", "r")
		c.Listeners[0].Address = config.NodeAddressPlaceholder
		s := NewServer(ServerOptions{Authorize: func(r *http.Request) (Grant, error) {
			if r.Header.Get("Authorization") == "" {
				return Grant{All: true}, nil
			}
			return Grant{ID: "media/a", Pod: "p", Node: "north"}, nil
		}})
		s.Publish(c)
		s.SetNode("north", "192.0.2.1")
		client := piped(t, s)
		receives := func(conn *websocket.Conn, address string) {
			t.Helper()
			if got := frame(t, conn); !strings.Contains(got, `"address":"`+address+`"`) {
				t.Errorf("want address %s in %s", address, got)
			}
		}
		south, north := follows(t, client, "/media/a?watch=true&node=south"), follows(
			t, client, "?watch=true&node=north",
		)
		receives(south, config.AddressPlaceholder)
		receives(north, "192.0.2.1")
		s.SetNode("north", "192.0.2.1")
		s.SetNode("north", "2001:db8::1")
		receives(north, "2001:db8::1")
		s.SetNode("north", "")
		receives(north, config.AddressPlaceholder)
		s.SetNode("south", "192.0.2.2")
		receives(south, "192.0.2.2")
		// The node of a pod in the grant takes precedence over the node in the request.
		pod, _, err := websocket.Dial(t.Context(), "http://discovery"+apiPath+"/media/a?watch=true&node=south",
			&websocket.DialOptions{HTTPClient: client, HTTPHeader: http.Header{"Authorization": {"Bearer pod"}}})
		if err != nil {
			t.Fatal(err)
		}
		receives(pod, config.AddressPlaceholder)
		s.SetNode("north", "192.0.2.3")
		receives(pod, "192.0.2.3")
		for _, conn := range []*websocket.Conn{south, north, pod} {
			_ = conn.CloseNow()
		}
		synctest.Wait()
	})
}

// A report counts for the published revision, although the dataplane received the config with the address of its node,
// or with unknown fields. A report of a config with a previous address counts for another revision.
func TestReportsCountForThePublishedRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(ServerOptions{})
		client := piped(t, s)
		c := sample("media/a", "r")
		c.Listeners[0].Address = config.NodeAddressPlaceholder
		s.SetNode("north", "192.0.2.1")
		revision, _ := s.Publish(c)
		conn := follows(t, client, "/media/a?watch=true&node=north")
		reports := func(frame, want string) {
			t.Helper()
			text := fmt.Sprintf(
				`{"report":{"id":"media/a","pod":"p","revision":%q,"accepted":true,"allocations":0}}`,
				config.RevisionOf([]byte(frame)),
			)
			if err := conn.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(reportInterval)
			synctest.Wait()
			if got := s.Reports(); len(got) != 1 || got[0].Revision != want {
				t.Errorf("reports %+v, want one about %s", got, want)
			}
		}
		first := frame(t, conn)
		if first == string(c.Canonical()) {
			t.Fatal("the address of the node is not put in")
		}
		reports(first, revision)
		s.SetNode("north", "192.0.2.2")
		reports(first, config.RevisionOf([]byte(first)))
		reports(frame(t, conn), revision)
		c.Auth.Realm = "another"
		next, _ := s.Publish(c)
		reports(first, config.RevisionOf([]byte(first)))
		reports(frame(t, conn), next)
		c.Listeners[0].Address = "192.0.2.9"
		plain, _ := s.Publish(c)
		reports(frame(t, conn), plain)
		_ = conn.CloseNow()
		synctest.Wait()
	})
}

// K-01: in permissive mode a reader without a token receives configs without secrets, and its reports are ignored.
// While tokens cannot be reviewed, a dataplane gets no config instead of one without secrets.
func TestPermissiveWithholdsSecrets(t *testing.T) {
	var refused []Refusal
	authorize := func(r *http.Request) (Grant, error) {
		switch r.Header.Get("Authorization") {
		case "Bearer a":
			return Grant{ID: "media/a"}, nil
		case "Bearer later":
			return Grant{}, fmt.Errorf("review token: %w", ErrUndecided)
		}
		return Grant{}, errors.New("no token")
	}
	s, h := serve(t, ServerOptions{
		Authorize: authorize, Permissive: true, OnRefusal: func(why Refusal) { refused = append(refused, why) },
	},
		sample("media/a", "r1"), sample("media/b", "r2"))
	for _, c := range []struct {
		token, path string
		status      int
		secret      bool
	}{
		{"a", "/media/a", 200, true}, {"a", "/media/b", 200, false}, {"a", "", 200, false},
		{"", "/media/a", 200, false}, {"forged", "/media", 200, false}, {"later", "/media/a", 503, false},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.URL+apiPath+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+c.token)
		response, err := h.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		data, err := readLimited(response.Body, listLimit)
		_ = response.Body.Close()
		if err != nil || response.StatusCode != c.status ||
			strings.Contains(string(data), "correct-horse") != c.secret || strings.Contains(string(data), "redacted") {
			t.Errorf("token %q reads %q: %d %s", c.token, c.path, response.StatusCode, data)
		}
	}
	if fmt.Sprint(refused) != "[withheld withheld withheld withheld undecided]" {
		t.Errorf("refused %q", refused)
	}
	conn := dial(t, h, apiPath+"/media/a?watch=true")
	if text := frame(t, conn); strings.Contains(text, "correct-horse") || strings.Contains(text, "redacted") ||
		!strings.Contains(text, `"media/a/udp"`) {
		t.Errorf("frame %s", text)
	}
	if err := conn.Write(
		t.Context(), websocket.MessageText, []byte(`{"report":{"id":"media/a","pod":"p","accepted":true}}`),
	); err != nil {
		t.Fatal(err)
	}
	s.Delete("media/a")
	if text := frame(t, conn); text != string(config.Zero("media/a").Canonical()) {
		t.Errorf("a deletion looks like %s", text)
	}
	if n := len(s.Reports()); n != 0 {
		t.Errorf("%d reports of a stranger are believed", n)
	}
}

// K-01: a pod reports about itself and its Gateway only.
func TestAPodReportsOnlyAboutItself(t *testing.T) {
	g := Grant{ID: "media/a", Pod: "p1"}
	for _, c := range []struct {
		report Report
		want   bool
	}{
		{Report{ID: "media/a", Pod: "p1"}, true}, {Report{ID: "media/a", Pod: "p2"}, false},
		{Report{ID: "media/b", Pod: "p1"}, false}, {Report{ID: "media/a"}, false},
	} {
		if got := g.mayReport(c.report); got != c.want {
			t.Errorf("%+v: %t", c.report, got)
		}
	}
	if !(Grant{All: true}).mayReport(Report{ID: "media/a", Pod: "any"}) {
		t.Error("where pods are not known, they are believed")
	}
}

// K-01: the streams of a deleted pod end at once, and the streams of other pods do not. A pod counts as the same pod
// after its node has reported it, and after its Gateway was deleted.
func TestAStreamEndsWithItsPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gone atomic.Bool
		grant := func(r *http.Request) Grant { return Grant{ID: "media/a", Pod: r.URL.Query().Get("pod")} }
		s := NewServer(ServerOptions{
			Authorize: func(r *http.Request) (Grant, error) {
				g := grant(r)
				g.Unreported = true
				return g, nil
			},
			Confirm: func(r *http.Request) (Grant, error) {
				g := grant(r)
				g.Absent = true
				if g.Pod != "first" || !gone.Load() {
					return g, nil
				}
				return Grant{}, errors.New("there is no such pod")
			},
		})
		c := piped(t, s)
		first := follows(t, c, "/media/a?watch=true&pod=first").CloseRead(context.Background())
		second := follows(t, c, "/media/a?watch=true&pod=second").CloseRead(context.Background())
		synctest.Wait()
		s.Reconsider("media/a", "first")
		synctest.Wait()
		if first.Err() != nil {
			t.Error("the stream of a pod that is still there has ended")
		}
		gone.Store(true)
		s.Reconsider("media/a", "first")
		synctest.Wait()
		if first.Err() == nil || second.Err() != nil || s.Streams() != 1 {
			t.Errorf("ended: first %t, second %t; %d streams", first.Err() != nil, second.Err() != nil, s.Streams())
		}
	})
}

// K-12: a pod whose node has reported its address no longer counts towards Limits.Unreported, and its stream stays
// open.
func TestReportedPodsNoLongerCountAsUnreported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reported, undecided atomic.Bool
		s := NewServer(ServerOptions{
			Limits: Limits{Unreported: 1},
			Authorize: func(r *http.Request) (Grant, error) {
				return Grant{ID: "media/a", Pod: r.URL.Query().Get("pod"), Unreported: true}, nil
			},
			Confirm: func(r *http.Request) (Grant, error) {
				if undecided.Load() {
					return Grant{}, ErrUndecided
				}
				return Grant{ID: "media/a", Pod: r.URL.Query().Get("pod"), Unreported: !reported.Load()}, nil
			},
		})
		c := piped(t, s)
		first := follows(t, c, "/media/a?watch=true&pod=first").CloseRead(context.Background())
		admitted := func(pod string) bool {
			conn, _, err := websocket.Dial(t.Context(), "http://discovery"+apiPath+"/media/a?watch=true&pod="+pod,
				&websocket.DialOptions{HTTPClient: c})
			if err == nil {
				t.Cleanup(func() { _ = conn.CloseNow() })
			}
			return err == nil
		}
		review := func() {
			synctest.Wait()
			s.Reconsider("media/a", "first")
			synctest.Wait()
		}
		if review(); admitted("second") {
			t.Error("a second pod that never runs gets a stream")
		}
		reported.Store(true)
		undecided.Store(true)
		if review(); admitted("second") {
			t.Error("a review without a result makes room")
		}
		undecided.Store(false)
		if review(); !admitted("second") || first.Err() != nil {
			t.Errorf("a reported pod makes no room, or its stream has ended: %v", first.Err())
		}
	})
}
