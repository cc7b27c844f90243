package rest_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/auth/internal/rest"
)

// J-12, J-17, J-18: valid requests get the answers of the contract, with headers against caching, and without gateways
// that have no address.
func TestIceServers(t *testing.T) {
	s := newService(t, open(), gateways()...)
	tests := map[string]struct {
		body      string
		urls      [][]string
		transport string
		expires   time.Duration
	}{
		"an empty body means defaults": {``, [][]string{bergen, oslo, lived, stun}, "all", 10 * time.Minute},
		"and so does an empty object": {
			`{}`, [][]string{bergen, oslo, lived, stun}, "all", 10 * time.Minute,
		},
		"named gateways come in the wanted order": {
			`{"gateways":[{"namespace":"stun","name":"only"},{"namespace":"media","name":"oslo"}]}`,
			[][]string{stun, oslo}, "all", 24 * time.Hour,
		},
		"one listener": {
			`{"gateways":[{"namespace":"media","name":"oslo","listener":"tcp"}],"ttl":60}`, [][]string{oslo[1:]}, "all",
			time.Minute,
		},
		"relay": {
			`{"transport":"relay","gateways":[{"namespace":"media","name":"oslo"}],"ttl":1}`, [][]string{oslo}, "relay",
			time.Second,
		},
		"DTLS when asked for": {
			`{"dtls":true,"gateways":[{"namespace":"media","name":"oslo"}]}`,
			[][]string{{oslo[0], "turns:203.0.113.7:5349?transport=udp", oslo[1]}}, "all", 24 * time.Hour,
		},
		"static credentials do not expire": {
			`{"gateways":[{"namespace":"media","name":"bergen"}]}`, [][]string{bergen}, "all", 0,
		},
		"J-17 one without address is left out": {
			`{"gateways":[{"namespace":"media","name":"pending"},{"namespace":"media","name":"bergen"}]}`,
			[][]string{bergen}, "all", 0,
		},
		"the largest ttl": {
			`{"ttl":86400,"gateways":[{"namespace":"media","name":"oslo"}]}`, [][]string{oslo}, "all", 24 * time.Hour,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := decode[rest.IceServers](t, s.post(t, tt.body), http.StatusCreated)
			var urls [][]string
			for _, server := range got.IceServers {
				urls = append(urls, server.Urls)
			}
			if diff := cmp.Diff(tt.urls, urls); diff != "" {
				t.Errorf("urls (-want +got):\n%s", diff)
			}
			if string(got.IceTransportPolicy) != tt.transport {
				t.Errorf("policy %q", got.IceTransportPolicy)
			}
			switch {
			case tt.expires == 0 && got.ExpiresAt != nil:
				t.Errorf("expires at %s", got.ExpiresAt)
			case tt.expires > 0 && (got.ExpiresAt == nil || !got.ExpiresAt.Equal(now.Add(tt.expires))):
				t.Errorf("expires at %v, want %s", got.ExpiresAt, now.Add(tt.expires))
			}
			switch {
			case tt.expires == 0 && got.TTL != nil:
				t.Errorf("ttl %d", *got.TTL)
			case tt.expires > 0 && (got.TTL == nil || *got.TTL != int64(tt.expires/time.Second)):
				t.Errorf("ttl %v, want %s", got.TTL, tt.expires)
			}
		})
	}
}

var (
	bergen = []string{"turn:198.51.100.20:3478?transport=udp"}
	oslo   = []string{"turn:203.0.113.7:3478?transport=udp", "turn:203.0.113.7:3478?transport=tcp"}
	lived  = []string{"turn:203.0.113.8:3478?transport=udp"}
	stun   = []string{"stun:203.0.113.9:3478"}
)

