package iceservers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stunner-gateway/stunner/clients/go/iceservers"
)

const serviceURL = "https://auth.example.org/v1/ice-servers"

// service is an auth service in the time of synctest.
type service struct {
	// respond answers the nth request, counted from 1.
	respond func(r *http.Request, n int) (*http.Response, error)
	began   time.Time

	mu    sync.Mutex
	times []time.Duration // of requests, since began
}

func newService(respond func(r *http.Request, n int) (*http.Response, error)) *service {
	return &service{respond: respond, began: time.Now()}
}

func (s *service) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	s.times = append(s.times, time.Since(s.began))
	n := len(s.times)
	s.mu.Unlock()
	return s.respond(r, n)
}

// requests returns the times of requests since the start of the service.
func (s *service) requests() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.times)
}

func (s *service) client() *iceservers.Client {
	return &iceservers.Client{URL: serviceURL, HTTP: &http.Client{Transport: s}}
}

// waits returns the times between requests.
func (s *service) waits() (all []time.Duration) {
	times := s.requests()
	for i := range times[1:] {
		all = append(all, times[i+1]-times[i])
	}
	return all
}

func reply(status int, body string, headers ...string) *http.Response {
	r := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

// grant answers with credentials for a number of seconds. The clock of the service differs by ahead from that of the
// client, and the user name says when the credentials expire by the clock of the client.
func grant(ttl int, ahead time.Duration, withTTL bool) *http.Response {
	expires := time.Now().Add(time.Duration(ttl) * time.Second)
	body := fmt.Sprintf(`{"iceServers":[{"urls":["turn:192.0.2.10:3478?transport=udp"],"username":"%d:ada",`+
		`"credential":"secret"}],"iceTransportPolicy":"all","expiresAt":%q`, expires.UnixNano(),
		expires.Add(ahead).UTC().Format(time.RFC3339Nano))
	if withTTL {
		body += fmt.Sprintf(`,"ttl":%d`, ttl)
	}
	return reply(http.StatusCreated, body+"}", "Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
}

// left returns how long the credentials of an answer are still valid.
func left(t *testing.T, s *iceservers.ICEServers) time.Duration {
	t.Helper()
	text, _, _ := strings.Cut(s.ICEServers[0].Username, ":")
	ns, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Until(time.Unix(0, ns))
}

// run runs a Source until the test ends.
func run(t *testing.T, s *iceservers.Source) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run ended with %v", err)
		}
	})
}

// A program of three lifetimes never gets an expired credential, whatever the lifetime and the clocks.
func TestServersNeverExpire(t *testing.T) {
	for _, ttl := range []int{2, 5, 60, 86_400} {
		for _, ahead := range []time.Duration{0, time.Minute, -time.Minute} {
			for _, withTTL := range []bool{true, false} {
				t.Run(fmt.Sprint(ttl, ahead, withTTL), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s := newService(func(*http.Request, int) (*http.Response, error) {
							return grant(ttl, ahead, withTTL), nil
						})
						var renewed atomic.Pointer[iceservers.ICEServers]
						source := iceservers.NewSource(s.client(), renewed.Store, nil)
						run(t, source)
						for range 150 {
							got, err := source.Get(t.Context())
							if err != nil || left(t, got) <= 0 {
								t.Fatalf("Get: %v, expired", err)
							}
							synctest.Wait()
							if left(t, renewed.Load()) <= 0 {
								t.Fatal("the callback has expired servers")
							}
							time.Sleep(time.Duration(ttl) * time.Second / 50)
						}
						synctest.Wait()
						if n := len(s.requests()); n < 4 || n > 8 {
							t.Errorf("%d requests in three lifetimes", n)
						}
					})
				})
			}
		}
	}
}

// Renewals are at random times between half and two thirds of the lifetime.
func TestRenewalsAreSpread(t *testing.T) {
	var all []time.Duration
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			s := newService(func(*http.Request, int) (*http.Response, error) { return grant(600, 0, true), nil })
			run(t, iceservers.NewSource(s.client(), nil, nil))
			time.Sleep(time.Hour)
			synctest.Wait()
			all = append(all, s.waits()...)
		})
	}
	slices.Sort(all)
	if first, last := all[0], all[len(all)-1]; first < 300*time.Second || last > 400*time.Second ||
		last-first < 50*time.Second {
		t.Errorf("renewals after %s to %s", first, last)
	}
}

