package discovery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// eventually polls across goroutines that have no event to wait for.
func eventually(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen within 30 s")
		}
	}
}

func open(t *testing.T, origin string, o Options) Source {
	t.Helper()
	source, err := Open(origin, o)
	if err != nil {
		t.Fatal(err)
	}
	return source
}

// follow watches until the test ends, and waits for the end of the watch.
func follow(t *testing.T, source Source) <-chan Event {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	events := source.Watch(ctx)
	t.Cleanup(func() {
		cancel()
		for range events {
		}
	})
	return events
}

func next(t *testing.T, events <-chan Event) Event {
	t.Helper()
	select {
	case e, ok := <-events:
		if !ok {
			t.Fatal("the watch has ended")
		}
		return e
	case <-time.After(30 * time.Second):
		t.Fatal("no event")
	}
	return Event{}
}

// nextConfig skips connection events.
func nextConfig(t *testing.T, events <-chan Event) Event {
	t.Helper()
	for {
		if e := next(t, events); e.ID != "" {
			return e
		}
	}
}

func TestWatchFollowsTheServer(t *testing.T) {
	a := sample("media/a", "r1")
	s, h := serve(t, ServerOptions{}, a)
	events := follow(t, open(t, h.URL, Options{ID: "media/a"}))
	if e := next(t, events); !e.Connected || e.Err != nil {
		t.Errorf("first event %+v", e)
	}
	if e := next(t, events); e.ID != "media/a" || e.Config.Revision() != a.Revision() {
		t.Errorf("first config %+v", e)
	}
	s.Publish(sample("media/b", "r"))
	a.Auth.Realm = "r2"
	s.Publish(a)
	if e := next(t, events); e.Config.Auth.Realm != "r2" {
		t.Errorf("change %+v", e)
	}
	s.Delete("media/a")
	if e := next(t, events); !e.Deleted || e.ID != "media/a" {
		t.Errorf("deletion %+v", e)
	}
}

// a config that differs only in unknown fields is delivered, because they are counted.
func TestUnknownFieldsAreDelivered(t *testing.T) {
	s, h := newScripted(t)
	events := follow(t, open(t, h.URL, Options{ID: "media/a"}))
	plain := string(sample("media/a", "r").Canonical())
	newer := strings.Replace(plain, `{"version"`, `{"newer":1,"version"`, 1)
	for _, c := range []struct {
		frame string
		want  []string
	}{{plain, nil}, {newer, []string{"newer"}}, {newer, nil}, {plain, nil}} {
		s.frames <- c.frame
		if c.frame == newer && c.want == nil {
			continue // the field is known by now, so this frame causes no event
		}
		if e := nextConfig(t, events); e.Err != nil || !slices.Equal(e.Unknown, c.want) {
			t.Errorf("event %+v, want unknown %q", e, c.want)
		} else if e.Revision != config.RevisionOf([]byte(c.frame)) {
			t.Errorf("%s is called %s", c.frame, e.Revision)
		}
	}
	// A changed value of an unknown field is delivered too, because reports contain the revision.
	for _, frame := range []string{newer, strings.Replace(newer, `"newer":1`, `"newer":2`, 1)} {
		s.frames <- frame
		if e := nextConfig(t, events); e.Revision != config.RevisionOf([]byte(frame)) {
			t.Errorf("%s is called %s", frame, e.Revision)
		}
	}
}

// scripted is a server that sends given frames. It serves one connection at a time.
type scripted struct {
	frames chan string // "" closes the connection
	dials  chan *http.Request
	// serving is held during a connection. Otherwise the handler of an earlier connection, whose client has already
	// disconnected, could receive a frame from the channel, and the frame would be lost.
	serving sync.Mutex
}