// J-08, J-12, J-14, J-15, J-16, J-17: each error in a body has its status and names its parameter.
func TestIceServersRefuses(t *testing.T) {
	s := newService(t, open(), gateways()...)
	const one = `"gateways":[{"namespace":"media","name":"oslo"}]`
	tests := map[string]struct {
		body      string
		status    int
		parameter string
	}{
		"J-08 ttl 0":                {`{"ttl":0}`, 400, "ttl"},
		"J-08 ttl -1":               {`{"ttl":-1}`, 400, "ttl"},
		"J-08 ttl 1.5":              {`{"ttl":1.5}`, 400, "ttl"},
		"J-08 ttl x":                {`{"ttl":"x"}`, 400, "ttl"},
		"J-08 ttl as text":          {`{"ttl":"60"}`, 400, "ttl"},
		"J-08 ttl 1e9":              {`{"ttl":1e9,` + one + `}`, 400, "ttl"},
		"J-08 ttl 1e400":            {`{"ttl":1e400}`, 400, "ttl"},
		"J-08 ttl NaN":              {`{"ttl":NaN}`, 400, "body"},
		"J-08 ttl above int64":      {`{"ttl":9223372036854775808}`, 400, "ttl"},
		"J-08 ttl at int64":         {`{"ttl":9223372036854775807,` + one + `}`, 400, "ttl"},
		"J-08 ttl at -int64":        {`{"ttl":-9223372036854775808}`, 400, "ttl"},
		"J-08 above the maximum":    {`{"ttl":86401,` + one + `}`, 400, "ttl"},
		"J-08 above the lifetime":   {`{"ttl":601,"gateways":[{"namespace":"short","name":"lived"}]}`, 400, "ttl"},
		"J-15 unknown transport":    {`{"transport":"RELAY"}`, 400, "transport"},
		"J-15 transport of no type": {`{"transport":7}`, 400, "transport"},
		"J-15 gateways no list":     {`{"gateways":{}}`, 400, "gateways"},
		"J-15 gateways empty":       {`{"gateways":[]}`, 400, "gateways"},
		"J-15 gateway null":         {`{"gateways":[null]}`, 400, "gateways[0]"},
		"J-15 gateway without name": {`{"gateways":[{"namespace":"media"}]}`, 400, "gateways[0].name"},
		"J-15 gateway as text":      {`{"gateways":["media/oslo"]}`, 400, "gateways"},
		"J-15 name too long": {
			`{"gateways":[{"namespace":"media","name":"` + strings.Repeat("x", 254) + `"}]}`, 400, "gateways[0].name",
		},
		"J-15 too many gateways": {
			`{"gateways":[` + strings.Repeat(`{"namespace":"a","name":"b"},`, 100) + `{"namespace":"a","name":"b"}]}`,
			400, "gateways",
		},
		"J-15 invalid UTF-8": {"{\"transport\":\"\xff\"}", 400, "body"},
		"J-15 no object":     {`[]`, 400, "body"},
		"J-15 broken JSON":   {`{"ttl":`, 400, "body"},
		"J-15 doubled":       {`{"ttl":60,"ttl":61}`, 400, "ttl"},
		"J-15 doubled deep": {
			`{"gateways":[{"namespace":"media","name":"oslo","name":"bergen"}]}`, 400, "gateways[0].name",
		},
		"J-15 two values": {`{} {}`, 400, "body"},
		"J-14 70 KiB":     {`{"colour":"` + strings.Repeat("b", 70<<10) + `"}`, 413, ""},
		"J-16 unknown gateway": {
			`{"gateways":[{"namespace":"media","name":"oslo"},{"namespace":"media","name":"atlantis"}]}`, 404,
			"gateways[1]",
		},
		"J-16 unknown listener": {
			`{"gateways":[{"namespace":"media","name":"oslo","listener":"quic"}]}`, 404, "gateways[0]",
		},
		"J-17 no public address": {`{"gateways":[{"namespace":"media","name":"pending"}]}`, 404, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) { wantProblem(t, s.post(t, tt.body), tt.status, tt.parameter) })
	}
	t.Run("a body where none is read is not looked at", func(t *testing.T) {
		decode[rest.IceConfig](
			t, s.do(t, httptest.NewRequest(http.MethodGet, "/ice", strings.NewReader("x=1"))), http.StatusOK,
		)
	})
	t.Run("a form is no JSON", func(t *testing.T) {
		r := postRequest(`{"ttl":60}`)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		wantProblem(t, s.do(t, r), http.StatusUnsupportedMediaType, "")
	})
}

