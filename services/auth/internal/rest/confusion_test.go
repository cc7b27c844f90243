package rest_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/text/unicode/norm"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/auth/internal/rest"
)

// wish is the content of a request: a user, and limits of the credential.
type wish struct {
	user          string
	route, second string // empty means that the field is left out
	allocations   int64
	notBefore     int64
}

// body returns the request body of a wish.
func (w wish) body(t testing.TB, user bool) string {
	t.Helper()
	fields := map[string]any{"gateways": []map[string]string{{"namespace": "media", "name": "oslo"}}, "ttl": 60}
	if user {
		fields["username"] = w.user
	}
	if scope := w.scope(); len(scope) > 0 {
		fields["scope"] = scope
	}
	raw, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func (w wish) scope() map[string]any {
	scope := map[string]any{}
	if routes := slices.DeleteFunc([]string{w.route, w.second}, func(r string) bool { return r == "" }); len(routes) > 0 {
		scope["routes"] = routes
	}
	if w.allocations != 0 {
		scope["allocations"] = w.allocations
	}
	if w.notBefore != 0 {
		scope["notBefore"] = w.notBefore
	}
	return scope
}

// caveats returns the caveats of a credential that fulfills the wish.
func (w wish) caveats() credential.Caveats {
	c := credential.Caveats{Allocations: w.allocations, NotBefore: w.notBefore}
	c.Routes, _ = w.scope()["routes"].([]string)
	if !c.IsZero() {
		c.Gateway = "media/oslo"
	}
	return c
}

// asker sends a wish in one way. user returns the user id that the credential must have.
type asker struct {
	ask  func(testing.TB, wish) *http.Response
	user func(string) string
}

var (
	marked = regexp.MustCompile(`^~[0-9]+~`)
	hashed = regexp.MustCompile(`^sha256-[0-9a-f]{64}$`)
)

// fitted returns the user id of a text according to the documentation. A text that is too long or looks like a hash is
// hashed. A text that looks like caveats is escaped.
func fitted(text, id string) string {
	if marked.MatchString(id) {
		id = strings.Replace(id, "~", "%7E", 1)
	}
	if len(id) > 128 || hashed.MatchString(id) {
		return fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(text)))
	}
	return id
}

// askers are all ways in which a text of a caller becomes a user id, and limits become caveats.
func askers(t *testing.T) map[string]asker {
	t.Helper()
	k := newKeys(t)
	token := func(t testing.TB, claims map[string]any) string {
		t.Helper()
		return sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, with(claims))
	}
	named := func(s *service, key string) func(testing.TB, wish) *http.Response {
		return func(t testing.TB, w wish) *http.Response {
			t.Helper()
			s.logs.Reset()
			r := postRequest(w.body(t, true))
			if key != "" {
				as(r, key)
			}
			return s.do(t, r)
		}
	}
	anyone := newService(t, open(), gateways()...)
	shop := newService(t, keyPolicy(t, "shop", "secret", ""), gateways()...)
	tenant := newService(t, keyPolicy(t, "shop", "secret", `user: "~{username}"`), gateways()...)
	subject := newService(t, k.policy(t), gateways()...)
	claim := newService(t, k.filePolicy(t, `user: "{claim.tenant}"`), gateways()...)
	escaped := strings.NewReplacer("%", "%25", ":", "%3A")
	return map[string]asker{
		"open": {named(anyone, ""), func(text string) string { return norm.NFC.String(text) }},
		"API key": {named(shop, "secret"), func(text string) string {
			text = norm.NFC.String(text)
			return fitted(text, text)
		}},
		"template with the name": {named(tenant, "secret"), func(text string) string {
			text = "~" + norm.NFC.String(text)
			return fitted(text, text)
		}},
		"subject, limits in the body": {func(t testing.TB, w wish) *http.Response {
			t.Helper()
			return subject.do(t, as(postRequest(w.body(t, false)), token(t, map[string]any{"sub": w.user})))
		}, func(text string) string { return fitted(text, escaped.Replace(text)) }},
		"claim, limits in the token": {func(t testing.TB, w wish) *http.Response {
			t.Helper()
			claims := map[string]any{"tenant": w.user}
			if scope := w.scope(); len(scope) > 0 {
				claims["stunner"] = map[string]any{"scope": scope}
			}
			w = wish{}
			return claim.do(t, as(postRequest(w.body(t, false)), token(t, claims)))
		}, func(text string) string { return fitted(text, escaped.Replace(text)) }},
	}
}