// The client waits as long as the service asks for, within bounds, and repeats what may succeed later.
func TestRetries(t *testing.T) {
	refuse := func(status int, headers ...string) func(int) (*http.Response, error) {
		return func(int) (*http.Response, error) {
			return reply(status, `{"reason":"no_config","detail":"In detail."}`, headers...), nil
		}
	}
	tests := map[string]struct {
		fail        func(n int) (*http.Response, error)
		least, most time.Duration
	}{
		"429":             {refuse(429, "Retry-After", "7"), 7 * time.Second, 7250 * time.Millisecond},
		"503":             {refuse(503, "Retry-After", "2"), 2 * time.Second, 2250 * time.Millisecond},
		"502 of a proxy":  {refuse(502), 250 * time.Millisecond, 500 * time.Millisecond},
		"a long wait":     {refuse(503, "Retry-After", "99999999"), 5 * time.Minute, 5*time.Minute + time.Second},
		"a negative wait": {refuse(503, "Retry-After", "-3"), 250 * time.Millisecond, 500 * time.Millisecond},
		"a date of the service": {
			refuse(503, "Date", "Wed, 01 Jan 2031 00:00:00 GMT", "Retry-After", "Wed, 01 Jan 2031 00:00:09 GMT"),
			9 * time.Second, 9250 * time.Millisecond,
		},
		"no connection": {
			func(int) (*http.Response, error) { return nil, errors.New("connection refused") },
			250 * time.Millisecond, 500 * time.Millisecond,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newService(func(_ *http.Request, n int) (*http.Response, error) {
					if n == 1 {
						return tt.fail(n)
					}
					return grant(600, 0, true), nil
				})
				if _, err := s.client().ICEServers(t.Context()); err != nil {
					t.Fatal(err)
				}
				if wait := s.waits()[0]; wait < tt.least || wait > tt.most {
					t.Errorf("waited %s, want %s to %s", wait, tt.least, tt.most)
				}
			})
		})
	}
}

// The wait between requests that fail doubles up to a limit, and a renewal never ends.
func TestBackoffIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(func(_ *http.Request, n int) (*http.Response, error) {
			if n == 1 {
				return grant(60, 0, true), nil
			}
			return nil, errors.New("connection refused")
		})
		var failures atomic.Int32
		source := iceservers.NewSource(s.client(), nil, func(error) { failures.Add(1) })
		run(t, source)
		time.Sleep(50 * time.Minute)
		synctest.Wait()
		waits := s.waits()[1:]
		for i, wait := range waits {
			longest := min(500*time.Millisecond<<min(i, 20), 30*time.Second)
			if wait < longest/2 || wait > longest {
				t.Errorf("wait %d is %s, want %s to %s", i, wait, longest/2, longest)
			}
		}
		if len(waits) < 100 || int(failures.Load()) != len(waits)+1 {
			t.Errorf("%d waits, %d failures", len(waits), failures.Load())
		}
		var e *iceservers.Error
		if _, err := source.Get(t.Context()); !errors.As(err, &e) || e.Reason != "unreachable" || !e.Temporary() {
			t.Errorf("Get returns %v while the service is away", err)
		}
	})
}

// A refusal is returned at once, with its reason and parameters.
func TestRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(func(*http.Request, int) (*http.Response, error) {
			return reply(400, `{"reason":"parameter_invalid","detail":"A parameter is invalid.",`+
				`"errors":[{"parameter":"ttl","message":"must be an integer of at least 1"}]}`), nil
		})
		_, err := s.client().ICEServers(t.Context())
		const want = "request ICE servers: POST " + serviceURL +
			": 400 parameter_invalid: ttl must be an integer of at least 1"
		var e *iceservers.Error
		if !errors.As(err, &e) || err.Error() != want || e.Status != 400 || e.Temporary() ||
			e.Parameters[0].Parameter != "ttl" {
			t.Errorf("%v, want %s", err, want)
		}
		if len(s.requests()) != 1 {
			t.Errorf("%d requests", len(s.requests()))
		}
	})
}

// A request has the token and the fields that are set, and no others.
func TestRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var body, token string
		s := newService(func(r *http.Request, _ int) (*http.Response, error) {
			text, err := io.ReadAll(r.Body)
			body, token = string(text), r.Header.Get("Authorization")
			return grant(600, 0, true), err
		})
		c := s.client()
		c.Token = iceservers.StaticToken("abc")
		c.Request = iceservers.Request{
			TTL: 600, Gateways: []iceservers.GatewayRef{{Namespace: "media", Name: "frankfurt"}},
		}
		if _, err := c.ICEServers(t.Context()); err != nil {
			t.Fatal(err)
		}
		if body != `{"ttl":600,"gateways":[{"namespace":"media","name":"frankfurt"}]}` || token != "Bearer abc" {
			t.Errorf("body %s, token %s", body, token)
		}
	})
}

// A request that hangs is ended by its timeout, and by its context.
func TestRequestsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(func(r *http.Request, n int) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		c := s.client()
		c.Timeout = 3 * time.Second
		var e *iceservers.Error
		if _, err := c.ICEServers(t.Context()); !errors.As(err, &e) || e.Reason != "timeout" || len(s.requests()) != 5 {
			t.Errorf("%v after %d requests", err, len(s.requests()))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.ICEServers(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want that of the context", err)
		}
	})
}

// Options that cannot work are refused without a request.
func TestOptions(t *testing.T) {
	for _, c := range []iceservers.Client{
		{URL: "/v1/ice-servers"},
		{URL: "https://"},
		{URL: ":"},
		{URL: serviceURL, Token: iceservers.StaticToken("")},
		{URL: serviceURL, Token: iceservers.StaticToken("a\r\nX-Other: 1")},
	} {
		s := newService(nil)
		c.HTTP = &http.Client{Transport: s}
		var e *iceservers.Error
		_, err := c.ICEServers(t.Context())
		if !errors.As(err, &e) || e.Reason != "option_invalid" || len(s.requests()) > 0 {
			t.Errorf("%s: %v", c.URL, err)
		}
	}
}

