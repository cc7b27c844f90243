package rest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/auth/internal/access"
	"github.com/stunner-gateway/stunner/services/auth/internal/rest"
	"github.com/stunner-gateway/stunner/services/auth/internal/revoke"
)

// provoked is a service, and a request that it refuses.
type provoked struct {
	*service
	request *http.Request
}

// provocations return a request that is refused for a reason.
var provocations = map[access.Reason]func(t *testing.T, k keys) provoked{
	access.TokenMissing: func(t *testing.T, k keys) provoked {
		return provoked{newService(t, k.policy(t), gateways()...), postRequest(`{}`)}
	},
	access.TokenRepeated: func(t *testing.T, k keys) provoked {
		p := k.asked(t, "a")
		p.request.Header.Add("Authorization", "Bearer b")
		return p
	},
	access.TokenMalformed: func(t *testing.T, k keys) provoked { return k.asked(t, "a.b") },
	access.TokenHeader: func(t *testing.T, k keys) provoked {
		return k.asked(t, sign(t, jwt.SigningMethodES256, k.ec, "ec", map[string]any{"crit": []string{"exp"}}, good()))
	},
	access.TokenType: func(t *testing.T, k keys) provoked {
		return k.asked(t, sign(t, jwt.SigningMethodES256, k.ec, "ec", map[string]any{"typ": "logout+jwt"}, good()))
	},
	access.TokenAlgorithm: func(t *testing.T, k keys) provoked { return k.asked(t, unsigned(t, `{"alg":"none"}`)) },
	access.TokenClaims:    func(t *testing.T, k keys) provoked { return k.claiming(t, "exp", "2099-01-01") },
	access.TokenIssuer:    func(t *testing.T, k keys) provoked { return k.claiming(t, "iss", "https://login.example.net") },
	access.TokenAudience:  func(t *testing.T, k keys) provoked { return k.claiming(t, "aud", "other") },
	access.TokenExpiryMissing: func(t *testing.T, k keys) provoked {
		return k.claiming(t, "exp", nil)
	},
	access.TokenExpired: func(t *testing.T, k keys) provoked { return k.claiming(t, "exp", 1) },
	access.TokenNotYetValid: func(t *testing.T, k keys) provoked {
		return k.claiming(t, "nbf", time.Now().Add(time.Hour).Unix())
	},
	access.TokenTooOld: func(t *testing.T, _ keys) provoked {
		secret := []byte("0123456789abcdef0123456789abcdef")
		policy := newPolicy(t, access.Config{
			Issuer: issuer, Audience: audience, SecretFile: write(t, "secret", secret), MaxAge: time.Minute,
		})
		return asking(newService(t, policy, gateways()...), sign(t, jwt.SigningMethodHS256, secret, nil, nil, good()))
	},
	access.KeyIDMissing: func(t *testing.T, k keys) provoked {
		return k.asked(t, sign(t, jwt.SigningMethodES256, k.ec, nil, nil, good()))
	},
	access.KeyUnknown: func(t *testing.T, k keys) provoked {
		return k.asked(t, sign(t, jwt.SigningMethodES256, k.ec, "elsewhere", nil, good()))
	},
	access.KeysUnavailable: func(t *testing.T, k keys) provoked {
		closed := httptest.NewServer(http.NotFoundHandler())
		closed.Close()
		policy := newPolicy(t, access.Config{Issuer: issuer, Audience: audience, JWKSURL: closed.URL})
		return asking(newService(t, policy, gateways()...), sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, good()))
	},
	access.KeyLookups: func(t *testing.T, k keys) provoked {
		release := make(chan struct{})
		original := http.DefaultTransport
		http.DefaultTransport = silent(release)
		policy := newPolicy(t, access.Config{
			Issuer: issuer, Audience: audience, JWKSURL: "https://login.example.org/keys",
		})
		s := newService(t, policy, gateways()...)
		token := sign(t, jwt.SigningMethodES256, k.ec, "elsewhere", nil, good())
		var waiting sync.WaitGroup
		for range 90 { // one source may use a quarter of the waiting slots
			waiting.Go(func() { s.ServeHTTP(httptest.NewRecorder(), asking(s, token).request) })
		}
		synctest.Wait()
		t.Cleanup(func() {
			close(release)
			waiting.Wait()
			http.DefaultTransport = original
		})
		return asking(s, token)
	},
	access.TokenSignature: func(t *testing.T, k keys) provoked {
		return k.asked(t, sign(t, jwt.SigningMethodRS256, k.stranger, "rsa", nil, good()))
	},
	access.TokenSubject:  func(t *testing.T, k keys) provoked { return k.claiming(t, "sub", nil) },
	access.TokenGateways: func(t *testing.T, k keys) provoked { return k.claiming(t, "stunner", "media/oslo") },

	access.TokenClaimRequired: func(t *testing.T, k keys) provoked {
		s := newService(t, k.filePolicy(t, "requiredClaims: {scope: turn}"), gateways()...)
		return asking(s, sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, with(map[string]any{"scope": "mail turning"})))
	},
	access.APIKeyUnknown: func(t *testing.T, _ keys) provoked {
		return asking(newService(t, keyPolicy(t, "shop", "secret", ""), gateways()...), "guess")
	},
	access.APIKeyExpired: func(t *testing.T, _ keys) provoked {
		return asking(newService(t, keyPolicy(t, "shop", "secret", "expires: 2020-01-01T00:00:00Z"), gateways()...), "secret")
	},

	"api_key_mismatch": func(t *testing.T, _ keys) provoked {
		return provoked{shopService(t), twilioRequest("web", "secret", "")}
	},
	"body_not_form": func(t *testing.T, _ keys) provoked {
		r := twilioRequest("shop", "secret", "{}")
		r.Header.Set("Content-Type", "application/json")
		return provoked{shopService(t), r}
	},
	"gateway_not_in_policy": func(t *testing.T, _ keys) provoked {
		p := asking(newService(t, keyPolicy(t, "shop", "secret", "gateways: [media/*]"), gateways()...), "secret")
		token := p.request.Header.Get("Authorization")
		p.request = postRequest(`{"gateways":[{"namespace":"stun","name":"only"}]}`)
		p.request.Header.Set("Authorization", token)
		return p
	},
	"policy_without_match": func(t *testing.T, _ keys) provoked {
		return asking(newService(t, keyPolicy(t, "shop", "secret", "gateways: []"), gateways()...), "secret")
	},
	access.TokenScope: func(t *testing.T, k keys) provoked {
		return k.claiming(t, "stunner", map[string]any{"scope": map[string]any{"bytes": 0}})
	},
	"scope_not_in_token": func(t *testing.T, k keys) provoked {
		p := k.claiming(t, "stunner", map[string]any{"scope": map[string]any{"routes": []string{"media/a"}}})
		r := postRequest(`{"scope":{"routes":["media/b"]}}`)
		r.Header = p.request.Header
		return provoked{p.service, r}
	},
	"scope_unsupported": posting(`{"scope":{"bytes":1},"gateways":[{"namespace":"media","name":"bergen"}]}`),

	"parameter_missing":   getting("/"),
	"parameter_unknown":   posting(`{"tll":60}`),
	"parameter_repeated":  posting(`{"ttl":60,"ttl":61}`),
	"parameter_invalid":   posting(`{"ttl":0}`),
	"query_unreadable":    getting("/ice?ttl=%zz"),
	"body_unreadable":     posting(`{"ttl":`),
	"body_too_large":      posting(strings.Repeat(" ", 1<<20)),
	"url_too_long":        getting("/ice?key=" + strings.Repeat("k", 9<<10)),
	"path_unknown":        getting("/v1/ice"),
	"gateway_unknown":     getting("/ice?namespace=atlantis"),
	"no_public_address":   getting("/ice?namespace=media&gateway=pending"),
	"no_relay":            getting("/?service=turn&namespace=stun"),
	"claim_empty":         func(t *testing.T, k keys) provoked { return k.claiming(t, "stunner", []string{}) },
	"claim_without_match": func(t *testing.T, k keys) provoked { return k.claiming(t, "stunner", []string{"atlantis/*"}) },
	"body_not_json": func(t *testing.T, _ keys) provoked {
		r := postRequest(`ttl=60`)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		return provoked{newService(t, open(), gateways()...), r}
	},
	"method_not_allowed": func(t *testing.T, _ keys) provoked {
		return provoked{newService(t, open(), gateways()...), httptest.NewRequest(http.MethodDelete, "/ice", nil)}
	},
	"user_not_subject": func(t *testing.T, k keys) provoked {
		p := k.asked(t, sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, good()))
		p.request = httptest.NewRequest(http.MethodGet, "/ice?username=bob", nil).WithContext(p.request.Context())
		p.request.Header.Set("Authorization", "Bearer "+sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, good()))
		return p
	},
	"gateway_not_served": func(t *testing.T, _ keys) provoked {
		o := rest.Options{Policy: open(), Gateways: patterns(t, "media/*")}
		return provoked{newServiceWith(t, o, gateways()...), httptest.NewRequest(http.MethodGet, "/ice?namespace=stun", nil)}
	},
	"gateway_not_in_token": func(t *testing.T, k keys) provoked {
		p := k.claiming(t, "stunner", []string{"media/*"})
		token := p.request.Header.Get("Authorization")
		p.request = postRequest(`{"gateways":[{"namespace":"stun","name":"only"}]}`)
		p.request.Header.Set("Authorization", token)
		return p
	},
	"no_gateway": func(t *testing.T, _ keys) provoked {
		s := newService(t, open(), gateways()[0])
		s.directory.Apply(discovery.Event{ID: gateways()[0].Admin.Name, Deleted: true})
		return provoked{s, postRequest(`{}`)}
	},
	"no_gateway_served": func(t *testing.T, _ keys) provoked {
		o := rest.Options{Policy: open(), Gateways: patterns(t, "atlantis/*")}
		return provoked{newServiceWith(t, o, gateways()...), postRequest(`{}`)}
	},
	"source_rate_limited": func(t *testing.T, _ keys) provoked {
		s := newServiceWith(t, rest.Options{
			Policy: open(), Rates: rest.Rates{Rate: rest.Rate{PerSecond: 1, Burst: 1}},
		}, gateways()...)
		s.get(t, "/ice")
		return provoked{s, httptest.NewRequest(http.MethodGet, "/ice", nil)}
	},
	"subject_rate_limited": func(t *testing.T, k keys) provoked {
		s := newServiceWith(t, rest.Options{
			Policy: k.policy(t), Rates: rest.Rates{Rate: rest.Rate{PerSecond: 1, Burst: 1}},
		}, gateways()...)
		p := asking(s, sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, good()))
		p.request.RemoteAddr = "10.0.0.1:1" // inside of the cluster, where sources have no limit here
		s.do(t, p.request.Clone(t.Context()))
		return p
	},
	"user_revoked": func(t *testing.T, _ keys) provoked {
		c := gateways()[1]
		c.Auth.Revocations = []credential.Revocation{{User: "ada", IssuedBefore: now.Unix() + 60, Until: now.Unix() + 90}}
		r := httptest.NewRequest(http.MethodGet, "/ice?username=ada", nil)
		return provoked{newService(t, open(), c), r}
	},
	"revoke_not_allowed": revoking(`{"user":"ada"}`, "", nil),
	"revoke_static":      revoking(`{"user":"ada","gateways":[{"namespace":"media","name":"bergen"}]}`, "revoke: any", &memory{}),
	"revocation_unknown": func(t *testing.T, k keys) provoked {
		p := revoking(``, "revoke: any", &memory{})(t, k)
		lift := httptest.NewRequest(http.MethodDelete, "/v1/revocations/user-none", nil)
		lift.Header.Set("Authorization", p.request.Header.Get("Authorization"))
		return provoked{p.service, lift}
	},
	"revocations_full":   revoking(`{"user":"ada"}`, "revoke: any", full("media")),
	"revocations_off":    revoking(`{"user":"ada"}`, "revoke: any", nil),
	"revocations_denied": revoking(`{"user":"ada"}`, "revoke: any", &memory{err: revoke.ErrForbidden}),
	"revocations_failed": revoking(`{"user":"ada"}`, "revoke: any", &memory{err: io.ErrUnexpectedEOF}),
	"usage_not_allowed":  usageOf("", "", &operator{}),
	"usage_off":          usageOf("usage: any", "", nil),
	"usage_denied":       usageOf("usage: any", "", &operator{err: &discovery.InspectError{Status: 401, Known: true}}),
	"usage_unavailable":  usageOf("usage: any", "", &operator{err: errors.New("connection refused")}),
	"no_config":          func(t *testing.T, _ keys) provoked { return provoked{newService(t, open()), postRequest(`{}`)} },
	"clocks_differ": func(t *testing.T, _ keys) provoked {
		s := newService(t, open())
		s.directory.Apply(discovery.Event{Connected: true, Ahead: new(time.Hour)})
		return provoked{s, postRequest(`{}`)}
	},
	"internal_error": func(t *testing.T, _ keys) provoked {
		return provoked{newService(t, nil, gateways()...), postRequest(`{}`)} // a missing policy is a programming error
	},
	"test_page": func(t *testing.T, _ keys) provoked {
		o := rest.Options{Policy: open(), Demo: http.NotFoundHandler()}
		return provoked{newServiceWith(t, o, gateways()...), httptest.NewRequest(http.MethodGet, "/demo/x", nil)}
	},
}

