package rest_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/auth/internal/rest"
)

// onlyOslo selects the gateway media/oslo, which has a shared secret.
const onlyOslo = `"gateways":[{"namespace":"media","name":"oslo"}]`

// caveats returns the caveats in the user names of an answer, by host, in their text form.
func caveats(t *testing.T, answer rest.IceServers) map[string]string {
	t.Helper()
	authority, found := credential.Authority{Realm: "stunner.l7mp.io", SharedSecret: "s3cret"}, map[string]string{}
	for _, server := range answer.IceServers {
		host := strings.Split(server.Urls[0], ":")[1]
		if server.Username == nil {
			found[host] = "none"
			continue
		}
		v, err := authority.Verify(*server.Username, time.Now(), 24*365*time.Hour)
		if err != nil {
			found[host] = err.Error()
			continue
		}
		if string(credential.Key(*server.Username, authority.Realm, credential.Secret(*server.Credential))) != string(v.Key) {
			t.Errorf("%s: wrong password", *server.Username)
		}
		found[host] = v.Caveats.String()
	}
	return found
}

// The scope of a request becomes caveats of each credential, with the name of its gateway. A gateway whose credentials
// cannot carry caveats is left out, unless the request names it.
func TestScopeOfARequest(t *testing.T) {
	s := newService(t, open(), gateways()...)
	got := caveats(t, decode[rest.IceServers](t, s.post(t,
		`{"scope":{"routes":["media/janus","media/sfu"],"allocations":2,"bytesPerSecond":3,"bytes":4,"notBefore":5}}`),
		http.StatusCreated))
	const limits = "~1~Rmedia_janus~Rmedia_sfu~G%s~A2~S3~B4~N5"
	for host, want := range map[string]string{
		"203.0.113.7": fmt.Sprintf(limits, "media_oslo"), "203.0.113.8": fmt.Sprintf(limits, "short_lived"),
		"203.0.113.9": "none",
	} {
		if got[host] != want {
			t.Errorf("%s: %s, want %s", host, got[host], want)
		}
		delete(got, host)
	}
	if len(got) != 0 {
		t.Errorf("gateways that cannot carry a scope: %v", got)
	}
	if got := caveats(t, decode[rest.IceServers](t, s.post(t, `{`+onlyOslo+`}`), 201)); got["203.0.113.7"] != "" {
		t.Errorf("without a scope: %v", got)
	}
	for body, want := range map[string]struct {
		status    int
		parameter string
	}{
		`{"scope":{}}`:                                                             {400, "scope"},
		`{"scope":[]}`:                                                             {400, "scope"},
		`{"scope":"routes"}`:                                                       {400, "scope"},
		`{"scope":{"routes":[]}}`:                                                  {400, "scope.routes"},
		`{"scope":{"routes":["janus"]}}`:                                           {400, "scope.routes[0]"},
		`{"scope":{"routes":["a/b","a/b"]}}`:                                       {400, "scope.routes[1]"},
		`{"scope":{"routes":["a/b~A9"]}}`:                                          {400, "scope.routes[0]"},
		`{"scope":{"allocations":0}}`:                                              {400, "scope.allocations"},
		`{"scope":{"bytes":-1}}`:                                                   {400, "scope.bytes"},
		`{"scope":{"bytes":1.5}}`:                                                  {400, "scope.bytes"},
		`{"scope":{"bytes":"1"}}`:                                                  {400, "scope.bytes"},
		`{"scope":{"bytes":9007199254740992}}`:                                     {400, "scope.bytes"},
		`{"scope":{"bytes":99999999999999999999}}`:                                 {400, "scope.bytes"},
		`{"scope":{"notBefore":253402300800}}`:                                     {400, "scope.notBefore"},
		`{"scope":{"bytes":1,"bytes":2}}`:                                          {400, "scope.bytes"},
		`{"scope":{"bytesPerSecond":0}}`:                                           {400, "scope.bytesPerSecond"},
		`{"scope":{"routes":["` + strings.Repeat(`a/b","`, 64) + `a/c"]}}`:         {400, "scope.routes"},
		`{"scope":{"routes":["` + longRoutes(9) + `"]}}`:                           {400, "scope.routes"},
		`{"scope":{"bytes":1},"gateways":[{"namespace":"media","name":"bergen"}]}`: {400, "scope"},
	} {
		wantProblem(t, s.post(t, body), want.status, want.parameter)
	}
}

