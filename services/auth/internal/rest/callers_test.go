package rest_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/stunner-gateway/stunner/services/auth/internal/rest"
)

// as returns a request with a bearer token or API key.
func as(r *http.Request, credential string) *http.Request {
	r.Header.Set("Authorization", "Bearer "+credential)
	return r
}

// users returns the user ids in the credentials of an answer, each once.
func users(t *testing.T, answer *http.Response) string {
	t.Helper()
	ids := map[string]bool{}
	for _, server := range decode[rest.IceServers](t, answer, http.StatusCreated).IceServers {
		if server.Username != nil && *server.Username != "bergen" { // of the static pair
			_, id, _ := strings.Cut(*server.Username, ":")
			ids[id] = true
		}
	}
	if len(ids) != 1 {
		t.Fatalf("user ids %v, want one", ids)
	}
	for id := range ids {
		return id
	}
	return ""
}

// The policy imposes the user id, or lets the caller choose it.
func TestUserIDOfThePolicy(t *testing.T) {
	k := newKeys(t)
	token := func(claims map[string]any) string {
		return sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, with(claims))
	}
	for name, tt := range map[string]struct {
		policy   string
		claims   map[string]any
		username string
		want     string // "" means 403
	}{
		"the subject":               {"", nil, "", "ada"},
		"the subject, named":        {"", nil, "ada", "ada"},
		"another user":              {"", nil, "bob", ""},
		"a template":                {`user: "{claim.tenant}/{sub}"`, map[string]any{"tenant": "a:b"}, "", "a%3Ab/ada"},
		"a template, named":         {`user: "{claim.tenant}/{sub}"`, map[string]any{"tenant": "acme"}, "acme/ada", "acme/ada"},
		"a claim that is missing":   {`user: "{claim.tenant}/{sub}"`, nil, "", ""},
		"a claim that is no text":   {`user: "{claim.tenant}"`, map[string]any{"tenant": 7}, "", ""},
		"chosen":                    {`user: "{username}"`, nil, "bob", "bob"},
		"chosen, of its own tenant": {`user: "{sub}-{username}"`, nil, "bob", "ada-bob"},
		"chosen and too long":       {`user: "{sub}-{username}"`, nil, strings.Repeat("b", 128), "sha256-"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, k.filePolicy(t, tt.policy), gateways()...)
			body := `{}`
			if tt.username != "" {
				body = `{"username":"` + tt.username + `"}`
			}
			answer := s.do(t, as(postRequest(body), token(tt.claims)))
			if tt.want == "" {
				if answer.StatusCode != http.StatusForbidden {
					t.Errorf("status %d", answer.StatusCode)
				}
				return
			}
			if got := users(t, answer); got != tt.want && (tt.want != "sha256-" || !strings.HasPrefix(got, tt.want)) {
				t.Errorf("user id %q, want %q", got, tt.want)
			}
		})
	}
}

// A rule of the policy applies to the tokens with its claims: gateways and the longest ttl.
func TestRulesByClaim(t *testing.T) {
	k := newKeys(t)
	s := newService(t, k.filePolicy(t, `gateways: []
rules:
- claims: {groups: [admin, ops]}
- claims: {groups: media, plan: 3}
  gateways: [media/*]
  maxTTL: 60`), gateways()...)
	for name, tt := range map[string]struct {
		claims  map[string]any
		servers int // 0 means none
		expires time.Duration
	}{
		"no rule":            {nil, 0, 0},
		"one of two claims":  {map[string]any{"groups": "media"}, 0, 0},
		"another value":      {map[string]any{"groups": "media", "plan": "3"}, 0, 0},
		"both claims":        {map[string]any{"groups": []string{"x", "media"}, "plan": 3}, 2, time.Minute},
		"a rule of its own":  {map[string]any{"groups": "ops"}, 0, 0}, // inherits gateways
		"a list with a list": {map[string]any{"groups": []any{[]string{"media"}}, "plan": 3}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			answer := s.do(t, as(postRequest(`{}`), sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, with(tt.claims))))
			if tt.servers == 0 {
				if p := wantProblem(t, answer, http.StatusNotFound, ""); p.Reason != "policy_without_match" {
					t.Errorf("reason %s", p.Reason)
				}
				return
			}
			got := decode[rest.IceServers](t, answer, http.StatusCreated)
			if len(got.IceServers) != tt.servers || got.ExpiresAt.Sub(now) != tt.expires {
				t.Errorf("%d servers until %s, want %d for %s", len(got.IceServers), got.ExpiresAt, tt.servers, tt.expires)
			}
		})
	}
}