// J-07, J-08, J-12, J-14, J-15, J-16, J-17: each error in a query has its status and names its parameter.
func TestQueryRefuses(t *testing.T) {
	s := newService(t, open(), gateways()...)
	tests := map[string]struct {
		target    string
		status    int
		parameter string
	}{
		"service is missing":           {"/", 400, "service"},
		"J-15 service of another case": {"/?service=TURN", 400, "service"},
		"J-15 unknown service":         {"/ice?service=stun", 400, "service"},
		"J-15 unknown policy":          {"/ice?iceTransportPolicy=none", 400, "iceTransportPolicy"},
		"J-15 doubled":                 {"/ice?ttl=1&ttl=2", 400, "ttl"},
		"J-15 doubled alike":           {"/?service=turn&service=turn", 400, "service"},
		"J-15 NUL":                     {"/ice?namespace=a%00b", 400, "namespace"},
		"J-15 invalid UTF-8":           {"/ice?namespace=%ff", 400, "namespace"},
		"J-15 invalid UTF-8 in a name": {"/ice?%ff=1", 400, "query"},
		"J-15 broken escape":           {"/ice?ttl=%zz", 400, "query"},
		"J-15 semicolon":               {"/ice?ttl=1;ttl=2", 400, "query"},
		"J-15 no boolean":              {"/ice?dtls=yes", 400, "dtls"},
		"gateway without namespace":    {"/ice?gateway=oslo", 400, "gateway"},
		"listener without gateway":     {"/ice?namespace=media&listener=udp", 400, "listener"},
		"J-15 empty namespace":         {"/ice?namespace=", 400, "namespace"},
		"public-addr with a port":      {"/ice?public-addr=192.0.2.1:80", 400, "public-addr"},
		"public-addr no address":       {"/ice?public-addr=300.1.1.1", 400, "public-addr"},
		"public-addr that injects":     {"/ice?public-addr=" + url.QueryEscape("a?transport=tcp"), 400, "public-addr"},
		"public-addr unspecified":      {"/ice?public-addr=0.0.0.0", 400, "public-addr"},
		"J-08 ttl 0":                   {"/?service=turn&ttl=0", 400, "ttl"},
		"J-08 ttl -1":                  {"/ice?ttl=-1", 400, "ttl"},
		"J-08 ttl 1.5":                 {"/ice?ttl=1.5", 400, "ttl"},
		"J-08 ttl 1e9":                 {"/ice?ttl=1e9", 400, "ttl"},
		"J-08 ttl NaN":                 {"/ice?ttl=NaN", 400, "ttl"},
		"J-08 ttl above int64":         {"/ice?ttl=9223372036854775808", 400, "ttl"},
		"J-07 an expiry as user name":  {"/ice?username=1999999999:evil", 400, "username"},
		"J-07 a colon":                 {"/?service=turn&username=a:b", 400, "username"},
		"J-07 CR LF":                   {"/ice?username=a%0D%0Ab", 400, "username"},
		"J-07 NUL":                     {"/ice?username=%00", 400, "username"},
		"J-07 129 bytes":               {"/ice?username=" + strings.Repeat("u", 129), 400, "username"},
		"J-07 129 bytes in 65 letters": {"/ice?username=u" + strings.Repeat("%C3%A9", 64), 400, "username"},
		"J-07 a lone surrogate":        {"/ice?username=%ED%A0%80", 400, "username"},
		"J-07 nobody":                  {"/ice?username=", 400, "username"},
		"J-16 unknown namespace":       {"/ice?namespace=atlantis", 404, "namespace"},
		"J-16 unknown gateway":         {"/?service=turn&namespace=media&gateway=atlantis", 404, "gateway"},
		"J-16 unknown listener":        {"/ice?namespace=media&gateway=oslo&listener=quic", 404, "listener"},
		"J-17 no public address":       {"/ice?namespace=media&gateway=pending", 404, ""},
		"STUN only has no credentials": {"/?service=turn&namespace=stun", 404, ""},
		"J-14 a URL of 9 KiB":          {"/ice?key=" + strings.Repeat("k", 9<<10), 414, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) { wantProblem(t, s.get(t, tt.target), tt.status, tt.parameter) })
	}
}

