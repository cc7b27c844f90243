package rest_test

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"github.com/stunner-gateway/stunner/services/auth/internal/rest"
)

var pair = regexp.MustCompile(`(\w+)=("(?:[^"\\]|\\.)*"|\S+)`)

// audited returns the audit log lines as fields.
func (s *service) audited() (lines []map[string]string) {
	for line := range strings.Lines(s.logs.String()) {
		if !strings.Contains(line, "scope=audit") {
			continue
		}
		fields := map[string]string{}
		for _, m := range pair.FindAllStringSubmatch(line, -1) {
			fields[m[1]] = strings.Trim(m[2], `"`)
		}
		delete(fields, "time")
		lines = append(lines, fields)
	}
	return lines
}

// The audit log has one line for each credential, and no others.
func TestAudit(t *testing.T) {
	k := newKeys(t)
	s := newServiceWith(t, rest.Options{
		Policy: k.policy(t), Rates: rates("10.9.0.0/16"), Gateways: patterns(t, "media/*", "short/*", "stun/*"),
	}, gateways()...)
	ask := func(r *http.Request, id string) *http.Response {
		r.RemoteAddr = "10.9.9.9:4000"
		r.Header.Set("X-Forwarded-For", "198.51.100.1:99")
		r.Header.Set("X-Request-Id", id)
		r.Header.Set(
			"Authorization",
			"Bearer "+sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, with(map[string]any{"sub": "web:ada\n"[:7]})),
		)
		return s.do(t, r)
	}
	same := map[string]string{
		"level": "INFO", "msg": "gave credential", "scope": "audit", "subject": "web:ada", "source": "198.51.100.1",
	}
	line := func(request, gateway, expires, ttl string) map[string]string {
		l := maps.Clone(same)
		l["request"], l["gateway"] = request, gateway
		if expires == "" {
			l["fixed"] = "true"
		} else {
			l["user"], l["expires"], l["ttl"] = "web%3Aada", expires, ttl
		}
		return l
	}
	answer := ask(postRequest(`{"ttl":600}`), "from-the-proxy.1")
	if got := answer.Header.Get("X-Request-Id"); got != "from-the-proxy.1" {
		t.Errorf("the request is called %q", got)
	}
	ask(httptest.NewRequest(http.MethodGet, "/?service=turn&namespace=media&gateway=oslo&ttl=60", nil), "2")
	for i, refused := range []*http.Request{
		postRequest(`{"gateways":[{"namespace":"elsewhere","name":"x"}]}`), postRequest(`{"ttl":0}`),
		httptest.NewRequest(http.MethodGet, "/ice?namespace=stun", nil),
		httptest.NewRequest(http.MethodGet, "/ice?namespace=atlantis", nil),
	} {
		if code := ask(refused, "3").StatusCode; code < 400 && i != 2 {
			t.Errorf("%d", code)
		}
	}
	want := []map[string]string{
		line("from-the-proxy.1", "media/bergen", "", ""),
		line("from-the-proxy.1", "media/oslo", "2029-12-31T23:10:00Z", "600"),
		line("from-the-proxy.1", "short/lived", "2029-12-31T23:10:00Z", "600"),
		line("2", "media/oslo", "2029-12-31T23:01:00Z", "60"),
	}
	if got := s.audited(); !slices.EqualFunc(got, want, maps.Equal) {
		t.Errorf("got\n%v\nwant\n%v", got, want)
	}
}

// Only a trusted proxy can choose the id of a request.
func TestRequestIDs(t *testing.T) {
	s := newServiceWith(t, rest.Options{Policy: open(), Rates: rates("10.9.0.0/16")}, gateways()...)
	seen := map[string]bool{}
	for address, ids := range map[string][]string{
		"198.51.100.1:1": {"", "forged", "x y"},
		"10.9.9.9:1":     {"", "with space", "a\nb", strings.Repeat("x", 65), "q=\"1\""},
	} {
		for _, id := range ids {
			r := httptest.NewRequest(http.MethodGet, "/ice", nil)
			r.RemoteAddr = address
			r.Header["X-Request-Id"] = []string{id}
			got := s.do(t, r).Header.Get("X-Request-Id")
			if len(got) < 20 || got == id || seen[got] {
				t.Errorf("%q from %s: the request is called %q", id, address, got)
			}
			seen[got] = true
		}
	}
}