// silent answers the first request with an error at once, and later requests when release is closed.
func silent(release <-chan struct{}) http.RoundTripper {
	var asked atomic.Int32
	return roundTripper(func(*http.Request) (*http.Response, error) {
		if asked.Add(1) > 1 {
			<-release
		}
		return nil, errors.New("no answer")
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func getting(target string) func(*testing.T, keys) provoked {
	return func(t *testing.T, _ keys) provoked {
		return provoked{newService(t, open(), gateways()...), httptest.NewRequest(http.MethodGet, target, nil)}
	}
}

func posting(body string) func(*testing.T, keys) provoked {
	return func(t *testing.T, _ keys) provoked {
		return provoked{newService(t, open(), gateways()...), postRequest(body)}
	}
}

func asking(s *service, token string) provoked {
	r := postRequest(`{}`)
	r.Header.Set("Authorization", "Bearer "+token)
	return provoked{s, r}
}

func (k keys) asked(t *testing.T, token string) provoked {
	return asking(newService(t, k.policy(t), gateways()...), token)
}

// claiming is a request with a valid token, except for one claim; nil leaves the claim out.
func (k keys) claiming(t *testing.T, claim string, value any) provoked {
	return k.asked(t, sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, with(map[string]any{claim: value})))
}

// refused returns the metric of refusals by reason, without reasons whose number is 0.
func (s *service) refused(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := s.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, family := range families {
		if family.GetName() != "stunner_auth_refused_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			if n := m.GetCounter().GetValue(); n > 0 {
				found[m.GetLabel()[0].GetValue()] = n
			}
		}
	}
	return found
}