// J-15: an unknown parameter in the query of a compatible call is ignored.
func TestJ15UnknownParametersAreIgnored(t *testing.T) {
	s := newService(t, open(), gateways()...)
	answer := decode[rest.IceConfig](t, s.get(t, "/ice?colour=blue&namespace=stun"), http.StatusOK)
	if len(answer.IceServers) != 1 {
		t.Errorf("%+v", answer)
	}
}

// J-15: POST /v1/ice-servers refuses unknown fields, null and query parameters. A request with a mistyped name would
// otherwise get the credentials of all gateways.
func TestJ15UnknownFieldsAreRefused(t *testing.T) {
	s := newService(t, open(), gateways()...)
	const fields, ofGateway = "dtls, gateways, region, scope, stun, transport, ttl, username", "listener, name, namespace"
	const ofScope = "allocations, bytes, bytesPerSecond, notBefore, routes"
	for _, tt := range []struct{ query, body, parameter, message string }{
		{"", `{"gateway":[{"namespace":"media","name":"oslo"}]}`, "gateway", "is unknown: did you mean gateways? The fields are " + fields},
		{"", `{"tll":60}`, "tll", "is unknown: did you mean ttl? The fields are " + fields},
		{"", `{"TTL":60}`, "TTL", "is unknown: did you mean ttl? The fields are " + fields},
		{"", `{"ttl":60,"Ttl":"x"}`, "Ttl", "is unknown: did you mean ttl? The fields are " + fields},
		{"", `{"trans":"relay"}`, "trans", "is unknown: did you mean transport? The fields are " + fields},
		{"", `{"colour":{"blue":1}}`, "colour", "is unknown: the fields are " + fields},
		{"", `{"":1}`, "", "is unknown: the fields are " + fields},
		{"", `{"` + strings.Repeat("é", 100) + `":1}`, strings.Repeat("é", 64) + "…", "is unknown: the fields are " + fields},
		{"", `{"gateways":[{"namespace":"media","nmae":"oslo"}]}`, "gateways[0].nmae", "is unknown: did you mean name? The fields are " + ofGateway},
		{"", `{"gateways":[{"namespace":"media","name":"oslo"},{"namespace":"media","name":"oslo","port":7}]}`, "gateways[1].port", "is unknown: the fields are " + ofGateway},
		{"", `{"scope":{"route":["media/sfu"]}}`, "scope.route", "is unknown: did you mean routes? The fields are " + ofScope},
		{"", `{"scope":{"gateway":"media/oslo"}}`, "scope.gateway", "is unknown: the fields are " + ofScope},
		{"", `{"scope":{"Bytes":1}}`, "scope.Bytes", "is unknown: did you mean bytes? The fields are " + ofScope},
		{"", `{"scope":null}`, "scope", "is null: leave it out"},
		{"", `{"scope":{"bytes":null}}`, "scope.bytes", "is null: leave it out"},
		{"", `null`, "body", "is null: leave it out, or send an object"},
		{"", `{"gateways":null}`, "gateways", "is null: leave it out"},
		{"", `{"ttl":null}`, "ttl", "is null: leave it out"},
		{"", `{"tll":null}`, "tll", "is unknown: did you mean ttl? The fields are " + fields},
		{"", `{"gateways":[{"namespace":"media","name":"oslo","listener":null}]}`, "gateways[0].listener", "is null: leave it out"},
		{"?gateway=oslo", ``, "gateway", "is unknown: the path has no query parameters. The body has the fields " + fields},
		{"?ttl=60", `{"ttl":60}`, "ttl", "is unknown: the path has no query parameters. The body has the fields " + fields},
	} {
		r := httptest.NewRequest(http.MethodPost, "/v1/ice-servers"+tt.query, strings.NewReader(tt.body))
		r.Header.Set("Content-Type", "application/json")
		p := decode[rest.Problem](t, s.do(t, r), http.StatusBadRequest)
		if p.Errors == nil || (*p.Errors)[0].Parameter != tt.parameter || (*p.Errors)[0].Message != tt.message {
			t.Errorf("%s %s: %+v, want %s %s", tt.query, tt.body, p.Errors, tt.parameter, tt.message)
		}
	}
}

