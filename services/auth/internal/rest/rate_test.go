package rest_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/stunner-gateway/stunner/services/auth/internal/rest"
)

// clock is a clock that the test sets.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

// outside and inside are the bursts of the tests.
const outside, inside = 50, 120

func rates(proxies ...string) rest.Rates {
	r := rest.Rates{
		Rate: rest.Rate{PerSecond: 10, Burst: outside}, Inside: rest.Rate{PerSecond: 20, Burst: inside},
		Networks: []netip.Prefix{netip.MustParsePrefix("2001:db8:c::/48")},
	}
	for _, p := range proxies {
		r.Proxies = append(r.Proxies, netip.MustParsePrefix(p))
	}
	return r
}

// answered returns how many of n requests are not answered with 429. Each has an address and a header of a proxy.
func (s *service) answered(
	t *testing.T, n int, header string, from func(i int) (address, forwarded string),
) (count int) {
	t.Helper()
	for i := range n {
		r := httptest.NewRequest(http.MethodGet, "/ice", nil)
		address, forwarded := from(i)
		r.RemoteAddr = address
		if forwarded != "" {
			r.Header.Set(header, forwarded)
		}
		answer := s.do(t, r)
		if answer.StatusCode != http.StatusTooManyRequests {
			count++
			continue
		}
		wantProblem(t, answer, http.StatusTooManyRequests, "")
		if s, err := strconv.Atoi(answer.Header.Get("Retry-After")); err != nil || s != 1 {
			t.Errorf("Retry-After %q, want 1", answer.Header.Get("Retry-After"))
		}
	}
	return count
}

// J-13: each address has a bucket, and a client cannot get another bucket with a header.
func TestAddressesAreLimited(t *testing.T) {
	const one, private, proxy = "198.51.100.1:4000", "10.1.2.3:4000", "10.9.9.9:4000"
	tests := map[string]struct {
		proxies []string
		from    func(i int) (string, string)
		want    int
	}{
		"one address": {nil, func(int) (string, string) { return one, "" }, outside},
		"its other ports": {
			nil, func(i int) (string, string) { return fmt.Sprintf("198.51.100.1:%d", 4000+i), "" }, outside,
		},
		"the addresses of one subscriber": {
			nil, func(i int) (string, string) { return fmt.Sprintf("[2001:db8::%x]:4000", i+1), "" }, outside,
		},
		"two addresses": {
			nil, func(i int) (string, string) { return fmt.Sprintf("198.51.100.%d:4000", i%2), "" }, 2 * outside,
		},
		"a pod": {nil, func(int) (string, string) { return private, "" }, inside},
		"a pod by its zone": {
			nil, func(i int) (string, string) { return fmt.Sprintf("[fe80::1%%eth%d]:4000", i), "" }, inside,
		},
		"two pods": {
			nil, func(i int) (string, string) { return fmt.Sprintf("10.1.2.%d:4000", i%2), "" }, 2 * inside,
		},
		"two pods of IPv6": {
			nil, func(i int) (string, string) { return fmt.Sprintf("[fd00::%x]:4000", i%2+1), "" }, 2 * inside,
		},
		"two pods with public addresses": {
			nil, func(i int) (string, string) { return fmt.Sprintf("[2001:db8:c::%x]:4000", i%2+1), "" }, 2 * inside,
		},
		"what nobody is trusted to say": {
			nil, func(i int) (string, string) { return one, fmt.Sprintf("203.0.113.%d", i) }, outside,
		},
		"what a pod is not trusted to say": {
			nil, func(i int) (string, string) { return private, fmt.Sprintf("203.0.113.%d", i) }, inside,
		},
		"what a proxy says": {
			[]string{"10.9.0.0/16"}, func(i int) (string, string) { return proxy, fmt.Sprintf("203.0.113.%d", i%4) },
			4 * outside,
		},
		"a pod behind a proxy": {
			[]string{"10.9.0.0/16"}, func(i int) (string, string) { return proxy, "10.1.2.3" }, inside,
		},
		"what a client told the proxy": {
			[]string{"10.9.0.0/16"},
			func(i int) (string, string) { return proxy, fmt.Sprintf("203.0.113.%d, 198.51.100.1", i) }, outside,
		},
		"two proxies, one behind another": {
			[]string{"10.9.0.0/16"}, func(i int) (string, string) { return proxy, "198.51.100.1, 10.9.1.1" }, outside,
		},
		"nonsense from a client": {
			[]string{"10.9.0.0/16"}, func(i int) (string, string) { return proxy, fmt.Sprintf("x%d, 198.51.100.1", i) },
			outside,
		},
		"a proxy that says nothing": {
			[]string{"10.9.0.0/16"}, func(i int) (string, string) { return proxy, "" }, inside,
		},
		"a proxy that does not say of whom": {
			[]string{"10.9.0.0/16"}, func(i int) (string, string) { return proxy, fmt.Sprintf("_hidden%d", i) },
			outside,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := &clock{now}
			s := newServiceWith(t, rest.Options{Policy: open(), Rates: rates(tt.proxies...), Now: c.now}, gateways()...)
			if got := s.answered(t, 260, rest.XForwardedFor, tt.from); got != tt.want {
				t.Errorf("%d of 260 were answered, want %d", got, tt.want)
			}
			c.at = c.at.Add(time.Second)
			again := map[int]int{outside: 10, inside: 20}[tt.want]
			if got := s.answered(
				t, 30, rest.XForwardedFor, func(int) (string, string) { return tt.from(0) },
			); again != 0 && got != again {
				t.Errorf("%d of 30 a second later, want %d", got, again)
			}
		})
	}
}

