package discovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

func sample(id, realm string) config.Config {
	c := config.Config{
		Admin: config.Admin{Name: id},
		Auth: config.Auth{Realm: realm, Credentials: map[string]credential.Secret{
			config.KeyUsername: "user", config.KeyPassword: "correct-horse-battery",
		}},
		Listeners: []config.Listener{{Name: id + "/udp", Port: 3478}},
	}
	c.Default()
	return c
}

func serve(t *testing.T, o ServerOptions, configs ...config.Config) (*Server, *httptest.Server) {
	t.Helper()
	s := NewServer(o)
	for _, c := range configs {
		s.Publish(c)
	}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	return s, h
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	return response.StatusCode, strings.TrimSpace(string(data))
}

func dial(t *testing.T, h *httptest.Server, path string) *websocket.Conn {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), h.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	return conn
}

func frame(t *testing.T, conn *websocket.Conn) string {
	t.Helper()
	kind, data, err := conn.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if kind != websocket.MessageText {
		t.Errorf("frame of kind %v", kind)
	}
	return string(data)
}

func TestContractPaths(t *testing.T) {
	a, b, c := sample("media/a", "r1"), sample("media/b", "r2"), sample("web/c", "r3")
	_, h := serve(t, ServerOptions{}, b, c, a)
	list := func(configs ...config.Config) string {
		var items []string
		for _, c := range configs {
			items = append(items, string(c.Canonical()))
		}
		return `{"version":"v1","items":[` + strings.Join(items, ",") + `]}`
	}
	for path, want := range map[string]struct {
		status int
		body   string
	}{
		"/api/v1/configs":                     {200, list(a, b, c)},
		"/api/v1/configs?watch=false":         {200, list(a, b, c)},
		"/api/v1/configs/media":               {200, list(a, b)},
		"/api/v1/configs/nobody":              {200, list()},
		"/api/v1/configs/web/c":               {200, string(c.Canonical())},
		"/api/v1/configs/web/c?node=worker-1": {200, string(c.Canonical())},
		"/api/v1/configs/web/d":               {404, `{"code":404,"message":"Config not found for ID web/d"}`},
		"/api/v1/license": {200, `{"enabledFeatures":["UserQuota","STUNServer","DaemonSet","RelayAddressDiscovery","TURNOffload"],` +
			`"subscriptionType":"free","lastUpdated":"N/A","lastError":""}`},
	} {
		t.Run(path, func(t *testing.T) {
			status, body := get(t, h.URL+path)
			if status != want.status || body != want.body {
				t.Errorf("got %d\n%s\nwant %d\n%s", status, body, want.status, want.body)
			}
		})
	}
}

func TestContractWatchSendsBareConfigs(t *testing.T) {
	a, b := sample("media/a", "r1"), sample("media/b", "r2")
	s, h := serve(t, ServerOptions{}, a, b)
	conn := dial(t, h, "/api/v1/configs/media?watch=true&node=worker-1")
	for _, want := range []config.Config{a, b} {
		if got := frame(t, conn); got != string(want.Canonical()) {
			t.Errorf("first frames: got %s, want %s", got, want.Canonical())
		}
	}
	s.Publish(b) // unchanged
	s.Publish(sample("web/c", "r"))
	a.Auth.Realm = "changed"
	s.Publish(a)
	if got := frame(t, conn); got != string(a.Canonical()) {
		t.Errorf("change: got %s", got)
	}
	s.Delete("media/nobody")
	s.Delete("media/b")
	if got, want := frame(t, conn), string(config.Zero("media/b").Canonical()); got != want {
		t.Errorf("deletion: got %s, want %s", got, want)
	}
}

func TestContractWatchOfAMissingConfigWaits(t *testing.T) {
	s, h := serve(t, ServerOptions{})
	conn := dial(t, h, "/api/v1/configs/media/late?watch=true")
	late := sample("media/late", "r")
	s.Publish(late)
	if got := frame(t, conn); got != string(late.Canonical()) {
		t.Errorf("got %s", got)
	}
}

func TestContractServerAnswersPings(t *testing.T) {
	_, h := serve(t, ServerOptions{})
	conn := dial(t, h, "/api/v1/configs?watch=true")
	ctx := conn.CloseRead(t.Context())
	if err := conn.Ping(ctx); err != nil {
		t.Error(err)
	}
}

