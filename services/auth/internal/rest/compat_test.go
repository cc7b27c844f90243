package rest_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/auth/internal/rest"
)

const (
	cloudflare = "/compat/cloudflare/v1/turn/keys/shop/credentials/"
	twilio     = "/compat/twilio/2010-04-01/Accounts/AC5ef8732a3c49700934481addd5ce1659/Tokens.json"
)

func cloudflareRequest(path, body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	return as(r, "secret")
}

func twilioRequest(user, password, form string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, twilio, strings.NewReader(form))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.SetBasicAuth(user, password)
	return r
}

// shopService is a service with one ephemeral gateway, for the API key "secret" with the name shop.
func shopService(t *testing.T) *service {
	return newService(t, keyPolicy(t, "shop", "secret", ""), gateways()[1])
}

// plainJSON returns a body of JSON without its types.
func plainJSON(t *testing.T, answer *http.Response, status int) any {
	t.Helper()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if answer.StatusCode != status || json.Unmarshal(body, &v) != nil {
		t.Fatalf("status %d: %s", answer.StatusCode, body)
	}
	return v
}

func equalJSON(t *testing.T, got any, want string) {
	t.Helper()
	var parsed any
	if err := json.Unmarshal([]byte(want), &parsed); err != nil {
		t.Fatal(err)
	}
	g, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	w, err := json.Marshal(parsed)
	if err != nil {
		t.Fatal(err)
	}
	if string(g) != string(w) {
		t.Errorf("answer %s\nwant   %s", g, w)
	}
}

// The answers have the fields and types of Cloudflare's documentation: a list whose first element has the stun: URLs,
// and one object for the older call.
func TestContractCloudflare(t *testing.T) {
	s := shopService(t)
	const username, password = "1893456000:ada", "N3W2mG6xUQdvaBoeO/PWZEBw+kQ="
	answer := s.do(t, cloudflareRequest(cloudflare+"generate-ice-servers", `{"ttl":3600,"customIdentifier":"ada","new":1}`))
	got := plainJSON(t, answer, http.StatusCreated).(map[string]any)
	server := got["iceServers"].([]any)[1].(map[string]any)
	secret, _ := server["credential"].(string)
	if len(secret) != len(password) {
		t.Fatalf("credential %q", secret)
	}
	equalJSON(t, got, `{"iceServers":[
		{"urls":["stun:203.0.113.7:3478"]},
		{"urls":["turn:203.0.113.7:3478?transport=udp","turn:203.0.113.7:3478?transport=tcp"],
			"username":"`+username+`","credential":"`+secret+`"}]}`)
	answer = s.do(t, cloudflareRequest(cloudflare+"generate", `{"ttl":3600,"customIdentifier":"ada"}`))
	equalJSON(t, plainJSON(t, answer, http.StatusCreated), `{"iceServers":{
		"urls":["stun:203.0.113.7:3478","turn:203.0.113.7:3478?transport=udp","turn:203.0.113.7:3478?transport=tcp"],
		"username":"`+username+`","credential":"`+secret+`"}}`)
}

// The answer has the fields and types of Twilio's documentation: each URL is a server with url and urls, and ttl is a
// string.
func TestContractTwilio(t *testing.T) {
	s := shopService(t)
	got := plainJSON(t, s.do(t, twilioRequest("shop", "secret", "Ttl=3600")), http.StatusCreated).(map[string]any)
	username, _ := got["username"].(string)
	password, _ := got["password"].(string)
	if !strings.HasPrefix(username, "1893456000:") || password == "" {
		t.Fatalf("%v", got)
	}
	relay := func(url string) string {
		return `{"url":"` + url + `","urls":"` + url + `","username":"` + username + `","credential":"` + password + `"}`
	}
	date := now.UTC().Format(time.RFC1123Z)
	equalJSON(t, got, `{"account_sid":"AC5ef8732a3c49700934481addd5ce1659","date_created":"`+date+`","date_updated":"`+date+`",
		"ice_servers":[{"url":"stun:203.0.113.7:3478","urls":"stun:203.0.113.7:3478"},`+
		relay("turn:203.0.113.7:3478?transport=udp")+","+relay("turn:203.0.113.7:3478?transport=tcp")+`],
		"username":"`+username+`","password":"`+password+`","ttl":"3600"}`)
	if got := plainJSON(t, s.do(t, twilioRequest("shop", "secret", "")), http.StatusCreated).(map[string]any); got["ttl"] != "86400" {
		t.Errorf("ttl %v by default", got["ttl"])
	}
	short := newService(t, keyPolicy(t, "shop", "secret", "maxTTL: 60"), gateways()...)
	if got := plainJSON(t, short.do(t, twilioRequest("shop", "secret", "Ttl=3600")), http.StatusCreated).(map[string]any); got["ttl"] != "60" {
		t.Errorf("ttl %v, want the one of the credentials", got["ttl"])
	}
}

