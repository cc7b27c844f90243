package rest_test

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
	"github.com/stunner-gateway/stunner/services/auth/internal/grantlog"
	"github.com/stunner-gateway/stunner/services/auth/internal/region"
	"github.com/stunner-gateway/stunner/services/auth/internal/rest"
)

// threeRegions is a service with a cluster in each of three regions. Each has gateway media/oslo, at an address of its
// own.
type threeRegions struct {
	*service
	clusters  gateway.Clusters
	grantLogs map[string]*grantlog.Log
	options   rest.Options
}

func newThreeRegions(t *testing.T, k keys) threeRegions {
	t.Helper()
	w := threeRegions{grantLogs: map[string]*grantlog.Log{}}
	for name, address := range map[string]string{"fra": "198.51.100.1", "iad": "198.51.100.2", "nrt": "198.51.100.3"} {
		c := &gateway.Cluster{
			Cluster:   region.Cluster{Name: name, Region: "region-" + name, Weight: 1},
			Directory: gateway.NewDirectory(name, func() time.Time { return now }, slog.New(slog.DiscardHandler)),
		}
		c.Apply(discovery.Event{ID: "media/oslo", Revision: "of-" + name, Config: config.Config{
			Version: config.Version, Admin: config.Admin{Name: "media/oslo"},
			Auth: config.Auth{Type: config.AuthEphemeral, Credentials: map[string]credential.Secret{config.KeySecret: "of-" + credential.Secret(name)}},
			Listeners: []config.Listener{{
				Name: "media/oslo/udp", Protocol: config.TURNUDP, PublicAddress: address, PublicPort: 3478, Port: 3478,
			}},
		}})
		w.clusters = append(w.clusters, c)
		w.grantLogs[name] = grantlog.New(true, func() time.Time { return now })
	}
	regions := region.NewMap([]region.Region{
		{Name: "region-fra", Networks: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}},
		{Name: "region-iad", Networks: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}},
		{Name: "region-nrt", Networks: []netip.Prefix{netip.MustParsePrefix("10.3.0.0/16")}},
	}, nil)
	w.options = rest.Options{
		Policy: k.policy(t),
		Fleet:  rest.NewFleet(rest.Clusters{All: w.clusters, Regions: regions, GrantLogs: w.grantLogs}),
		Rates:  rates("10.9.0.0/16"),
	}
	w.service = newServiceWith(t, w.options)
	return w
}

// ask sends a request with a token through a trusted proxy, and returns the names of the clusters in the answer.
func (w threeRegions) ask(t *testing.T, k keys, body, from string, claims map[string]any) string {
	t.Helper()
	r := postRequest(body)
	r.RemoteAddr = "10.9.9.9:4000"
	r.Header.Set("X-Forwarded-For", from)
	r.Header.Set("Authorization", "Bearer "+sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, with(claims)))
	var names []string
	for _, server := range decode[rest.IceServers](t, w.do(t, r), http.StatusCreated).IceServers {
		host := strings.Split(server.Urls[0], ":")[1]
		name := map[string]string{"198.51.100.1": "fra", "198.51.100.2": "iad", "198.51.100.3": "nrt"}[host]
		names = append(names, name)
		authority := credential.Authority{Realm: "stunner.l7mp.io", SharedSecret: "of-" + credential.Secret(name)}
		v, err := authority.Verify(*server.Username, now, 48*time.Hour)
		if err != nil || string(credential.Key(*server.Username, authority.Realm, credential.Secret(*server.Credential))) != string(v.Key) {
			t.Errorf("the credential for %s is not good there: %v", name, err)
		}
	}
	return strings.Join(names, " ")
}