// wishes are texts that a careless service would take for something else: for caveats, for an expiry, for a separator,
// or for another user.
var wishes = []wish{
	{user: "alice"}, {user: "alice", route: "media/janus", second: "media/livekit", allocations: 2, notBefore: 1893452400},
	// caveats in the user id
	{user: "~1~Rother_route"}, {user: "alice:~1~Rother_route", route: "media/janus"}, {user: "~1~A9", allocations: 1},
	{user: "~1~"}, {user: "~1"}, {user: "~~1~A9"}, {user: "a~1~A9"}, {user: "1~A9", route: "media/janus"}, {user: "~2~Z9"},
	{user: "~00000000001~A9"}, {user: "~\u0661~A9"}, {user: "\uff5e1\uff5eA9"}, {user: "\u223c1\u223cA9"}, {user: "\u02dc1~A9"},
	{user: "%7E1~A9"}, {user: "%7E1%7EA9"}, {user: "%257E1~A9"}, {user: "\x7e1\x7eA9"}, {user: " ~1~A9"}, {user: "\u200b~1~A9"},
	// separators
	{user: ":"}, {user: "a:b"}, {user: "a%3Ab"}, {user: "a%3ab"}, {user: "a\uff1ab"}, {user: "a\u2236b"}, {user: "a\ua789b"},
	// expiries
	{user: "1999999999"}, {user: "1999999999:alice"}, {user: "253402300799", allocations: 1}, {user: "01893456000"},
	{user: "\u0661\u0669\u0669\u0669\u0669\u0669\u0669\u0669\u0669\u0669"}, {user: "0"},
	// other users
	{user: "re\u0301mi"}, {user: "r\u00e9mi"}, {user: "\u212aelvin"}, {user: "\u0430lice"}, {user: "alice\u202e"}, {user: "al\u00adice"},
	{user: "alice\x00"}, {user: "alice\n"}, {user: "alice\x7f"}, {user: "alice\u0085"}, {user: "alice\ufffd"},
	{user: "sha256-" + strings.Repeat("0", 64)}, {user: strings.Repeat("u", 128)}, {user: strings.Repeat("u", 129)},
	{user: strings.Repeat("\u0344", 64)}, {user: strings.Repeat(":", 60)}, {user: strings.Repeat("%", 128)},
	// a caveat inside the value of another
	{user: "a", route: "media/janus~A9"}, {user: "a", route: "media/janus:~1~A9"}, {user: "a", route: "media_x/janus"},
	{user: "a", route: "media/janus_x"}, {user: "a", route: "media/janus/x"}, {user: "a", route: "Media/janus"},
	{user: "a", route: "media/j\u00e4nus"}, {user: "a", route: "media/\u0458anus"}, {user: "a", route: "media/janus\x00"},
	{user: "a", route: "media/janus", second: "media/janus"}, {user: "a", route: "*/*"}, {user: "a", route: "media/"},
	{user: "a", route: "media/%6aanus"}, {user: "a", route: "media/janus."}, {user: "a", route: "media/a..b"},
	{user: "a", route: strings.Repeat("n", 63) + "/" + strings.Repeat("r", 253), second: "a/b"},
	{user: strings.Repeat("u", 128), route: strings.Repeat("n", 63) + "/" + strings.Repeat("r", 253)},
	// numbers
	{user: "a", allocations: -1}, {user: "a", allocations: 1 << 53}, {user: "a", allocations: 1<<53 - 1}, {user: "a", allocations: -1 << 63},
	{user: "a", notBefore: 253402300799}, {user: "a", notBefore: 253402300800}, {user: "a", notBefore: 1<<63 - 1},
}

// check sends a wish, and checks that the signed user name gives the dataplane exactly the requested values, or that
// the request is refused.
func (a asker) check(t *testing.T, w wish) {
	t.Helper()
	answer := a.ask(t, w)
	if answer.StatusCode != http.StatusCreated {
		if answer.StatusCode >= 500 {
			t.Errorf("%#v: status %d", w, answer.StatusCode)
		}
		return
	}
	got := decode[rest.IceServers](t, answer, http.StatusCreated)
	authority := credential.Authority{Realm: "stunner.l7mp.io", SharedSecret: "s3cret"}
	for _, server := range got.IceServers {
		v, err := authority.Verify(*server.Username, now, 0)
		want := w.caveats()
		switch {
		case (err != nil) != (w.notBefore > now.Unix()) || err != nil && !errors.Is(err, credential.ErrNotYet):
			t.Errorf("%#v: %q is refused: %v", w, *server.Username, err)
		case string(credential.Key(*server.Username, authority.Realm, credential.Secret(*server.Credential))) != string(v.Key):
			t.Errorf("%#v: wrong password", w)
		}
		if wantUser := a.user(w.user); v.UserID != wantUser {
			t.Errorf("%#v: user id %q, want %q", w, v.UserID, wantUser)
		}
		if !reflect.DeepEqual(v.Caveats, want) {
			t.Errorf("%#v: caveats %+v, want %+v", w, v.Caveats, want)
		}
		if !v.Expires.Equal(*got.ExpiresAt) || v.Expires.Sub(now) != time.Minute {
			t.Errorf("%#v: until %s, want %s", w, v.Expires, got.ExpiresAt)
		}
		if strings.ContainsFunc(*server.Username, unicode.IsControl) {
			t.Errorf("%#v: control characters in %q", w, *server.Username)
		}
	}
}

// TestCaveatConfusion: for any text in a user name, a claim or a scope, and any way of sending it, the dataplane reads
// the same user, limits and expiry that the service has signed. Texts are also joined at random.
func TestCaveatConfusion(t *testing.T) {
	all := askers(t)
	for name, a := range all {
		t.Run(name, func(t *testing.T) {
			for _, w := range wishes {
				a.check(t, w)
			}
			r := rand.New(rand.NewPCG(12, 30))
			for range 300 {
				one, other := wishes[r.IntN(len(wishes))], wishes[r.IntN(len(wishes))]
				cut := []rune(other.user)
				at := r.IntN(len(cut) + 1)
				one.user = string(cut[:at]) + one.user + string(cut[at:])
				one.second, one.notBefore = other.route, other.notBefore
				a.check(t, one)
			}
		})
	}
}

// FuzzCaveatConfusion is TestCaveatConfusion for other texts.
func FuzzCaveatConfusion(f *testing.F) {
	for _, w := range wishes {
		f.Add(w.user, w.route, w.second, w.allocations, w.notBefore)
	}
	var all map[string]asker
	f.Fuzz(func(t *testing.T, user, route, second string, allocations, notBefore int64) {
		if all == nil {
			all = askers(t)
		}
		for _, name := range slices.Sorted(maps.Keys(all)) {
			// JSON replaces invalid UTF-8
			all[name].check(t, wish{string([]rune(user)), string([]rune(route)), string([]rune(second)), allocations, notBefore})
		}
	})
}