// An API key is sent as bearer token, or as the parameter key or api of TURN REST.
func TestAPIKeys(t *testing.T) {
	s := newService(t, keyPolicy(t, "shop", "secret", `gateways: [media/oslo]`), gateways()...)
	if got := users(t, s.do(t, as(postRequest(`{"username":"ada"}`), "secret"))); got != "ada" {
		t.Errorf("user id %q", got)
	}
	first, second := users(t, s.do(t, as(postRequest(`{}`), "secret"))), users(t, s.do(t, as(postRequest(`{}`), "secret")))
	if first == "" || first == second {
		t.Errorf("user ids %q and %q without a user name: callers share a quota", first, second)
	}
	for query, status := range map[string]int{
		"key=secret":           http.StatusOK,
		"api=secret":           http.StatusOK,
		"key=secret&api=guess": http.StatusOK,
		"key=guess&api=secret": http.StatusUnauthorized,
		"key=":                 http.StatusUnauthorized,
		"key=secrets":          http.StatusUnauthorized,
		"":                     http.StatusUnauthorized,
	} {
		if got := s.get(t, "/?service=turn&username=ada&"+query); got.StatusCode != status {
			t.Errorf("%q: status %d, want %d", query, got.StatusCode, status)
		}
	}
	r := httptest.NewRequest(http.MethodPost, "/v1/ice-servers?key=secret", nil)
	if got := s.do(t, r); got.StatusCode != http.StatusUnauthorized {
		t.Errorf("a key in the URL of the API for web apps: status %d", got.StatusCode)
	}
	if text := s.logs.String(); strings.Contains(text, "secret") || !strings.Contains(text, "key=shop") {
		t.Errorf("the log has no name of the key, or the key itself:\n%s", text)
	}
}

// A policy with tokens and with callers without credentials still refuses a wrong token.
func TestWrongTokenIsRefusedByAPolicyForAnyCaller(t *testing.T) {
	text := "version: v1\nopen: {gateways: [media/*], user: guest, maxTTL: 30}\nkeys:\n- {name: shop, hashes: [sha256:" +
		strings.Repeat("0", 64) + "]}\n"
	s := newService(t, openPolicy(t, text), gateways()...)
	if got := users(t, s.post(t, `{}`)); got != "guest" {
		t.Errorf("user id %q", got)
	}
	if got := s.post(t, `{"username":"root"}`); got.StatusCode != http.StatusForbidden {
		t.Errorf("another user: status %d", got.StatusCode)
	}
	if got := s.do(t, as(postRequest(`{}`), "guess")); got.StatusCode != http.StatusUnauthorized {
		t.Errorf("a wrong key: status %d", got.StatusCode)
	}
	if got := s.get(t, "/ice?"+url.Values{"key": {"guess"}}.Encode()); got.StatusCode != http.StatusUnauthorized {
		t.Errorf("a wrong key in the query: status %d", got.StatusCode)
	}
}

// J-13: the policy sets the rate limit of a caller, which holds across addresses, and of callers without credentials by
// their address.
func TestRateOfThePolicy(t *testing.T) {
	for name, tt := range map[string]struct{ policy, credential string }{
		"key":  {"keys:\n- {name: shop, hashes: [sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b], rate: {perSecond: 1, burst: 2}}", "secret"},
		"open": {"open: {rate: {perSecond: 1, burst: 2}}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, openPolicy(t, "version: v1\n"+tt.policy+"\n"), gateways()...)
			ask := func(from string) int {
				r := postRequest(`{}`)
				r.RemoteAddr = from + ":1"
				if tt.credential != "" {
					as(r, tt.credential)
				}
				return s.do(t, r).StatusCode
			}
			for range 2 {
				if got := ask("198.51.100.1"); got != http.StatusCreated {
					t.Errorf("within the burst: status %d", got)
				}
			}
			if got := ask("198.51.100.1"); got != http.StatusTooManyRequests {
				t.Errorf("beyond the burst: status %d", got)
			}
			want := http.StatusTooManyRequests
			if tt.credential == "" {
				want = http.StatusCreated
			}
			if got := ask("198.51.100.2"); got != want {
				t.Errorf("another address: status %d, want %d", got, want)
			}
		})
	}
}

// J-05: a pattern of the policy does not match a namespace that begins with the same text.
func TestPolicyPatternsAreExact(t *testing.T) {
	all := gateways()[:2]
	all[1].Admin.Name = "media-evil/x"
	s := newService(t, keyPolicy(t, "shop", "secret", "gateways: [media/*]"), all...)
	for body, status := range map[string]int{
		`{"gateways":[{"namespace":"media-evil","name":"x"}]}`:  http.StatusForbidden,
		`{"gateways":[{"namespace":"media","name":"../x"}]}`:    http.StatusNotFound,
		`{"gateways":[{"namespace":"media/bergen","name":""}]}`: http.StatusBadRequest,
		`{"gateways":[{"namespace":"media","name":"bergen"}]}`:  http.StatusCreated,
	} {
		if got := s.do(t, as(postRequest(body), "secret")); got.StatusCode != status {
			t.Errorf("%s: status %d, want %d", body, got.StatusCode, status)
		}
	}
	got := decode[rest.IceServers](t, s.do(t, as(postRequest(`{}`), "secret")), http.StatusCreated)
	if len(got.IceServers) != 1 || *got.IceServers[0].Username != "bergen" {
		t.Errorf("%+v, want the gateway of the namespace media only", got.IceServers)
	}
}