// Get waits for a renewal, and many callers for the same one.
func TestGetWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(func(*http.Request, int) (*http.Response, error) {
			time.Sleep(time.Second)
			return grant(600, 0, true), nil
		})
		source := iceservers.NewSource(s.client(), nil, nil)
		run(t, source)
		got := make(chan *iceservers.ICEServers, 20)
		for range cap(got) {
			go func() {
				servers, err := source.Get(t.Context())
				if err != nil {
					t.Error(err)
				}
				got <- servers
			}()
		}
		first := <-got
		for range cap(got) - 1 {
			if <-got != first {
				t.Error("callers got different servers")
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if servers, err := source.Get(ctx); err != nil || servers != first || len(s.requests()) != 1 {
			t.Errorf("%v, %d requests", err, len(s.requests()))
		}
	})
}

// Servers with static credentials are requested once.
func TestStaticCredentials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(func(*http.Request, int) (*http.Response, error) {
			return reply(201, `{"iceServers":[{"urls":["stun:192.0.2.10:3478"]}],"iceTransportPolicy":"all"}`), nil
		})
		source := iceservers.NewSource(s.client(), nil, nil)
		run(t, source)
		time.Sleep(365 * 24 * time.Hour)
		synctest.Wait()
		if _, err := source.Get(t.Context()); err != nil || len(s.requests()) != 1 {
			t.Errorf("%v, %d requests", err, len(s.requests()))
		}
	})
}

var broken = map[string]string{
	"no JSON":           `<html>It works!</html>`,
	"no servers":        `{"iceServers":[],"iceTransportPolicy":"all"}`,
	"another URL":       `{"iceServers":[{"urls":["https://example.org"]}],"iceTransportPolicy":"all"}`,
	"no URL":            `{"iceServers":[{"urls":[]}],"iceTransportPolicy":"all"}`,
	"no password":       `{"iceServers":[{"urls":["turn:192.0.2.1"],"username":"ada"}],"iceTransportPolicy":"all"}`,
	"an unknown policy": `{"iceServers":[{"urls":["stun:192.0.2.1"]}],"iceTransportPolicy":"public"}`,
	"a negative ttl":    `{"iceServers":[{"urls":["stun:192.0.2.1"]}],"iceTransportPolicy":"all","ttl":-1}`,
	"a long ttl":        `{"iceServers":[{"urls":["stun:192.0.2.1"]}],"iceTransportPolicy":"all","ttl":900000000000}`,
	"no ttl": `{"iceServers":[{"urls":["stun:192.0.2.1"]}],"iceTransportPolicy":"all",` +
		`"expiresAt":"2031-01-01T00:00:00Z"}`,
	"an endless answer": `"` + strings.Repeat("x", 2<<20) + `"`,
	"too many servers": `{"iceServers":[` + strings.Repeat(`{"urls":["stun:192.0.2.1"]},`, 1000) +
		`{"urls":["stun:192.0.2.1"]}],"iceTransportPolicy":"all"}`,
}

// Answers that are not those of the service are refused.
func TestAnswers(t *testing.T) {
	for name, body := range broken {
		t.Run(name, func(t *testing.T) {
			s := newService(func(*http.Request, int) (*http.Response, error) { return reply(201, body), nil })
			var e *iceservers.Error
			_, err := s.client().ICEServers(t.Context())
			if !errors.As(err, &e) || e.Reason != "answer_invalid" || e.Temporary() {
				t.Errorf("%v", err)
			}
		})
	}
}

// FuzzAnswer: an answer is refused, or has servers that a peer connection accepts.
func FuzzAnswer(f *testing.F) {
	for _, body := range broken {
		if len(body) < 1000 {
			f.Add(body)
		}
	}
	f.Add(`{"iceServers":[{"urls":["turn:192.0.2.1"],"username":"ada","credential":"x"}],` +
		`"iceTransportPolicy":"all","ttl":5}`)
	f.Fuzz(func(t *testing.T, body string) {
		s := newService(func(*http.Request, int) (*http.Response, error) { return reply(201, body), nil })
		got, err := s.client().ICEServers(t.Context())
		if err != nil {
			return
		}
		if len(got.ICEServers) == 0 || len(got.ICEServers[0].URLs) == 0 {
			t.Errorf("accepted %s", body)
		}
	})
}

// A password is in JSON, for the browser, and nowhere else.
func TestSecretsAreNotPrinted(t *testing.T) {
	server := iceservers.ICEServer{URLs: []string{"turn:192.0.2.1"}, Username: "ada", Credential: "pa55"}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		if said := fmt.Sprintf(verb, server); strings.Contains(said, "pa55") || strings.Contains(said, "70613535") {
			t.Errorf("%s prints %s", verb, said)
		}
	}
	text, err := json.Marshal(server)
	if err != nil || !strings.Contains(string(text), `"credential":"pa55"`) {
		t.Errorf("%s, %v", text, err)
	}
}