// longRoutes returns routes that do not fit into a user name together, as the middle of a JSON list.
func longRoutes(n int) string {
	var routes []string
	for i := range n {
		routes = append(routes, fmt.Sprint("media/", strings.Repeat("a", 60), i))
	}
	return strings.Join(routes, `","`)
}

// The caveats in the claim are imposed on all calls of the API. A request only narrows them.
func TestScopeOfAToken(t *testing.T) {
	k := newKeys(t)
	s := newService(t, k.policy(t), gateways()...)
	token := func(claim string) string {
		return sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, with(map[string]any{"stunner": json.RawMessage(claim)}))
	}
	const claim = `{"gateways":["media/*"],"scope":{"routes":["media/a","media/b"],"allocations":3,"notBefore":9}}`
	for body, want := range map[string]string{
		`{` + onlyOslo + `}`: "~1~Rmedia_a~Rmedia_b~Gmedia_oslo~A3~N9",
		`{` + onlyOslo + `,"scope":{"routes":["media/b","media/c"]}}`:        "~1~Rmedia_b~Gmedia_oslo~A3~N9",
		`{` + onlyOslo + `,"scope":{"allocations":9,"notBefore":1}}`:         "~1~Rmedia_a~Rmedia_b~Gmedia_oslo~A3~N9",
		`{` + onlyOslo + `,"scope":{"allocations":2,"notBefore":10}}`:        "~1~Rmedia_a~Rmedia_b~Gmedia_oslo~A2~N10",
		`{` + onlyOslo + `,"scope":{"bytes":1,"bytesPerSecond":9000}}`:       "~1~Rmedia_a~Rmedia_b~Gmedia_oslo~A3~S9000~B1~N9",
		`{` + onlyOslo + `,"scope":{"routes":["media/a"],"allocations":10}}`: "~1~Rmedia_a~Gmedia_oslo~A3~N9",
	} {
		got := caveats(t, decode[rest.IceServers](t, s.ask(t, token(claim), body), http.StatusCreated))
		if got["203.0.113.7"] != want {
			t.Errorf("%s: %v, want %s", body, got, want)
		}
	}
	if got := caveats(t, decode[rest.IceServers](t, s.ask(t, token(claim), ``), 201)); len(got) != 1 {
		t.Errorf("gateways outside of the claim, or without a shared secret: %v", got)
	}
	for path, status := range map[string]int{
		"/?service=turn&namespace=media&gateway=oslo": 200, "/ice?namespace=media": 200,
		"/?service=turn&namespace=media&gateway=bergen": 400,
	} {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("Authorization", "Bearer "+token(claim))
		answer := s.do(t, r)
		if answer.StatusCode != status {
			t.Errorf("%s: %d, want %d", path, answer.StatusCode, status)
			continue
		}
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		if status == 200 && !strings.Contains(string(body), "~1~Rmedia_a~Rmedia_b~Gmedia_oslo~A3~N9") {
			t.Errorf("%s: no caveats", path)
		}
	}
	wantProblem(t, s.ask(t, token(claim), `{`+onlyOslo+`,"scope":{"routes":["media/c"]}}`), 403, "scope.routes")
	for _, invalid := range []string{
		`{}`, `{"scope":{}}`, `{"scope":null}`, `{"scope":[]}`, `{"scope":{"bytes":0}}`, `{"scope":{"bytes":null}}`,
		`{"scope":{"bytes":-1}}`, `{"scope":{"bytes":"1"}}`, `{"scope":{"bytes":1e400}}`, `{"scope":{"Bytes":1}}`,
		`{"scope":{"routes":[]}}`, `{"scope":{"routes":["a"]}}`, `{"scope":{"routes":"a/b"}}`, `{"scope":{"gateway":"a/b"}}`,
		`{"scope":{"bytes":1,"colour":2}}`, `{"scope":{"bytes":1},"Scope":{}}`, `{"scope":{"bytes":1},"other":1}`,
		`{"scope":{"bytes":1,"bytes":2}}`, `{"gateways":null}`, `{"gateways":"media/*"}`,
	} {
		answer := s.ask(t, token(invalid), `{}`)
		if answer.StatusCode != http.StatusUnauthorized {
			t.Errorf("claim %s: %d, want 401", invalid, answer.StatusCode)
		}
	}
}