// TestNearestRegionComesFirst: the first servers are in the region of the request, else of the token, else of the
// address of the client. Servers of another region follow.
func TestNearestRegionComesFirst(t *testing.T) {
	k := newKeys(t)
	w := newThreeRegions(t, k)
	wish := map[string]any{"stunner": map[string]any{"region": "region-iad"}}
	for name, tt := range map[string]struct {
		body, from string
		claims     map[string]any
		want       string
	}{
		"the address":                  {`{}`, "10.3.0.1", nil, "nrt fra"},
		"an address that is nowhere":   {`{}`, "192.0.2.1", nil, "fra iad"},
		"an address that is no text":   {`{}`, "unknown", nil, "fra iad"},
		"the token":                    {`{}`, "10.3.0.1", wish, "iad nrt"},
		"the request":                  {`{"region":"region-fra"}`, "10.3.0.1", wish, "fra nrt"},
		"a named gateway":              {`{` + onlyOslo + `}`, "10.2.0.1", nil, "iad fra"},
		"a region of the token is old": {`{}`, "10.3.0.1", map[string]any{"stunner": map[string]any{"region": "gone"}}, "nrt fra"},
		"region beside gateways": {`{}`, "10.3.0.1", map[string]any{"stunner": map[string]any{
			"region": "region-iad", "gateways": []string{"media/*"},
		}}, "iad nrt"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := w.ask(t, k, tt.body, tt.from, tt.claims); got != tt.want {
				t.Errorf("clusters %q, want %q", got, tt.want)
			}
		})
	}
	for body, message := range map[string]string{
		`{"region":"asia"}`: "is not known: use one of region-fra, region-iad, region-nrt", `{"region":""}`: "is not known",
	} {
		token := sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, with(nil))
		answer := w.service.ask(t, token, body)
		p := decode[rest.Problem](t, answer, http.StatusBadRequest)
		if e := (*p.Errors)[0]; e.Parameter != "region" || !strings.Contains(e.Message, message) {
			t.Errorf("%s: %+v", body, e)
		}
	}
	for _, claim := range []any{7, nil, []string{"region-fra"}} {
		token := sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, with(map[string]any{"stunner": map[string]any{"region": claim}}))
		if status := w.service.ask(t, token, `{}`).StatusCode; status != http.StatusForbidden && status != http.StatusUnauthorized {
			t.Errorf("claim region %v: status %d", claim, status)
		}
	}
	one := newService(t, k.policy(t), gateways()...)
	if got := one.ask(t, sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, with(nil)), `{"region":"region-fra"}`).StatusCode; got != 400 {
		t.Errorf("a service of one cluster answers a region with %d", got)
	}
}

// TestOperatorsSeeOnlyTheirOwnCluster: the status and the grants that an operator requests contain no data of other
// clusters. The audit log contains all grants.
func TestOperatorsSeeOnlyTheirOwnCluster(t *testing.T) {
	k := newKeys(t)
	w := newThreeRegions(t, k)
	w.ask(t, k, `{}`, "10.3.0.1", nil) // clusters nrt and fra issue credentials
	if logs := w.logs.String(); !strings.Contains(logs, "nrt/media/oslo") || !strings.Contains(logs, "fra/media/oslo") ||
		strings.Contains(logs, "iad/media/oslo") {
		t.Errorf("the audit log is %s", logs)
	}
	w.clusters[0].Apply(discovery.Event{Err: errors.New("away")})
	for _, c := range w.clusters {
		grants, status := httptest.NewRecorder(), httptest.NewRecorder()
		w.grantLogs[c.Name].Requests().ServeHTTP(grants, httptest.NewRequest("GET", "/grants?gateway=media/oslo", nil))
		if n := strings.Count(grants.Body.String(), `"username"`); n != map[string]int{"nrt": 1, "fra": 1}[c.Name] {
			t.Errorf("the operator of %s sees %d grants: %s", c.Name, n, grants.Body)
		}
		options := w.options
		options.Metrics, options.Now = w.metrics, func() time.Time { return now }
		rest.Status(options, c.Directory, "test").ServeHTTP(status, httptest.NewRequest("GET", "/status", nil))
		if body := status.Body.String(); strings.Count(body, `"of-`) != 1 || !strings.Contains(body, `"of-`+c.Name) {
			t.Errorf("the operator of %s sees %s", c.Name, body)
		}
	}
}