func newScripted(t *testing.T) (*scripted, *httptest.Server) {
	s := &scripted{frames: make(chan string), dials: make(chan *http.Request, 100)}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	return s, h
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.serving.Lock()
	defer s.serving.Unlock()
	s.dials <- r
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer func() { _ = conn.CloseNow() }()
	ctx := conn.CloseRead(r.Context())
	for {
		select {
		case text := <-s.frames:
			if text == "" {
				return
			}
			if conn.Write(ctx, websocket.MessageText, []byte(text)) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// an invalid frame is reported and deletes no config.
func TestInvalidFramesDeleteNoConfig(t *testing.T) {
	s, h := newScripted(t)
	events := follow(t, open(t, h.URL, Options{ID: "media/a"}))
	a := sample("media/a", "r1")
	s.frames <- string(a.Canonical())
	if e := nextConfig(t, events); e.Err != nil || e.Deleted {
		t.Fatalf("good frame: %+v", e)
	}
	invalid := a.Clone()
	invalid.Listeners[0].Port = 70000
	good := string(a.Canonical())
	for name, c := range map[string]struct{ frame, problem string }{
		"no JSON":        {"\x01{{{", "yaml"},
		"other document": {`{"kind":"Pod"}`, "version"},
		"other version":  {`{"version":"v2"}`, "v2"},
		"invalid config": {string(invalid.Canonical()), "listeners[0].port: 70000"},
		"another id":     {string(sample("media/b", "r").Canonical()), `"media/b"`},
		"another's end":  {string(config.Zero("media/b").Canonical()), `"media/b"`},
		"a list":         {`{"version":"v1","items":[]}`, ""},
		"no secrets":     {string(a.Redacted().Canonical()), "the secret was left out"},
		"withheld":       {string(a.Withheld().Canonical()), "for readers without a valid token"},
	} {
		t.Run(name, func(t *testing.T) {
			s.frames <- c.frame
			e := next(t, events)
			for e.Connected {
				e = next(t, events)
			}
			if !errors.Is(e.Err, ErrRejected) || !strings.Contains(e.Err.Error(), c.problem) || e.Deleted {
				t.Errorf("event %+v, want an error with %q", e, c.problem)
			}
			if e.Err != nil && strings.Contains(e.Err.Error(), "correct-horse") {
				t.Errorf("the error shows a secret: %v", e.Err)
			}
			s.frames <- good
			if e := nextConfig(t, events); e.Err != nil || e.Config.Revision() != a.Revision() {
				t.Errorf("the source is good again, and says what is known: %+v", e)
			}
		})
	}
	s.frames <- good
	a.Auth.Realm = "r2"
	s.frames <- string(a.Canonical())
	if e := nextConfig(t, events); e.Err != nil || e.Config.Auth.Realm != "r2" {
		t.Errorf("the next good frame: %+v", e)
	}
}

// a document beyond the size limit ends the connection and is reported like any rejected one.
func TestTooLargeFrameIsRejected(t *testing.T) {
	s, h := newScripted(t)
	events := follow(t, open(t, h.URL, Options{ID: "media/a"}))
	s.frames <- strings.Repeat(" ", frameLimit+1)
	e := next(t, events)
	for e.Connected {
		e = next(t, events)
	}
	if !errors.Is(e.Err, ErrRejected) || !strings.Contains(e.Err.Error(), "bytes") {
		t.Errorf("event %+v, want a rejected config", e)
	}
	a := sample("media/a", "r1")
	<-s.dials
	<-s.dials // the connection with the large frame has ended
	s.frames <- string(a.Canonical())
	if e := nextConfig(t, events); e.Err != nil || e.Config.Revision() != a.Revision() {
		t.Errorf("the next good frame: %+v", e)
	}
}

// The peer of a stream may close the connection before the read of a frame beyond the limit returns. A ping that fails
// meanwhile does not replace the reason.
func TestTooLargeFrameEndsTheStream(t *testing.T) {
	s := newStream(t.Context(), clientKeepalive)
	defer s.close()
	s.cancel(errSilent)
	for err, want := range map[error]error{
		fmt.Errorf("read: %w", websocket.ErrMessageTooBig): websocket.ErrMessageTooBig,
		io.EOF: errSilent,
	} {
		if got := s.cause(err); !errors.Is(got, want) {
			t.Errorf("%v: the reason is %v, want %v", err, got, want)
		}
	}
}

func TestOneRefusalDoesNotRepeatTheOthers(t *testing.T) {
	w := newWatch("test", "")
	a, b := sample("media/a", "r"), sample("media/b", "r")
	bad := a.Clone()
	bad.Listeners[0].Port = 0
	later := bytes.Replace(a.Canonical(), []byte(`"version":"v1"`), []byte(`"version":"v9"`), 1)
	for _, frame := range []config.Config{a, b} {
		w.receive(frame.Canonical(), "")
		w.events.pop()
	}
	for _, frame := range [][]byte{later, bad.Canonical()} {
		w.receive(frame, "")
		w.receive(b.Canonical(), "")
		if e, _ := w.events.pop(); e.ID != "media/a" || !errors.Is(e.Err, ErrRejected) {
			t.Errorf("refusal %+v", e)
		}
	}
	w.receive(a.Canonical(), "")
	w.receive(b.Canonical(), "")
	var got []string
	for e, ok := w.events.pop(); ok; e, ok = w.events.pop() {
		got = append(got, fmt.Sprint(e.ID, " ", e.Err))
	}
	if want := "media/a <nil>"; strings.Join(got, ", ") != want {
		t.Errorf("events %q, want %q", got, want)
	}
}

func TestUnknownFieldsAreReported(t *testing.T) {
	s, h := newScripted(t)
	events := follow(t, open(t, h.URL, Options{ID: "media/a"}))
	s.frames <- strings.Replace(
		string(sample("media/a", "r").Canonical()), `{"version"`, `{"colour":"blue","version"`, 1,
	)
	if e := nextConfig(t, events); e.Err != nil || len(e.Unknown) != 1 || e.Unknown[0] != "colour" {
		t.Errorf("event %+v", e)
	}
}

// after a reconnect only changed configs are delivered.
func TestReconnectDeliversOnlyChanges(t *testing.T) {
	s, h := newScripted(t)
	events := follow(t, open(t, h.URL, Options{}))
	a, b := sample("media/a", "r1"), sample("media/b", "r1")
	s.frames <- string(a.Canonical())
	s.frames <- string(b.Canonical())
	for _, id := range []string{"media/a", "media/b"} {
		if e := nextConfig(t, events); e.ID != id {
			t.Fatalf("event %+v", e)
		}
	}
	s.frames <- ""
	if e := next(t, events); e.Err == nil || e.Connected || e.Deleted {
		t.Errorf("lost connection: %+v", e)
	}
	if e := next(t, events); !e.Connected {
		t.Errorf("reconnected: %+v", e)
	}
	s.frames <- string(a.Canonical()) // as before; media/b is not mentioned, which means nothing
	a.Auth.Realm = "r2"
	s.frames <- string(a.Canonical())
	if e := next(t, events); e.ID != "media/a" || e.Config.Auth.Realm != "r2" {
		t.Errorf("event %+v", e)
	}
}

func TestLoad(t *testing.T) {
	a, b := sample("media/a", "r1"), sample("media/b", "r2")
	_, h := serve(t, ServerOptions{}, a, b)
	for id, want := range map[string][]string{
		"": {"media/a", "media/b"}, "media/": {"media/a", "media/b"}, "web/": nil, "media/b": {"media/b"},
	} {
		configs, err := open(t, h.URL, Options{ID: id}).Load(t.Context())
		if err != nil {
			t.Errorf("load %q: %v", id, err)
		}
		var got []string
		for _, c := range configs {
			got = append(got, c.Admin.Name)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("load %q: %q, want %q", id, got, want)
		}
	}
	if _, err := open(t, h.URL, Options{ID: "media/c"}).Load(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "404") {
		t.Errorf("load of an unknown id: %v", err)
	}
}

func TestReportsReachTheServerAndEachNewConnection(t *testing.T) {
	got := make(chan Report, 10)
	s := NewServer(ServerOptions{OnReport: func(r Report) { got <- r }})
	process, end := context.WithCancel(t.Context())
	first := httptest.NewUnstartedServer(s)
	first.Config.BaseContext = func(net.Listener) context.Context { return process }
	first.Start()
	source := open(t, first.URL, Options{ID: "media/a"})
	r := Report{ID: "media/a", Pod: "p", Revision: "r1", Accepted: true}
	source.(Reporter).Report(r) // before there is a connection
	events := follow(t, source)
	if g := <-got; g != r {
		t.Errorf("report %+v", g)
	}
	r.Allocations = 7
	source.(Reporter).Report(r)
	if g := <-got; g != r {
		t.Errorf("report %+v", g)
	}
	end()
	first.Close()
	address := strings.TrimPrefix(first.URL, "http://")
	for e := next(t, events); e.Err == nil; e = next(t, events) {
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	second := httptest.NewUnstartedServer(s)
	second.Listener = listener
	second.Start()
	defer second.Close()
	if g := <-got; g != r {
		t.Errorf("report after the reconnect %+v", g)
	}
}

// write replaces the content of a file.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// J-09: a connection reports the difference of the clocks, if the server sends its time.
func TestClientComparesClocks(t *testing.T) {
	for name, c := range map[string]struct {
		date string
		want *time.Duration
	}{
		"the same":            {time.Now().UTC().Format(http.TimeFormat), new(time.Duration(0))},
		"an hour behind us":   {time.Now().UTC().Add(-time.Hour).Format(http.TimeFormat), new(time.Hour)},
		"an hour ahead of us": {time.Now().UTC().Add(time.Hour).Format(http.TimeFormat), new(-time.Hour)},
		"no time":             {"", nil},
		"yesterday":           {"yesterday", nil},
	} {
		t.Run(name, func(t *testing.T) {
			server := NewServer(ServerOptions{})
			front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if w.Header()["Date"] = nil; c.date != "" {
					w.Header().Set("Date", c.date)
				}
				server.ServeHTTP(w, r)
			}))
			defer front.Close()
			source, err := Open(front.URL, Options{})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			events := source.Watch(ctx)
			e := <-events
			cancel()
			for range events {
			}
			switch {
			case !e.Connected || (e.Ahead == nil) != (c.want == nil):
				t.Errorf("%+v", e)
			case c.want != nil && (*e.Ahead-*c.want).Abs() > time.Minute:
				t.Errorf("ahead by %s, want %s", *e.Ahead, *c.want)
			}
		})
	}
}

// a refused client reconnects after the Retry-After of the server, with jitter.
func TestClientReconnectsAfterRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			says     string
			min, max time.Duration
		}{
			{"3", 3 * time.Second, 4500 * time.Millisecond},
			{"999999", 0, time.Second}, // too long to be parsed
			{"9999", longestRetry, longestRetry * 3 / 2},
			{"soon", 0, time.Second},
			{"", 0, time.Second},
		} {
			var asked []time.Time
			s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				asked = append(asked, time.Now())
				w.Header().Set("Retry-After", c.says)
				w.WriteHeader(http.StatusServiceUnavailable)
			})}
			ln := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
			go func() { _ = s.Serve(ln) }()
			source := open(t, "http://discovery:80", Options{}).(*client)
			source.dial = func(context.Context, string, string) (net.Conn, error) {
				near, far := net.Pipe()
				ln.conns <- far
				return near, nil
			}
			ctx, cancel := context.WithCancel(t.Context())
			events := source.Watch(ctx)
			go func() {
				for range events {
				}
			}()
			time.Sleep(3 * longestRetry)
			cancel()
			synctest.Wait()
			_ = s.Close()
			if pause := asked[1].Sub(asked[0]); pause < c.min || pause > c.max {
				t.Errorf("Retry-After %q: comes back after %s, want %s to %s", c.says, pause, c.min, c.max)
			}
		}
	})
}