// Every reason of the table is provoked by a request. The problem, the header WWW-Authenticate, the metric, the log
// line and docs/reference/auth-refusals.md contain the reason.
func TestEveryRefusalHasItsReason(t *testing.T) {
	k := newKeys(t)
	sections := documented(t)
	for _, want := range rest.Refusals {
		check := func(t *testing.T) { checkRefusal(t, want, k, sections) }
		if want.Reason == access.KeyLookups { // other requests wait for a fetch, which has a timeout
			check = func(t *testing.T) { synctest.Test(t, func(t *testing.T) { checkRefusal(t, want, k, sections) }) }
		}
		t.Run(string(want.Reason), check)
	}
	for section, rows := range sections {
		for reason := range rows {
			if !slices.ContainsFunc(rest.Refusals, func(r rest.Refusal) bool {
				return r.Section == section && string(r.Reason) == reason
			}) {
				t.Errorf("section %q of docs/reference/auth-refusals.md has %s, which is no reason", section, reason)
			}
		}
	}
	if len(provocations) != len(rest.Refusals) {
		t.Errorf("%d requests for %d reasons", len(provocations), len(rest.Refusals))
	}
}

// checkRefusal provokes a refusal, and checks everything that is made from its row of the table.
func checkRefusal(t *testing.T, want rest.Refusal, k keys, sections map[string]map[string]string) {
	t.Helper()
	provoke := provocations[want.Reason]
	if provoke == nil {
		t.Fatal("no request of this test is refused for this reason")
	}
	p := provoke(t, k)
	before := p.refused(t)
	p.logs.Reset()
	w := httptest.NewRecorder()
	p.ServeHTTP(w, p.request)
	answer := w.Result()
	p.check(t, p.request, answer, w.Body.Bytes())

	if want.Status != 0 && answer.StatusCode != want.Status {
		t.Errorf("status %d, want %d: %s", answer.StatusCode, want.Status, w.Body)
	}
	var problem rest.Problem
	err := json.Unmarshal(w.Body.Bytes(), &problem)
	if want.Status != 0 && (err != nil || problem.Reason != string(want.Reason) || problem.Detail != want.Text) {
		t.Errorf("the problem is %s, want reason %s and detail %s", w.Body, want.Reason, want.Text)
	}

	challenge := ""
	switch {
	case want.Code != "":
		challenge = fmt.Sprintf(`Bearer realm="stunner", error="%s", error_description="%s"`, want.Code, want.Text)
	case want.Status == http.StatusUnauthorized:
		challenge = `Bearer realm="stunner"`
	}
	if got := answer.Header.Get("WWW-Authenticate"); got != challenge {
		t.Errorf("WWW-Authenticate %s, want %s", got, challenge)
	}
	retry := want.Status == http.StatusServiceUnavailable || want.Status == http.StatusTooManyRequests
	if got := answer.Header.Get("Retry-After"); (got != "") != retry {
		t.Errorf("Retry-After %q", got)
	}

	counted := p.refused(t)
	counted[string(want.Reason)]--
	maps.DeleteFunc(counted, func(_ string, n float64) bool { return n == 0 })
	if !maps.Equal(counted, before) {
		t.Errorf("the metric has also changed from %v to %v", before, counted)
	}

	lines := p.audited()
	if len(lines) != 1 || lines[0]["reason"] != string(want.Reason) || lines[0]["level"] != want.Level.String() ||
		!strings.HasPrefix(lines[0]["text"], want.Text) || lines[0]["status"] != fmt.Sprint(answer.StatusCode) {
		t.Errorf("log lines %v, want one of level %s with reason and text", lines, want.Level)
	}

	status := fmt.Sprint(want.Status)
	if want.Status == 0 {
		status = "any"
	}
	if got := sections[want.Section][string(want.Reason)]; got != status {
		t.Errorf("section %q of docs/reference/auth-refusals.md has the status %q, want %q", want.Section, got, status)
	}
}

