package rest_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/auth/internal/grantlog"
	"github.com/stunner-gateway/stunner/services/auth/internal/rest"
)

// The log of grants has the user, the expiry and the caller of each credential, and never a password or the user name
// of a fixed credential. The API does not serve it.
func TestCredentialsAreLogged(t *testing.T) {
	k := newKeys(t)
	grants := grantlog.New(true, func() time.Time { return now })
	s := newServiceWith(t, rest.Options{
		Policy: k.policy(t), Rates: rates("10.9.0.0/16"), Gateways: patterns(t, "media/*", "short/*", "stun/*"),
	}, gateways()...)
	s.fleet.Replace(rest.Clusters{All: s.fleet.Clusters().All, GrantLogs: map[string]*grantlog.Log{"": grants}})
	r := postRequest(`{"ttl":600}`)
	r.RemoteAddr = "10.9.9.9:4000"
	r.Header.Set("X-Forwarded-For", "198.51.100.1:99")
	r.Header.Set("Authorization",
		"Bearer "+sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, with(map[string]any{"sub": "web:ada"})))
	answer := decode[rest.IceServers](t, s.do(t, r), http.StatusCreated)

	list := func(gateway string) (list inspection.GrantList, body string) {
		w := httptest.NewRecorder()
		grants.Requests().ServeHTTP(w, httptest.NewRequest("GET", "/grants?gateway="+gateway, nil))
		if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil {
			t.Fatalf("%s: %s", gateway, w.Body)
		}
		return list, w.Body.String()
	}
	for gateway, want := range map[string]string{
		"media/oslo":   "web%3Aada 1893453000:web%3Aada 2029-12-31T23:10:00Z 198.51.100.1 web:ada",
		"short/lived":  "web%3Aada 1893453000:web%3Aada 2029-12-31T23:10:00Z 198.51.100.1 web:ada",
		"media/bergen": "web%3Aada  0001-01-01T00:00:00Z 198.51.100.1 web:ada",
		"stun/only":    "",
	} {
		got, body := list(gateway)
		text := ""
		for _, g := range got.Grants {
			text += fmt.Sprint(g.User, " ", g.Username, " ", g.Expires.Format(time.RFC3339), " ", g.Source, " ", g.Caller)
		}
		if text != want {
			t.Errorf("%s: %s, want %s", gateway, text, want)
		}
		for _, server := range answer.IceServers {
			if server.Credential != nil && strings.Contains(body, *server.Credential) {
				t.Errorf("a password is in %s", body)
			}
		}
	}
	if status := s.get(t, "/grants?gateway=media/oslo").StatusCode; status < 400 {
		t.Errorf("the API answers %d", status)
	}
}