// The scope of the policy limits the credentials of a caller with an API key, with a token that matches a rule, or
// without credentials. A token and a request can only narrow the scope.
func TestScopeOfThePolicy(t *testing.T) {
	const scope = "scope: {routes: [media/a, media/b], allocations: 3}"
	k := newKeys(t)
	token := func(claim string) string {
		return sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, with(map[string]any{"stunner": json.RawMessage(claim)}))
	}
	byKey := newService(t, keyPolicy(t, "shop", "secret", scope), gateways()...)
	byToken := newService(t, k.filePolicy(t, scope), gateways()...)
	byRule := newService(t, k.filePolicy(t, "scope: {bytes: 1}\nrules:\n- claims: {sub: ada}\n  "+scope), gateways()...)
	anonymous := newService(t, openPolicy(t, "version: v1\nopen: {"+scope+"}\n"), gateways()...)
	const narrow = `{` + onlyOslo + `,"scope":{"routes":["media/b"],"allocations":9}}`
	for name, tt := range map[string]struct {
		answer *http.Response
		want   string
	}{
		"key":            {byKey.ask(t, "secret", `{`+onlyOslo+`}`), "~1~Rmedia_a~Rmedia_b~Gmedia_oslo~A3"},
		"key, narrowed":  {byKey.ask(t, "secret", narrow), "~1~Rmedia_b~Gmedia_oslo~A3"},
		"token":          {byToken.ask(t, token(`["media/*"]`), `{`+onlyOslo+`}`), "~1~Rmedia_a~Rmedia_b~Gmedia_oslo~A3"},
		"claim narrows":  {byToken.ask(t, token(`{"scope":{"routes":["media/a"]}}`), `{`+onlyOslo+`}`), "~1~Rmedia_a~Gmedia_oslo~A3"},
		"claim is wider": {byToken.ask(t, token(`{"scope":{"allocations":9}}`), narrow), "~1~Rmedia_b~Gmedia_oslo~A3"},
		"rule":           {byRule.ask(t, token(`["media/*"]`), `{`+onlyOslo+`}`), "~1~Rmedia_a~Rmedia_b~Gmedia_oslo~A3"},
		"open":           {anonymous.post(t, narrow), "~1~Rmedia_b~Gmedia_oslo~A3"},
	} {
		if got := caveats(t, decode[rest.IceServers](t, tt.answer, http.StatusCreated)); got["203.0.113.7"] != tt.want {
			t.Errorf("%s: %v, want %s", name, got, tt.want)
		}
	}
	wantProblem(t, byKey.ask(t, "secret", `{`+onlyOslo+`,"scope":{"routes":["media/c"]}}`), 403, "scope.routes")
	apart := byToken.ask(t, token(`{"scope":{"routes":["media/c"]}}`), `{`+onlyOslo+`}`)
	if apart.StatusCode != http.StatusUnauthorized {
		t.Errorf("a claim without a route of the policy: %d, want 401", apart.StatusCode)
	}
}

// A user id cannot be read as caveats.
func TestUserIDIsNoCaveat(t *testing.T) {
	s := newService(t, open(), gateways()...)
	wantProblem(t, s.get(t, "/?service=turn&namespace=media&gateway=oslo&username=~1~Ra_b"), 400, "username")
	k := newKeys(t)
	s = newService(t, k.policy(t), gateways()...)
	token := sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, with(map[string]any{"sub": "~1~A9"}))
	answer := decode[rest.IceServers](t, s.ask(t, token, `{`+onlyOslo+`}`), http.StatusCreated)
	if name := *answer.IceServers[0].Username; !strings.HasSuffix(name, ":%7E1~A9") {
		t.Errorf("user name %s", name)
	}
}