// documented returns the statuses of the reasons in the sections of docs/reference/auth-refusals.md.
func documented(t *testing.T) map[string]map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../../../docs/reference/auth-refusals.md")
	if err != nil {
		t.Fatal(err)
	}
	sections, section := map[string]map[string]string{}, ""
	row := regexp.MustCompile("^\\| `([a-z_]+)` \\| (\\w+) \\| .+ \\|$")
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			section = strings.TrimLeft(line, "# ")
		}
		if m := row.FindStringSubmatch(line); m != nil && strings.HasPrefix(section, "Refused ") {
			if sections[section] == nil {
				sections[section] = map[string]string{}
			}
			sections[section][m[1]] = m[2]
		}
	}
	return sections
}

// Each reason of package access is in the table. fail panics for any other reason.
func TestReasonsOfTokensAreInTheTable(t *testing.T) {
	source, err := os.ReadFile("../access/refusal.go")
	if err != nil {
		t.Fatal(err)
	}
	all := regexp.MustCompile(`Reason = "(\w+)"`).FindAllSubmatch(source, -1)
	if len(all) < 15 {
		t.Fatalf("%d reasons in access/refusal.go", len(all))
	}
	for _, m := range all {
		if !slices.ContainsFunc(rest.Refusals, func(r rest.Refusal) bool { return string(r.Reason) == string(m[1]) }) {
			t.Errorf("reason %s has no refusal", m[1])
		}
	}
}

