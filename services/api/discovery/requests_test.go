package discovery

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

var sessions = Query{ID: "media/a", Kind: inspection.Dataplane, Method: http.MethodGet, Target: "/sessions"}

// answering starts a client with a handler, and waits until the server can send it requests.
func answering(t *testing.T, s *Server, h *httptest.Server, id, pod string, kind inspection.Kind, handler http.HandlerFunc) (
	Source, <-chan Event,
) {
	t.Helper()
	before := len(s.served.all())
	source := open(t, h.URL, Options{ID: id, Handler: handler, Pod: pod, Kind: kind})
	events := follow(t, source)
	eventually(t, func() bool { return len(s.served.all()) > before })
	return source, events
}

// all returns the streams of every kind.
func (s *servedStreams) all() (all []*served) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.streams {
		all = append(all, one)
	}
	return all
}

func (a Answer) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %d %.300s %s", a.Pod, a.Status, a.Body, a.Error))
}

// A client answers requests with its handler, and its answers are always bounded JSON.
func TestRequestsAreAnswered(t *testing.T) {
	s, h := serve(t, ServerOptions{})
	answering(t, s, h, "media/a", "a-1", inspection.Dataplane, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/sessions":
			fmt.Fprintf(w, "{\n  \"method\": %q,\n  \"query\": %q\n}\n", r.Method, r.URL.RawQuery)
		case "/refused":
			http.Error(w, "unknown parameter \"users\"", http.StatusBadRequest)
		case "/text":
			fmt.Fprint(w, "<html>")
		case "/long":
			fmt.Fprintf(w, "%q", strings.Repeat("x", ResponseLimit))
		case "/endless":
			for range 10 {
				fmt.Fprint(w, strings.Repeat(" ", ResponseLimit))
			}
		case "/wide":
			fmt.Fprintf(w, "[%s1]", strings.Repeat("1,\n                  ", ResponseLimit/8))
		case "/panic":
			panic("wrong")
		}
	})
	for _, c := range []struct{ method, target, want string }{
		{"GET", "/sessions?user=ada%20b&limit=2", `a-1 200 {"method":"GET","query":"user=ada%20b\u0026limit=2"}`},
		{"DELETE", "/sessions", `a-1 200 {"method":"DELETE","query":""}`},
		{"GET", "/refused", `a-1 400 {"message":"unknown parameter \"users\""}`},
		{"GET", "/text", `a-1 500 {"message":"the answer is no JSON"}`},
		{"GET", "/long", `a-1 413 {"message":"the answer is longer than 512 KiB: use a lower limit"}`},
		{"GET", "/endless", `a-1 413 {"message":"the answer is longer than 512 KiB: use a lower limit"}`},
		{"GET", "/wide", "a-1 200 [1,1,1"},
		{"GET", "/panic", `a-1 500 {"message":"internal error: see the log of the pod"}`},
		{"GET", "http://elsewhere/", `a-1 400 {"message":"method or target is invalid"}`},
		{"GET ", "/", `a-1 400 {"message":"method or target is invalid"}`},
		{"GET", "/" + strings.Repeat("x", targetLimit), `a-1 0  the request is longer than 4096 bytes`},
	} {
		q := Query{ID: "media/a", Kind: inspection.Dataplane, Method: c.method, Target: c.target}
		if got := fmt.Sprint(s.Ask(t.Context(), q)); !strings.HasPrefix(got, "["+c.want) {
			t.Errorf("%s %.40s: %.200s, want %s", c.method, c.target, got, c.want)
		}
	}
}

// A pod of an earlier release, which reads its config and sends nothing, is identified by its token.
func TestPodsOfEarlierReleasesAreIdentifiedByToken(t *testing.T) {
	grants := map[string]Grant{
		"/media/a": {ID: "media/a", Pod: "a-1"}, "/media/b": {ID: "media/b", Pod: "b-1"}, "": {All: true},
	}
	s, h := serve(t, ServerOptions{Authorize: func(r *http.Request) (Grant, error) {
		return grants[strings.TrimPrefix(r.URL.Path, apiPath)], nil
	}})
	for path := range grants {
		conn, _, err := websocket.Dial(t.Context(), h.URL+apiPath+path+"?watch=true", nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.CloseNow() })
	}
	eventually(t, func() bool { return len(s.readers("media/a")) == 1 })
	if got := fmt.Sprint(s.Ask(t.Context(), sessions)); got != "[a-1 0  "+AnswersNoRequests+"]" {
		t.Error(got)
	}
}