// J-15: answers do not repeat input unescaped.
func TestJ15NothingIsReflected(t *testing.T) {
	s := newService(t, open(), gateways()...)
	const bait = "<script>alert(1)</script>"
	for _, r := range []*http.Request{
		httptest.NewRequest(http.MethodGet, "/ice?service="+url.QueryEscape(bait), nil),
		httptest.NewRequest(http.MethodGet, "/ice?namespace="+url.QueryEscape(bait), nil),
		httptest.NewRequest(http.MethodGet, "/"+url.PathEscape(bait), nil),
		postRequest(`{"transport":"` + bait + `"}`),
		postRequest(`{"gateways":[{"namespace":"` + bait + `","name":"x"}]}`),
	} {
		p := decodeText(t, s.do(t, r))
		if strings.Contains(p, "<script>") {
			t.Errorf("%s %s: %s", r.Method, r.URL, p)
		}
	}
}

// J-07: a user name is normalised and has at most 128 bytes.
func TestJ07UserNames(t *testing.T) {
	s := newService(t, open(), gateways()...)
	for name, tt := range map[string]struct{ typed, want string }{
		"plain":                            {"alice", "alice"},
		"two ways to type one name":        {"re\u0301mi", "r\u00e9mi"},
		"a name that looks like an expiry": {"1999999999", "1999999999"},
		"128 bytes":                        {strings.Repeat("u", 128), strings.Repeat("u", 128)},
	} {
		t.Run(name, func(t *testing.T) {
			answer := decode[rest.TurnAuth](
				t, s.get(t, "/?service=turn&namespace=media&gateway=oslo&username="+url.QueryEscape(tt.typed)),
				http.StatusOK,
			)
			if _, user, _ := strings.Cut(answer.Username, ":"); user != tt.want {
				t.Errorf("user id %q, want %q", user, tt.want)
			}
		})
	}
}

// J-07: without tokens each answer of POST has a new user.
func TestJ07OpenPostMakesUpUsers(t *testing.T) {
	s := newService(t, open(), gateways()...)
	seen := map[string]bool{}
	for range 10 {
		answer := decode[rest.IceServers](
			t, s.post(t, `{"gateways":[{"namespace":"media","name":"oslo"}]}`), http.StatusCreated,
		)
		seen[*answer.IceServers[0].Username] = true
	}
	if len(seen) != 10 {
		t.Errorf("%d user names in 10 answers", len(seen))
	}
}

// J-10, J-18: the dataplane accepts the credentials of the service until their ttl has passed.
func TestJ10J18CredentialsVerify(t *testing.T) {
	s := newService(t, open(), gateways()...)
	authority := credential.Authority{Realm: "stunner.l7mp.io", SharedSecret: "s3cret"}
	random := rand.New(rand.NewPCG(1, 2))
	alphabet := []rune("abcXYZ019-_.@%+ éßñ漢字🙂")
	for range 100 {
		user := make([]rune, 1+random.IntN(20))
		for i := range user {
			user[i] = alphabet[random.IntN(len(alphabet))]
		}
		ttl := 1 + random.IntN(86400)
		target := fmt.Sprintf(
			"/?service=turn&namespace=media&gateway=oslo&ttl=%d&username=%s", ttl, url.QueryEscape(string(user)),
		)
		got := decode[rest.TurnAuth](t, s.get(t, target), http.StatusOK)
		verified, err := authority.Verify(got.Username, now, 0)
		if err != nil {
			t.Fatalf("%q: %v", got.Username, err)
		}
		if verified.Expires.Sub(now) != time.Duration(ttl)*time.Second || verified.UserID != string(user) {
			t.Errorf("%q: user %q until %s", got.Username, verified.UserID, verified.Expires)
		}
		key := credential.Key(got.Username, authority.Realm, credential.Secret(got.Password))
		if string(key) != string(verified.Key) {
			t.Errorf("%q: another key than the dataplane's", got.Username)
		}
	}
}