// J-15: requests of the other forms are checked as strictly, and answered without a 5xx.
func TestInvalidCompatRequestsAreRefused(t *testing.T) {
	s := shopService(t)
	form := func(text string) *http.Request { return twilioRequest("shop", "secret", text) }
	ice := func(body string) *http.Request { return cloudflareRequest(cloudflare+"generate-ice-servers", body) }
	changed := func(r *http.Request, change func(r *http.Request)) *http.Request { change(r); return r }
	for name, tt := range map[string]struct {
		request *http.Request
		status  int
		reason  string
	}{
		"a ttl of 0":            {ice(`{"ttl":0}`), 400, "parameter_invalid"},
		"a ttl of text":         {ice(`{"ttl":"60"}`), 400, "parameter_invalid"},
		"a ttl of 366 days":     {ice(`{"ttl":31622400}`), 400, "parameter_invalid"},
		"a repeated field":      {ice(`{"ttl":60,"ttl":61}`), 400, "parameter_repeated"},
		"null":                  {ice(`null`), 400, "parameter_invalid"},
		"a list":                {ice(`[]`), 400, "parameter_invalid"},
		"half of JSON":          {ice(`{`), 400, "body_unreadable"},
		"a user with a colon":   {ice(`{"customIdentifier":"1:2"}`), 400, "parameter_invalid"},
		"a query":               {cloudflareRequest(cloudflare+"generate?ttl=5", ""), 400, "parameter_unknown"},
		"another key":           {cloudflareRequest(strings.Replace(cloudflare, "shop", "web", 1)+"generate", ""), 403, "api_key_mismatch"},
		"a key with a path":     {cloudflareRequest(strings.Replace(cloudflare, "shop", "..%2Fshop", 1)+"generate", ""), 400, "parameter_invalid"},
		"a form for JSON":       {changed(ice(`ttl=5`), func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }), 415, "body_not_json"},
		"a wrong key":           {changed(ice(`{}`), func(r *http.Request) { as(r, "guess") }), 401, "api_key_unknown"},
		"basic at Cloudflare":   {changed(ice(`{}`), func(r *http.Request) { r.SetBasicAuth("shop", "secret") }), 401, "token_missing"},
		"another call":          {cloudflareRequest(cloudflare+"revoke", ""), 404, "path_unknown"},
		"a form ttl of 0":       {form("Ttl=0"), 400, "parameter_invalid"},
		"a form ttl of text":    {form("Ttl=1h"), 400, "parameter_invalid"},
		"a form ttl of 2^63":    {form("Ttl=9223372036854775808"), 400, "parameter_invalid"},
		"two form ttls":         {form("Ttl=1&Ttl=2"), 400, "parameter_repeated"},
		"half of an escape":     {form("Ttl=%"), 400, "body_unreadable"},
		"a ttl in the query":    {changed(form(""), func(r *http.Request) { r.URL.RawQuery = "Ttl=x" }), 400, "parameter_unknown"},
		"JSON for a form":       {changed(form(`{}`), func(r *http.Request) { r.Header.Set("Content-Type", "application/json") }), 415, "body_not_form"},
		"another user":          {twilioRequest("web", "secret", ""), 403, "api_key_mismatch"},
		"a wrong password":      {twilioRequest("shop", "guess", ""), 401, "api_key_unknown"},
		"an unknown user":       {twilioRequest("nobody", "guess", ""), 401, "api_key_unknown"},
		"no credentials at all": {changed(form(""), func(r *http.Request) { r.Header.Del("Authorization") }), 401, "token_missing"},
		"two credentials": {changed(form(""), func(r *http.Request) { r.Header.Add("Authorization", "Bearer secret") }), 401,
			"token_repeated"},
	} {
		t.Run(name, func(t *testing.T) {
			var p rest.Problem
			answer := s.do(t, tt.request)
			if err := json.NewDecoder(answer.Body).Decode(&p); err != nil || answer.StatusCode != tt.status || p.Reason != tt.reason {
				t.Errorf("status %d, reason %s, %v, want %d %s", answer.StatusCode, p.Reason, err, tt.status, tt.reason)
			}
		})
	}
	if text := s.logs.String(); strings.Contains(text, "secret") || strings.Contains(text, "guess") {
		t.Errorf("the log has a key:\n%s", text)
	}
}