// Only the pods of the kind and the Gateway of a query are asked. A request to an auth service contains the Gateway,
// even if the query contains another one.
func TestPodsOfTheGatewayAreAsked(t *testing.T) {
	s, h := serve(t, ServerOptions{})
	echo := func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%q", r.URL) }
	answering(t, s, h, "media/a", "a-2", inspection.Dataplane, echo)
	answering(t, s, h, "media/a", "a-1", inspection.Dataplane, echo)
	answering(t, s, h, "media/b", "b-1", inspection.Dataplane, echo)
	answering(t, s, h, "", "auth-1", inspection.Auth, echo)
	if got := fmt.Sprint(s.Ask(t.Context(), sessions)); got != `[a-1 200 "/sessions" a-2 200 "/sessions"]` {
		t.Error(got)
	}
	q := Query{ID: "media/a", Kind: inspection.Auth, Method: "GET", Target: "/grants?gateway=other%2Fone&user=ada"}
	if got := fmt.Sprint(s.Ask(t.Context(), q)); got != `[auth-1 200 "/grants?gateway=media%2Fa\u0026user=ada"]` {
		t.Error(got)
	}
	if got := s.Ask(t.Context(), Query{ID: "media/c", Kind: inspection.Dataplane}); len(got) != 0 {
		t.Error(got)
	}
}

// A dataplane of an earlier release reads every frame as a config. It gets no request.
func TestEarlierClientsGetNoRequests(t *testing.T) {
	s, h := serve(t, ServerOptions{}, sample("media/a", "r1"))
	conn := dial(t, h, apiPath+"/media/a?watch=true")
	frame(t, conn)
	report := `{"report":{"id":"media/a","pod":"old-1","accepted":true}}`
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(report)); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return len(s.Reports()) == 1 })
	if got := fmt.Sprint(s.Ask(t.Context(), sessions)); got != "[old-1 0  "+AnswersNoRequests+"]" {
		t.Error(got)
	}
	s.Publish(sample("media/a", "r2"))
	if got := frame(t, conn); !strings.Contains(got, `"r2"`) {
		t.Errorf("frame %s", got)
	}
}

// A client with a handler announces itself before its first report. A client without a handler does not. An earlier
// server ignores the frame, because it is not a report.
func TestClientsAnnounceThemselves(t *testing.T) {
	for want, handler := range map[string]http.Handler{
		`{"serves":{"pod":"a-1","kind":"dataplane"}}`: http.NotFoundHandler(), "": nil,
	} {
		frames := make(chan string, 2)
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			conn, err := websocket.Accept(w, r, nil)
			if err != nil {
				return
			}
			for range cap(frames) {
				_, data, err := conn.Read(r.Context())
				if err != nil {
					return
				}
				frames <- string(data)
			}
		}))
		source := open(t, h.URL, Options{ID: "media/a", Handler: handler, Pod: "a-1", Kind: inspection.Dataplane})
		source.(Reporter).Report(Report{ID: "media/a", Pod: "a-1"})
		follow(t, source)
		got := <-frames
		if want == "" {
			want = `{"report":{"id":"media/a","pod":"a-1","revision":"","accepted":false,"allocations":0}}`
		}
		if got != want {
			t.Errorf("first frame %s, want %s", got, want)
		}
		h.CloseClientConnections()
		h.Close()
	}
}

// A handler that does not answer delays neither configs nor reports nor the next connection, and at most two
// requests are handled at a time.
func TestSlowHandlersDelayNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(ServerOptions{})
		s.Publish(sample("media/a", "r1"))
		release, running := make(chan struct{}), atomic.Int64{}
		source := open(t, "http://discovery", Options{
			ID: "media/a", Pod: "a-1", Kind: inspection.Dataplane, Handler: http.HandlerFunc(
				func(w http.ResponseWriter, r *http.Request) {
					if running.Add(1) > runningRequests {
						t.Error("too many requests at a time")
					}
					<-release // the handler ignores its context
					running.Add(-1)
					fmt.Fprint(w, `"late"`)
				}),
		})
		source.(*client).dial = piped(t, s).Transport.(*http.Transport).DialContext
		ctx, cancel := context.WithCancel(t.Context())
		events := source.Watch(ctx)
		nextConfig(t, events)
		synctest.Wait() // until the server has the announcement
		var asking sync.WaitGroup
		answers := make(chan string, 6)
		for range cap(answers) {
			asking.Go(func() { answers <- fmt.Sprint(s.Ask(t.Context(), sessions)) })
		}
		synctest.Wait()
		start := time.Now()
		source.(Reporter).Report(Report{ID: "media/a", Pod: "a-1", Revision: "r1"})
		s.Publish(sample("media/a", "r2"))
		if e := nextConfig(t, events); e.Config.Auth.Realm != "r2" || time.Since(start) > time.Second {
			t.Errorf("config %s after %s", e.Config.Auth.Realm, time.Since(start))
		}
		if synctest.Wait(); len(s.Reports()) != 1 || time.Since(start) > time.Second {
			t.Errorf("%v after %s", s.Reports(), time.Since(start))
		}
		asking.Wait()
		if waited := time.Since(start); waited > requestTimeout {
			t.Errorf("asked for %s", waited)
		}
		close(answers)
		counts := map[string]int{}
		for a := range answers {
			counts[a]++
		}
		if counts["[a-1 0  "+errBusy+"]"] != 2 || counts[`[a-1 504 {"message":"not answered within 4s"}]`] != 4 {
			t.Errorf("answers %v", counts)
		}
		close(release)
		synctest.Wait()
		if got := fmt.Sprint(s.Ask(t.Context(), sessions)); got != `[a-1 200 "late"]` {
			t.Errorf("afterwards %s", got)
		}
		cancel()
		for range events {
		}
	})
}