// J-16, R-25: before the first config every request gets 503 with Retry-After.
func TestJ16BeforeTheFirstConfig(t *testing.T) {
	s := newService(t, open())
	for _, r := range []*http.Request{
		postRequest(`{}`),
		httptest.NewRequest(http.MethodGet, "/ice", nil),
		httptest.NewRequest(http.MethodGet, "/?service=turn", nil),
	} {
		answer := s.do(t, r)
		if answer.Header.Get("Retry-After") == "" {
			t.Errorf("%s %s: no Retry-After", r.Method, r.URL)
		}
		wantProblem(t, answer, http.StatusServiceUnavailable, "")
	}
	s.directory.Apply(discovery.Event{ID: "media/oslo", Config: gateways()[1]})
	decode[rest.IceServers](t, s.post(t, `{}`), http.StatusCreated)
}

// J-16: while disconnected, the last config is used, and a header and a metric show its age.
func TestJ16StaleConfig(t *testing.T) {
	began := now
	defer func() { now = began }()
	s := newService(t, open(), gateways()...)
	s.directory.Apply(discovery.Event{Err: errors.New("connection lost")})
	now = now.Add(time.Hour)
	answer := s.post(t, `{}`)
	if age := answer.Header.Get("X-Config-Age"); age != "3600" {
		t.Errorf("X-Config-Age %q, want 3600", age)
	}
	decode[rest.IceServers](t, answer, http.StatusCreated)
	if age := s.metric(t, "stunner_config_age_seconds"); age != 3600 {
		t.Errorf("metric says %v", age)
	}
}

// The duration of a request is measured with two readings of the clock.
func TestMetricsMeasureTheDurationOfRequests(t *testing.T) {
	at := now
	s := newServiceWith(
		t, rest.Options{Policy: open(), Now: func() time.Time { at = at.Add(time.Second); return at }}, gateways()...,
	)
	if got := s.metric(t, "stunner_auth_request_duration_seconds"); got != 0 {
		t.Errorf("%v s before the first request", got)
	}
	begun := at
	s.get(t, "/no/such/path")
	if got, took := s.metric(t, "stunner_auth_request_duration_seconds"), at.Sub(begun).Seconds()-1; got != took ||
		took < 1 {
		t.Errorf("%v s, want %v", got, took)
	}
}

func TestMetricsCountRequestsAndCredentials(t *testing.T) {
	s := newService(t, open(), gateways()...)
	s.post(t, `{}`)
	s.post(t, `{"ttl":0}`)
	s.get(t, "/no/such/path")
	// of five gateways, one serves STUN and one has no address
	if got := s.metric(t, "stunner_auth_credentials_total"); got != 3 {
		t.Errorf("%v credentials", got)
	}
	if got := s.metric(t, "stunner_auth_requests_total"); got != 3 {
		t.Errorf("%v requests", got)
	}
}

// An answer of the TURN REST API contains one gateway and does not depend on the limits and credentials of others.
func TestTurnAuthIsAboutOneGateway(t *testing.T) {
	s := newService(t, open(), gateways()...)
	// short/lived gives 600 s
	if got := decode[rest.TurnAuth](t, s.get(t, "/?service=turn&ttl=7200"), http.StatusOK); got.Username != "bergen" {
		t.Errorf("answer %+v", got)
	}
	if got := s.metric(t, "stunner_auth_credentials_total"); got != 1 {
		t.Errorf("%v credentials", got)
	}
	if got := decode[rest.TurnAuth](t, s.get(t, "/?service=turn&ttl=7200&namespace=short"), http.StatusOK); got.TTL != 600 {
		t.Errorf("answer %+v, want the maximum of its gateway", got)
	}
}

