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

// The audit log has one line for each request.
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
		"level": "INFO", "scope": "audit", "subject": "web:ada", "source": "198.51.100.1",
	}
	line := func(request, message string, fields map[string]string) map[string]string {
		l := maps.Clone(same)
		maps.Copy(l, fields)
		l["request"], l["msg"] = request, message
		return l
	}
	refusal := func(status, reason, text string) map[string]string {
		return line("3", "refused request", map[string]string{"status": status, "reason": reason, "text": text})
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
		line("from-the-proxy.1", "gave credential", map[string]string{
			"gateways": "[media/bergen media/oslo short/lived]", "fixed": "[media/bergen]",
			"user": "web%3Aada", "expires": "2029-12-31T23:10:00Z", "ttl": "600",
		}),
		line("2", "gave credential", map[string]string{
			"gateways": "[media/oslo]", "user": "web%3Aada", "expires": "2029-12-31T23:01:00Z", "ttl": "60",
		}),
		refusal("403", "gateway_not_served", "The service gives no credentials for the gateway. is not in the flag --gateways of this service, "+
			"which lists the gateways with credentials"),
		refusal("400", "parameter_invalid", "A parameter is invalid. must be an integer of at least 1"),
		line("3", "gave no credential", nil),
		refusal("403", "gateway_not_served", "The service gives no credentials for the gateway. is not in the flag --gateways of this service, "+
			"which lists the gateways with credentials"),
	}
	if got := s.audited(); !slices.EqualFunc(got, want, maps.Equal) {
		t.Errorf("got\n%v\nwant\n%v", got[len(got)-1:], want[len(want)-1:])
	}
}

// TestAuditLinesOfARequest: a request to any endpoint has one audit line, whether it names no gateway, one or several,
// and whether it is granted or refused.
func TestAuditLinesOfARequest(t *testing.T) {
	k := newKeys(t)
	token := sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, with(map[string]any{"sub": "ada"}))
	get := func(target string) *http.Request { return httptest.NewRequest(http.MethodGet, target, nil) }
	post := func(target string) *http.Request { return httptest.NewRequest(http.MethodPost, target, nil) }
	const given, refused = "gave credential", "refused request"
	for _, c := range []struct {
		name    string
		request func() *http.Request
		status  int
		message string
	}{
		{"/, no gateway", func() *http.Request { return get("/?service=turn") }, 200, given},
		{"/, a namespace", func() *http.Request { return get("/?service=turn&namespace=media") }, 200, given},
		{"/, a gateway", func() *http.Request { return get("/?service=turn&namespace=media&gateway=oslo") }, 200, given},
		{"/, POST", func() *http.Request { return post("/?service=turn") }, 200, given},
		{"/, STUN only", func() *http.Request { return get("/?service=turn&namespace=stun") }, 404, refused},
		{"/, unknown", func() *http.Request { return get("/?service=turn&namespace=x") }, 404, refused},
		{"/, no service", func() *http.Request { return get("/") }, 400, refused},
		{"/ice, no gateway", func() *http.Request { return get("/ice") }, 200, given},
		{"/ice, a gateway", func() *http.Request { return get("/ice?namespace=media&gateway=bergen") }, 200, given},
		{"/ice, POST", func() *http.Request { return post("/ice") }, 200, given},
		{"/ice, STUN only", func() *http.Request { return get("/ice?namespace=stun") }, 200, "gave no credential"},
		{"/ice, unknown", func() *http.Request { return get("/ice?namespace=x") }, 404, refused},
		{"/ice, a parameter twice", func() *http.Request { return get("/ice?ttl=1&ttl=2") }, 400, refused},
		{"/v1/ice-servers, no gateway", func() *http.Request { return postRequest("") }, 201, given},
		{"/v1/ice-servers, an empty list", func() *http.Request { return postRequest(`{}`) }, 201, given},
		{"/v1/ice-servers, a gateway", func() *http.Request {
			return postRequest(`{"gateways":[{"namespace":"media","name":"oslo"}]}`)
		}, 201, given},
		{"/v1/ice-servers, several gateways", func() *http.Request {
			return postRequest(`{"gateways":[{"namespace":"media","name":"oslo"},{"namespace":"stun","name":"only"}]}`)
		}, 201, given},
		{"/v1/ice-servers, unknown", func() *http.Request {
			return postRequest(`{"gateways":[{"namespace":"x","name":"y"}]}`)
		}, 404, refused},
		{"/v1/ice-servers, no JSON", func() *http.Request { return postRequest(`{`) }, 400, refused},
		{"/v1/ice-servers, too long", func() *http.Request {
			return postRequest(strings.Repeat(" ", 1<<20))
		}, 413, refused},
	} {
		for caller, authorization := range map[string]string{
			"known": "Bearer " + token, "unknown": "", "forged": "Bearer x",
		} {
			s := newServiceWith(t, rest.Options{Policy: k.policy(t)}, gateways()...)
			r, status, message := c.request(), c.status, c.message
			r.Header.Set("Authorization", authorization)
			if caller != "known" {
				status, message = http.StatusUnauthorized, refused
			}
			if got := s.do(t, r).StatusCode; got != status {
				t.Errorf("%s, %s caller: status %d, want %d", c.name, caller, got, status)
			}
			lines := s.audited()
			if len(lines) != 1 || lines[0]["msg"] != message || (caller == "known") != (lines[0]["subject"] == "ada") {
				t.Errorf("%s, %s caller: got %v, want one line %q", c.name, caller, lines, message)
			}
		}
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