// The texts contain only characters that an error_description may have (RFC 6750 §3). None of them needs to be escaped
// in the header.
func TestRefusalTextsNeedNoEscapingInTheHeader(t *testing.T) {
	allowed := regexp.MustCompile(`^[\x20-\x21\x23-\x5b\x5d-\x7e]+$`)
	for _, r := range rest.Refusals {
		if r.Code != "" && !allowed.MatchString(r.Text) {
			t.Errorf("%s: %q has a character that error_description does not admit", r.Reason, r.Text)
		}
	}
}

// An answer to a refused token contains neither the accepted values nor the claims of the token.
func TestRefusalsKeepSecrets(t *testing.T) {
	k := newKeys(t)
	for reason, provoke := range provocations {
		if !strings.HasPrefix(string(reason), "token_") && !strings.HasPrefix(string(reason), "key") ||
			reason == access.KeyLookups {
			continue
		}
		p := provoke(t, k)
		answer := p.do(t, p.request)
		answer.Header.Del("X-Request-Id") // random
		text := decodeText(t, answer) + fmt.Sprint(answer.Header)
		for _, secret := range []string{issuer, audience, "login.example.net", "elsewhere", "stranger", "ada", "ES256"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s: %q is in the answer %s", reason, secret, text)
			}
		}
	}
}