func TestMessagesNameTheExpectedType(t *testing.T) {
	s := newService(t, open(), gateways()...)
	for body, want := range map[string]string{
		`[]`:          "must be an object",
		`{"ttl":"x"}`: "must be an integer of at least 1",
		`{"ttl":86401,"gateways":[{"namespace":"media","name":"oslo"}]}`: "must be at most 86400 for gateway media/oslo",
		`{"transport":7}`:           "must be a string",
		`{"transport":"none"}`:      "must be all or relay",
		`{"dtls":1}`:                "must be a boolean",
		`{"gateways":7}`:            "must be an array",
		`{"gateways":[7]}`:          "must be an object",
		`{"gateways":[{"name":7}]}`: "must be a string",
		`{"ttl":`:                   "is not JSON from byte 7 on",
	} {
		p := decode[rest.Problem](t, s.post(t, body), http.StatusBadRequest)
		if got := (*p.Errors)[0].Message; got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
}

func TestPanicIsAnAnswerAndALogLine(t *testing.T) {
	s := newService(t, nil, gateways()...) // a missing policy is a programming error
	w := httptest.NewRecorder()
	s.ServeHTTP(w, postRequest(`{}`))
	wantProblem(t, w.Result(), http.StatusInternalServerError, "")
	if !strings.Contains(s.logs.String(), "request panicked") {
		t.Errorf("log: %s", s.logs)
	}
	if got := s.metric(t, "stunner_auth_requests_total"); got != 1 {
		t.Errorf("%v requests are counted", got)
	}
}

func TestUnknownPathsAreNotFound(t *testing.T) {
	s := newService(t, open(), gateways()...)
	wantProblem(t, s.get(t, "/v1/ice"), http.StatusNotFound, "")
	wantProblem(t, s.get(t, "/demo/"), http.StatusNotFound, "")
	for target, allow := range map[string]string{"/v1/ice-servers": "POST", "/": "GET, POST", "/ice": "GET, POST"} {
		answer := s.do(t, httptest.NewRequest(http.MethodDelete, target, nil))
		if got := answer.Header.Get("Allow"); got != allow {
			t.Errorf("%s allows %q, want %q", target, got, allow)
		}
		wantProblem(t, answer, http.StatusMethodNotAllowed, "")
	}
}

// F-11, J-12, J-18: no body gives an answer outside the contract, a 5xx, or an answer that may be cached.
func FuzzIceServers(f *testing.F) {
	for _, body := range []string{
		``, `{}`, `{"ttl":60}`, `{"ttl":1e3}`, `{"ttl":null,"gateways":null}`, `{"transport":"relay","dtls":true}`,
		`{"gateways":[{"namespace":"media","name":"oslo","listener":"udp"}]}`,
		`{"gateways":[{"namespace":"\ud800","name":""}]}`, `"x"`, "\xff",
	} {
		f.Add(body)
	}
	s := newService(f, open(), gateways()...)
	f.Fuzz(func(t *testing.T, body string) {
		s.logs.Reset()
		if code := s.post(t, body).StatusCode; code >= 500 {
			t.Errorf("%d for %q: %s", code, body, s.logs)
		}
	})
}

// F-11, J-12, J-18: no query gives an answer outside the contract, a 5xx, or an answer that may be cached.
func FuzzIce(f *testing.F) {
	for _, query := range []string{
		"", "service=turn&username=alice&ttl=60", "namespace=media&gateway=oslo&listener=udp", "ttl=1&ttl=2", "%zz",
		"a=%00", "public-addr=::1", "dtls=&key=&api=",
	} {
		f.Add(query)
	}
	s := newService(f, open(), gateways()...)
	f.Fuzz(func(t *testing.T, query string) {
		s.logs.Reset()
		r := httptest.NewRequest(http.MethodGet, "/ice", nil)
		r.URL.RawQuery = query
		if code := s.do(t, r).StatusCode; code >= 500 {
			t.Errorf("%d for %q: %s", code, query, s.logs)
		}
	})
}