// J-13: each subject has a bucket over all addresses, and invalid tokens do not use it.
func TestSubjectsAreLimited(t *testing.T) {
	k := newKeys(t)
	s := newServiceWith(t, rest.Options{Policy: k.policy(t), Rates: rates()}, gateways()...)
	ask := func(subject string, i int) int {
		r := httptest.NewRequest(http.MethodGet, "/ice", nil)
		r.RemoteAddr = fmt.Sprintf("198.51.%d.%d:4000", i/200, i%200)
		r.Header.Set(
			"Authorization",
			"Bearer "+sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, with(map[string]any{"sub": subject})),
		)
		return s.do(t, r).StatusCode
	}
	count := map[int]int{}
	for i := range 100 {
		count[ask("ada", i)]++
	}
	if count[http.StatusOK] != 50 || count[http.StatusTooManyRequests] != 50 {
		t.Errorf("answers to one subject: %v", count)
	}
	if status := ask("grace", 0); status != http.StatusOK {
		t.Errorf("another subject: %d", status)
	}
}

// J-08: with CapToToken, credentials expire no later than the token of the request.
func TestCredentialsEndWithTheToken(t *testing.T) {
	k := newKeys(t)
	for name, tt := range map[string]struct {
		capped bool
		want   time.Duration
	}{"capped": {true, time.Minute}, "not capped": {false, 24 * time.Hour}} {
		t.Run(name, func(t *testing.T) {
			s := newServiceWith(
				t, rest.Options{Policy: k.policy(t), CapToToken: tt.capped, Now: time.Now}, gateways()...,
			)
			for _, body := range []string{
				`{"gateways":[{"namespace":"media","name":"oslo"}]}`,
				`{"gateways":[{"namespace":"media","name":"oslo"}],"ttl":86400}`,
				`{"ttl":86400}`,
			} {
				r := postRequest(body)
				r.Header.Set("Authorization", "Bearer "+sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, good()))
				got := decode[rest.IceServers](t, s.do(t, r), http.StatusCreated)
				left := time.Until(*got.ExpiresAt)
				named := strings.Contains(body, "gateways") // without names, another gateway may have a shorter lifetime
				if left > tt.want || named && left < tt.want-30*time.Second {
					t.Errorf("%s: credentials for %s, want %s", body, left, tt.want)
				}
			}
		})
	}
}

// J-11: only pages of the configured origins can read answers; similar origins cannot.
func TestOtherOrigins(t *testing.T) {
	s := newServiceWith(t, rest.Options{
		Policy: newKeys(t).policy(t), Origins: []string{"https://app.example.org", "http://localhost:3000"},
	}, gateways()...)
	for origin, allowed := range map[string]bool{
		"https://app.example.org":      true,
		"http://localhost:3000":        true,
		"":                             false,
		"null":                         false,
		"http://app.example.org":       false,
		"https://app.example.org:8443": false,
		"https://app.example.org.evil": false,
		"https://evil.app.example.org": false,
		"https://example.org":          false,
		"http://localhost":             false,
	} {
		preflight := httptest.NewRequest(http.MethodOptions, "/v1/ice-servers", nil)
		preflight.Header.Set("Access-Control-Request-Method", http.MethodPost)
		preflight.Header.Set("Access-Control-Request-Headers", "authorization,content-type")
		for _, r := range []*http.Request{preflight, postRequest(`{}`)} {
			r.Header.Set("Origin", origin)
			h := s.do(t, r).Header
			want := ""
			if allowed {
				want = origin
			}
			if got := h.Get("Access-Control-Allow-Origin"); got != want {
				t.Errorf("%s from %q allows %q", r.Method, origin, got)
			}
			if h.Get("Access-Control-Allow-Credentials") != "" || h.Get("Vary") == "" {
				t.Errorf("%s from %q: %v", r.Method, origin, h)
			}
			if r == preflight && allowed &&
				(h.Get("Access-Control-Max-Age") != "600" || h.Get("Access-Control-Allow-Methods") != http.MethodPost) {
				t.Errorf("preflight from %q: %v", origin, h)
			}
		}
	}
}

// A page of a configured origin can use each operation of the contract.
func TestPagesUseEachOperation(t *testing.T) {
	const origin = "https://app.example.org"
	s := newServiceWith(t, rest.Options{Policy: newKeys(t).policy(t), Origins: []string{origin}}, gateways()...)
	contract := decode[struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}](t, s.do(t, httptest.NewRequest(http.MethodGet, "/openapi.json", nil)), http.StatusOK)
	operations := 0
	for path, operation := range contract.Paths {
		for _, method := range []string{
			http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		} {
			if operation[strings.ToLower(method)] == nil {
				continue
			}
			operations++
			preflight := httptest.NewRequest(http.MethodOptions, path, nil)
			preflight.Header.Set("Origin", origin)
			preflight.Header.Set("Access-Control-Request-Method", method)
			preflight.Header.Set("Access-Control-Request-Headers", "authorization,content-type")
			if got := s.do(t, preflight).Header.Get("Access-Control-Allow-Methods"); got != method {
				t.Errorf("%s %s: the preflight allows %q", method, path, got)
			}
		}
	}
	if operations == 0 {
		t.Error("the contract has no operation")
	}
}

// J-11: without configured origins no answer has CORS headers.
func TestNoOriginsMeansNoHeaders(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/ice", nil)
	r.Header.Set("Origin", "https://app.example.org")
	h := newService(t, open(), gateways()...).do(t, r).Header
	if h.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("headers %v", h)
	}
}