// The log has at most 20 lines a minute with one reason at its level. The next line has the number of suppressed lines.
// A request that gets credentials always has a line.
func TestLinesOfRefusalsAreLimited(t *testing.T) {
	c := &clock{now}
	s := newServiceWith(t, rest.Options{Policy: open(), Now: c.now}, gateways()...)
	levels := func() (all []string) {
		for _, line := range s.audited() {
			all = append(all, line["level"]+" "+line["msg"]+" "+line["reason"]+" "+line["suppressed"])
		}
		s.logs.Reset()
		return all
	}
	for range 50 {
		s.post(t, `{"tll":1}`)
	}
	s.post(t, `{"ttl":0}`)
	s.post(t, `{}`)
	unknown := func(level, suppressed string) string {
		return level + " refused request parameter_unknown " + suppressed
	}
	want := slices.Concat(slices.Repeat([]string{unknown("INFO", "")}, 20), slices.Repeat([]string{unknown("DEBUG", "")}, 30),
		[]string{"INFO refused request parameter_invalid ", "INFO gave credential  "})
	if got := levels(); !slices.Equal(got, want) {
		t.Errorf("lines %q, want %q", got, want)
	}
	c.at = c.at.Add(time.Minute)
	s.post(t, `{"tll":1}`)
	s.post(t, `{"tll":1}`)
	if got, want := levels(), []string{unknown("INFO", "30"), unknown("INFO", "")}; !slices.Equal(got, want) {
		t.Errorf("a minute later: %q, want %q", got, want)
	}
	if got := s.refused(t)["parameter_unknown"]; got != 52 {
		t.Errorf("the metric counts %v, want all 52", got)
	}
}

// Metrics.Refused counts the refusals of the last ten minutes, also over a pause.
func TestRefusalsOfTheLastMinutes(t *testing.T) {
	c := &clock{time.Unix(1_800_000_000, 0)} // a full minute
	s := newServiceWith(t, rest.Options{Policy: open(), Now: c.now}, gateways()...)
	for _, step := range []struct {
		after   time.Duration
		unknown int
		want    uint64
	}{
		{0, 3, 3}, {time.Minute, 2, 5}, {8 * time.Minute, 0, 5}, {time.Minute, 0, 2}, {time.Minute, 1, 1},
		{time.Hour, 0, 0}, {time.Hour, 4, 4}, {9 * time.Minute, 1, 5},
	} {
		c.at = c.at.Add(step.after)
		for range step.unknown {
			s.post(t, `{"tll":1}`)
		}
		if got := s.metrics.Refused(c.at)["parameter_unknown"]; got != step.want {
			t.Errorf("%s later: %d, want %d", step.after, got, step.want)
		}
	}
}