// hostileCompat are requests that a service for one other form, or a careless parser, would answer wrongly.
var hostileCompat = []struct{ path, query, media, body string }{
	{cloudflare + "generate-ice-servers", "", "application/json", `{"ttl":3600,"customIdentifier":"ada"}`},
	{cloudflare + "generate-ice-servers", "", "application/json", `{"TTL":3600}`},
	{cloudflare + "generate-ice-servers", "", "application/json", `{"ttl":1e400}`},
	{cloudflare + "generate-ice-servers", "", "application/json", `{"ttl":-0}`},
	{cloudflare + "generate-ice-servers", "", "application/json", `{"ttl":3600.0}`},
	{cloudflare + "generate-ice-servers", "", "application/json", `{"ttl":null,"customIdentifier":null}`},
	{cloudflare + "generate-ice-servers", "", "application/json", `{"customIdentifier":"~1~A9"}`},
	{cloudflare + "generate-ice-servers", "", "application/json", `{"customIdentifier":"\u0000"}`},
	{cloudflare + "generate-ice-servers", "", "application/json", `{"customIdentifier":"\ud800"}`},
	{cloudflare + "generate-ice-servers", "", "application/json", strings.Repeat(`{"a":`, 10_000)},
	{cloudflare + "generate-ice-servers", "", "application/json", strings.Repeat("[", 60_000)},
	{cloudflare + "generate", "", "application/json; charset=utf-16", "\xff\xfe{\x00}\x00"},
	{cloudflare + "generate", "", "application/json, text/plain", "{}"},
	{cloudflare + "generate", "", "", "{}"},
	{cloudflare + "generate", "", "application/json", "{}{}"},
	{cloudflare + "generate/", "", "application/json", "{}"},
	{cloudflare + "generate", "key=secret", "application/json", "{}"},
	{"/compat/cloudflare/v1/turn/keys//credentials/generate", "", "application/json", "{}"},
	{"/compat/cloudflare/v1/turn/keys/shop/../web/credentials/generate", "", "application/json", "{}"},
	{"/compat/cloudflare/v1/turn/keys/sh\x00op/credentials/generate", "", "application/json", "{}"},
	{"/compat/cloudflare/v1/turn/keys/" + strings.Repeat("k", 5_000) + "/credentials/generate", "", "application/json", "{}"},
	{"/compat/cloudflare/v1/turn/keys/\u017fhop/credentials/generate", "", "application/json", "{}"},
	{"/compat/cloudflare/", "", "application/json", "{}"}, {"/compat/", "", "", ""}, {"/compat/twilio/" + cloudflare, "", "", ""},
	{twilio, "", "application/x-www-form-urlencoded", "Ttl=3600"},
	{twilio, "", "application/x-www-form-urlencoded", "ttl=3600"},
	{twilio, "", "application/x-www-form-urlencoded", "Ttl=+60"},
	{twilio, "", "application/x-www-form-urlencoded", "Ttl=0x10&Ttl%00=1"},
	{twilio, "", "application/x-www-form-urlencoded", "Ttl=60;Ttl=61"},
	{twilio, "", "application/x-www-form-urlencoded", "Ttl="},
	{twilio, "", "application/x-www-form-urlencoded", "Ttl=%F0%28%8C%28"},
	{twilio, "", "application/x-www-form-urlencoded", strings.Repeat("a=b&", 16_000)},
	{twilio, "", "application/x-www-form-urlencoded", strings.Repeat("&", 64<<10)},
	{twilio, "", "multipart/form-data; boundary=x", "--x\r\nContent-Disposition: form-data; name=\"Ttl\"\r\n\r\n60\r\n--x--"},
	{strings.Replace(twilio, "AC5ef", "..%2FAC5ef", 1), "", "application/x-www-form-urlencoded", ""},
	{twilio, "", "/", ""}, {twilio, "", "a/", "Ttl=60"}, {twilio, "", "a/b;c=%", ""}, {twilio, "Ttl=60", "/", ""},
	{twilio, "Ttl=60;Ttl=61", "", ""}, {twilio, "%", "application/x-www-form-urlencoded", ""},
	{twilio + ".json", "", "", ""}, {strings.TrimSuffix(twilio, ".json"), "", "", ""},
}

// askCompat sends a request in one of the other forms, with an API key in both of their ways, and checks the answer.
func askCompat(t *testing.T, s *service, path, query, media, body string) {
	t.Helper()
	s.logs.Reset()
	for name, identify := range map[string]func(*http.Request){
		"bearer": func(r *http.Request) { as(r, "secret") },
		"basic":  func(r *http.Request) { r.SetBasicAuth("shop", "secret") },
		"none":   func(*http.Request) {},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		r.URL.Path, r.URL.RawQuery = path, query
		if media != "" {
			r.Header.Set("Content-Type", media)
		}
		identify(r)
		answer := s.do(t, r)
		text := decodeText(t, answer)
		switch {
		case answer.StatusCode >= 500:
			t.Errorf("%s of %.80q: status %d, %s", name, path, answer.StatusCode, s.logs)
		case name == "none" && answer.StatusCode < 400:
			t.Errorf("%.80q is answered to everybody: %s", path, text)
		case strings.Contains(text, ":~1~"):
			t.Errorf("%.80q: the answer has caveats: %s", path, text)
		}
	}
}