// K-01: a reader gets the configs of its grant, 403 for others, and 401 without a valid token. Refusals contain no
// secrets.
func TestReadersGetGrantedConfigsOnly(t *testing.T) {
	authorize := func(r *http.Request) (Grant, error) {
		switch r.Header.Get("Authorization") {
		case "Bearer all":
			return Grant{All: true}, nil
		case "Bearer a":
			return Grant{ID: "media/a"}, nil
		case "Bearer nothing":
			return Grant{}, nil
		}
		return Grant{}, errors.New("token review: no such token")
	}
	_, h := serve(t, ServerOptions{Authorize: authorize}, sample("media/a", "r1"), sample("media/b", "r2"))
	for _, c := range []struct {
		token, path string
		want        int
	}{
		{"all", "", 200}, {"all", "/media", 200}, {"all", "/media/b", 200},
		{"a", "", 403}, {"a", "/media", 403}, {"a", "/media/a", 200}, {"a", "/media/b", 403},
		{"a", "/media/b?watch=true", 403},
		{"a", "/media%2Fa", 403}, {"a", "/media/a%2F", 403}, {"a", "?watch=true", 403},
		{"nothing", "", 403}, {"nothing", "/media/a", 403},
		{"forged", "", 401}, {"", "/media/a", 401}, {"", "/media/a?watch=true", 401},
	} {
		t.Run(c.token+c.path, func(t *testing.T) {
			request := httptest.NewRequest(http.MethodGet, h.URL+"/api/v1/configs"+c.path, nil)
			request.RequestURI = ""
			if c.token != "" {
				request.Header.Set("Authorization", "Bearer "+c.token)
			}
			response, err := h.Client().Do(request)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if response.StatusCode != c.want {
				t.Errorf("status %d, want %d", response.StatusCode, c.want)
			}
			if c.want != 200 && strings.Contains(string(body), "correct-horse") {
				t.Error("the refusal holds a secret")
			}
		})
	}
}

func TestReportsAreKeptAsLongAsTheirStream(t *testing.T) {
	got := make(chan Report, 10)
	s, h := serve(t, ServerOptions{OnReport: func(r Report) { got <- r }})
	conn := dial(t, h, "/api/v1/configs/media/a?watch=true")
	for _, text := range []string{
		"no json", `{}`, `{"report":null}`, `{"report":"x"}`, `[]`,
		`{"report":{"id":"media/other","pod":"p1"}}`, // the stream is not about this config
		`{"report":{"id":"media/a","pod":"p1","revision":"r1","accepted":true,"error":"","allocations":3,"draining":false}}`,
		`{"report":{"id":"media/a","pod":"p1","revision":"r2","accepted":false,"error":"port","allocations":-4,"draining":true}}`,
	} {
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	first := Report{ID: "media/a", Pod: "p1", Revision: "r1", Accepted: true, Allocations: 3}
	second := Report{ID: "media/a", Pod: "p1", Revision: "r2", Error: "port", Draining: true}
	for _, want := range []Report{first, second} {
		if r := <-got; r != want {
			t.Errorf("report %+v, want %+v", r, want)
		}
	}
	if all := s.Reports(); len(all) != 1 || all[0] != second {
		t.Errorf("reports %+v", all)
	}
	_ = conn.CloseNow()
	eventually(t, func() bool { return len(s.Reports()) == 0 })
}

func TestReportOfAnotherStreamSurvives(t *testing.T) {
	for _, pause := range []time.Duration{0, reportInterval} {
		synctest.Test(t, func(t *testing.T) {
			s := NewServer(ServerOptions{})
			old, next := &stream{}, &stream{keepalive: serverKeepalive}
			r := Report{ID: "media/a", Pod: "p1", Revision: "r1"}
			s.add(old, r)
			time.Sleep(pause)
			r.Revision = "r2"
			s.add(next, r) // the pod has reconnected before the old stream was given up
			s.forget(old)
			if all := s.Reports(); len(all) != 1 {
				t.Errorf("reports %+v", all)
			}
			time.Sleep(reportInterval)
			synctest.Wait()
			if all := s.Reports(); len(all) != 1 || all[0] != r {
				t.Errorf("reports %+v", all)
			}
			s.add(next, r)
			s.forget(next)
			time.Sleep(reportInterval)
			synctest.Wait()
			if n := len(s.Reports()) + len(s.pending); n != 0 {
				t.Errorf("%d reports are left", n)
			}
		})
	}
}

// Reports of a pod count at most once a second: the first report at once, and the last report at the end. Reports about
// other pods are ignored, and numbers are bounded.
func TestReportsOfAPodCountOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(
			ServerOptions{Authorize: func(*http.Request) (Grant, error) { return Grant{ID: "media/a", Pod: "p"}, nil }},
		)
		conn := follows(t, piped(t, s), "/media/a?watch=true")
		conn.CloseRead(context.Background())
		var counted []Report
		go func() {
			_ = s.FollowReports(t.Context(), func(change ReportChange) error {
				if change.Report != nil {
					counted = append(counted, *change.Report)
				}
				return nil
			})
		}()
		says := func(text string) {
			if err := conn.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		begun := time.Now()
		for i := 0; time.Since(begun) < 15*time.Second; i++ {
			says(fmt.Sprintf(
				`{"report":{"id":"media/a","pod":"p","accepted":%t,"draining":%t,"allocations":%d}}`, i%2 == 0,
				i%2 == 1, i,
			))
			if synctest.Wait(); i == 0 && len(counted) != 1 {
				t.Error("the first report does not count at once")
			}
			time.Sleep(2 * time.Millisecond)
		}
		synctest.Wait()
		if n := len(counted); n < 10 || n > 16 {
			t.Errorf("%d reports have counted within 15 s", n)
		}
		for _, wild := range []string{
			`{"report":{"id":"media/b","pod":"p","accepted":true}}`,
			`{"report":{"id":"media/a","pod":"q","accepted":true}}`,
			`{"report":{"id":"media/a","pod":"p","allocations":1e99}}`,
			`{"report":{"id":"media/a","pod":"p","allocations":"many"}}`, `{"report":[]}`,
			`{"report":{"id":"media/a","pod":"p","allocations":9223372036854775807}}`,
		} {
			says(wild)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if all := s.Reports(); len(all) != 1 ||
			all[0] != (Report{ID: "media/a", Pod: "p", Allocations: math.MaxInt32}) {
			t.Errorf("in the end: %+v", all)
		}
		_ = conn.CloseNow()
		synctest.Wait()
	})
}

// K-12: a report that is too large ends its stream.
func TestReportFramesAreBounded(t *testing.T) {
	s, h := serve(t, ServerOptions{})
	conn := dial(t, h, "/api/v1/configs/media/a?watch=true")
	large := fmt.Sprintf(`{"report":{"id":"media/a","error":%q}}`, strings.Repeat("x", reportLimit))
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(large)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := conn.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusMessageTooBig {
		t.Errorf("stream ends with %v", err)
	}
	if n := len(s.Reports()); n != 0 {
		t.Errorf("%d reports", n)
	}
	for _, field := range []string{"error", "offload"} {
		long, ok := parseReport([]byte(`{"report":{"id":"media/a","` + field + `":"` + strings.Repeat("ü", 4_000) + `"}}`))
		if text := long.Error + long.Offload; !ok || len(text) > reportText || !strings.HasPrefix(text, "ü") {
			t.Errorf("%s of %d bytes", field, len(text))
		}
	}
}

// K-12: Publish does not wait for readers.
func TestPublishNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(ServerOptions{})
		stuck := &watcher{queue: newLatestQueue[published](), deliver: func() {}}
		s.subscribe("", stuck)
		defer s.unsubscribe("", stuck)
		const ids, changes = 20, 100
		for n := range changes {
			for i := range ids {
				s.Publish(sample(fmt.Sprintf("media/%02d", i), fmt.Sprintf("realm-%d", n)))
			}
		}
		for i := range ids {
			p, err := stuck.queue.take(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var c config.Config
			if err := json.Unmarshal(s.show(p, stuck.readerScope), &c); err != nil {
				t.Fatal(err)
			}
			if c.Admin.Name != fmt.Sprintf("media/%02d", i) || c.Auth.Realm != "realm-99" {
				t.Errorf("frame %d is %s with %s", i, c.Admin.Name, c.Auth.Realm)
			}
		}
		if _, more := stuck.queue.pop(); more {
			t.Error("an outdated frame was kept")
		}
	})
}

func TestPublishedConfigsAreCopies(t *testing.T) {
	c := sample("media/a", "r1")
	_, h := serve(t, ServerOptions{}, c)
	c.Listeners[0].Port = 1
	if _, body := get(t, h.URL+"/api/v1/configs/media/a"); !strings.Contains(body, `"port":3478`) {
		t.Errorf("the published config has changed: %s", body)
	}
}

// K-04: the log of the server contains no secrets at the most verbose level.
func TestServerLogsNoSecrets(t *testing.T) {
	var log safeBuilder
	options := ServerOptions{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug - 8}))}
	_, h := serve(t, options, sample("media/a", "r1"))
	conn := dial(t, h, "/api/v1/configs?watch=true")
	if text := frame(t, conn); !strings.Contains(text, "correct-horse") {
		t.Fatal("the frame must hold the secret")
	}
	_ = conn.CloseNow()
	eventually(t, func() bool { return strings.Contains(log.String(), "disconnected") })
	if strings.Contains(log.String(), "correct-horse") {
		t.Error(log.String())
	}
}

type safeBuilder struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *safeBuilder) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuilder) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestLatestQueueEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := newLatestQueue[int]()
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("gone")
		go cancel(gone)
		if _, err := queue.take(ctx); !errors.Is(err, gone) {
			t.Errorf("take ends with %v", err)
		}
	})
}

// Published returns one config with its secrets and its revision. It returns none for a selector that matches several
// configs.
func TestPublishedReturnsOneConfig(t *testing.T) {
	s := NewServer(ServerOptions{})
	c := config.Config{Version: config.Version, Admin: config.Admin{Name: "media/door"}}
	revision, _ := s.Publish(c)
	if got, of, ok := s.Published("media/door"); !ok || of != revision || got.Admin.Name != "media/door" {
		t.Errorf("%+v %q %t, want revision %q", got, of, ok, revision)
	}
	for _, id := range []string{"", "media/", "media", "media/other"} {
		if _, _, ok := s.Published(id); ok {
			t.Errorf("%q is published", id)
		}
	}
}