// J-15: no request in another form gives a 5xx, an answer outside the contract, or credentials without a key.
func TestHostileCompatRequests(t *testing.T) {
	s := shopService(t)
	for _, each := range hostileCompat {
		askCompat(t, s, each.path, each.query, each.media, each.body)
	}
}

// FuzzCompat is TestHostileCompatRequests for other requests.
func FuzzCompat(f *testing.F) {
	for _, each := range hostileCompat {
		f.Add(each.path, each.query, each.media, each.body)
	}
	var s *service
	f.Fuzz(func(t *testing.T, path, query, media, body string) {
		if s == nil {
			s = shopService(t)
		}
		askCompat(t, s, path, query, media, body)
	})
}

// stun: true adds the stun: URL of each gateway that answers STUN over UDP, without credentials.
func TestSTUNOnRequest(t *testing.T) {
	s := newService(t, open(), gateways()...)
	var urls []string
	for _, server := range decode[rest.IceServers](t, s.post(t, `{"stun":true}`), http.StatusCreated).IceServers {
		for _, url := range server.Urls {
			if strings.HasPrefix(url, "stun:") {
				urls = append(urls, url)
				if server.Username != nil || len(server.Urls) != 1 {
					t.Errorf("%+v", server)
				}
			}
		}
	}
	want := []string{"stun:198.51.100.20:3478", "stun:203.0.113.7:3478", "stun:203.0.113.8:3478", "stun:203.0.113.9:3478"}
	if !slices.Equal(urls, want) {
		t.Errorf("URLs %q, want %q", urls, want)
	}
}

// An answer for web apps has at most five URLs of a gateway, of each protocol in turn, the best protocol first.
func TestURLsAreLimited(t *testing.T) {
	c := gateways()[1]
	c.Listeners = nil
	for i, p := range []config.Protocol{config.TURNUDP, config.TURNUDP, config.TURNUDP, config.TURNUDP, config.TURNTCP,
		config.TURNTCP, config.TURNTLS} {
		c.Listeners = append(c.Listeners, config.Listener{Name: "media/oslo/" + string(rune('a'+i)), Protocol: p,
			PublicAddress: "203.0.113.7", PublicPort: 1000 + i, Port: 1000 + i})
	}
	s := newServiceWith(t, rest.Options{Policy: open(), MaxURLs: 5}, c)
	want := []string{"turn:203.0.113.7:1000?transport=udp", "turn:203.0.113.7:1001?transport=udp",
		"turn:203.0.113.7:1004?transport=tcp", "turn:203.0.113.7:1005?transport=tcp", "turns:203.0.113.7:1006?transport=tcp"}
	if got := decode[rest.IceServers](t, s.post(t, `{}`), http.StatusCreated).IceServers[0].Urls; !slices.Equal(got, want) {
		t.Errorf("URLs %q, want %q", got, want)
	}
	if got := decode[rest.IceConfig](t, s.get(t, "/ice"), http.StatusOK).IceServers[0].Urls; len(got) != 7 {
		t.Errorf("URLs %q, want those of all listeners for older clients", got)
	}
}

// Schemas of requests have no defaults: some generators make such fields mandatory, and refuse {ttl: 600}.
func TestContractRequestsHaveNoDefaults(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromFile("../../../../openapi/auth.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var checked int
	check := func(name string, s *openapi3.SchemaRef) {
		if checked++; s.Value.Default != nil {
			t.Errorf("%s has a default", name)
		}
	}
	for name, s := range doc.Components.Schemas {
		check(name, s)
		for field, p := range s.Value.Properties {
			check(name+"."+field, p)
		}
	}
	for name, p := range doc.Components.Parameters {
		check(name, p.Value.Schema)
	}
	if checked < 40 {
		t.Errorf("%d schemas", checked)
	}
}

// GET /openapi.json is the contract, for every caller.
func TestContractIsServed(t *testing.T) {
	s := newService(t, keyPolicy(t, "shop", "secret", ""))
	answer := s.do(t, httptest.NewRequest(http.MethodGet, "/openapi.json", nil))
	raw, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("%v, status %d", err, answer.StatusCode)
	}
	served, err := openapi3.NewLoader().LoadFromData(raw)
	if err != nil {
		t.Fatal(err)
	}
	written, err := openapi3.NewLoader().LoadFromFile("../../../../openapi/auth.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(served)
	if err != nil {
		t.Fatal(err)
	}
	want, err := json.Marshal(written)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error("/openapi.json is not openapi/auth.yaml: run make gen")
	}
}
