package rest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/auth/internal/access"
	"github.com/stunner-gateway/stunner/services/auth/internal/rest"
)

// patterns are a set of gateways.
func patterns(t testing.TB, entries ...string) access.Gateways {
	t.Helper()
	set, err := access.ParseGateways(entries)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// manyGateways are gateways of several namespaces, each with an address of its own.
func manyGateways(ids ...string) (out []config.Config) {
	for i, id := range ids {
		c := gateways()[1]
		c.Admin = config.Admin{Name: id}
		c.Listeners = slices.Clone(c.Listeners[2:])
		c.Listeners[0].Name, c.Listeners[0].PublicAddress = id+"/udp", fmt.Sprintf("203.0.%d.%d", i/200, i%200+1)
		out = append(out, c)
	}
	return out
}

// hosts returns the hosts in an answer. They identify the gateways, because each of manyGateways has its own host.
func hosts(servers []rest.IceServer) (out []string) {
	for _, s := range servers {
		host, _, _ := strings.Cut(strings.TrimPrefix(s.Urls[0], "turn:"), ":")
		out = append(out, host)
	}
	return out
}

// J-05: no request gets a gateway outside of --gateways, and the answer does not show whether it exists.
func TestGatewaysOfTheService(t *testing.T) {
	k := newKeys(t)
	ids := []string{"calls/front", "calls/back", "team-a/front", "team-b/front", "stranger/front", "stranger/calls"}
	token := func(claim []string) string {
		claims := good()
		if claim != nil {
			claims["stunner"] = claim
		}
		return sign(t, jwt.SigningMethodES256, k.ec, "ec", nil, claims)
	}
	policies := [][]string{{"*/*"}, {"calls/*"}, {"calls/front", "team-*/front"}, {"nowhere/*"}, {"*/calls"}}
	claims := [][]string{
		nil, {}, {"*/*"}, {"calls/*", "stranger/*"}, {"stranger/front"}, {"*/front"}, {"team-a/front", "calls/back"},
	}
	for _, policy := range policies {
		s := newServiceWith(
			t, rest.Options{Policy: k.policy(t), Gateways: patterns(t, policy...)}, manyGateways(ids...)...,
		)
		empty := newServiceWith(
			t, rest.Options{Policy: k.policy(t), Gateways: patterns(t, policy...)}, manyGateways("elsewhere/other")...,
		)
		for _, claim := range claims {
			may := func(id string) bool {
				namespace, name, _ := strings.Cut(id, "/")
				return patterns(t, policy...).Contains(namespace, name) &&
					(claim == nil || patterns(t, claim...).Contains(namespace, name))
			}
			var want []string
			for _, id := range slices.Sorted(slices.Values(ids)) {
				if may(id) {
					want = append(want, fmt.Sprintf("203.0.0.%d", slices.Index(ids, id)+1))
				}
			}
			bearer, name := token(claim), fmt.Sprintf("--gateways %s, claim %q", policy, claim)
			ask := func(s *service, r *http.Request) *http.Response {
				r.Header.Set("Authorization", "Bearer "+bearer)
				return s.do(t, r)
			}

			all, ice, one := ask(s, postRequest(`{}`)), ask(s, httptest.NewRequest(http.MethodPost, "/ice", nil)), ask(
				s, httptest.NewRequest(http.MethodGet, "/?service=turn", nil),
			)
			if len(want) == 0 {
				for _, answer := range []*http.Response{all, ice, one} {
					if answer.StatusCode != http.StatusNotFound && answer.StatusCode != http.StatusForbidden {
						t.Errorf("%s: status %d with nothing to give", name, answer.StatusCode)
					}
				}
			} else {
				if got := hosts(
					decode[rest.IceServers](t, all, http.StatusCreated).IceServers,
				); !slices.Equal(got, want) {
					t.Errorf("%s: POST gives %s, want %s", name, got, want)
				}
				if got := hosts(decode[rest.IceConfig](t, ice, http.StatusOK).IceServers); !slices.Equal(got, want) {
					t.Errorf("%s: /ice gives %s, want %s", name, got, want)
				}
				if got := decode[rest.TurnAuth](t, one, http.StatusOK); !strings.Contains(got.Uris[0], want[0]) {
					t.Errorf("%s: / gives %s, want %s", name, got.Uris, want[0])
				}
			}
			for _, id := range ids {
				namespace, gateway, _ := strings.Cut(id, "/")
				body := `{"gateways":[{"namespace":"` + namespace + `","name":"` + gateway + `"}]}`
				post, get := ask(s, postRequest(body)), ask(
					s, httptest.NewRequest(http.MethodGet, "/ice?namespace="+namespace+"&gateway="+gateway, nil),
				)
				if may(id) {
					decode[rest.IceServers](t, post, http.StatusCreated)
					decode[rest.IceConfig](t, get, http.StatusOK)
					continue
				}
				wantProblem(t, get, http.StatusForbidden, "gateway")
				missing := ask(empty, postRequest(body))
				if there, gone := decodeText(t, post), decodeText(t, missing); post.StatusCode != http.StatusForbidden || missing.StatusCode != http.StatusForbidden || there != gone {
					t.Errorf("%s: %s is answered %s where it exists, and where it does not %s", name, id, there, gone)
				}
			}
		}
	}
}

// The refusal of a gateway outside of --gateways names the flag.
func TestRefusalNamesTheFlag(t *testing.T) {
	s := newServiceWith(t, rest.Options{Policy: open(), Gateways: patterns(t, "media/*")}, gateways()...)
	for _, answer := range []*http.Response{
		s.post(t, `{"gateways":[{"namespace":"stun","name":"only"}]}`), s.get(t, "/ice?namespace=stun"),
		s.get(t, "/?service=turn&namespace=stun&gateway=only"),
	} {
		if text := decodeText(t, answer); answer.StatusCode != http.StatusForbidden ||
			!strings.Contains(text, "--gateways") {
			t.Errorf("%d %s", answer.StatusCode, text)
		}
	}
}

// Gateways without a dataplane are last in each answer, and never left out.
func TestGatewaysWithoutDataplaneAreLast(t *testing.T) {
	s := newService(t, open(), gateways()...)
	first := func(target string) string {
		return decode[rest.TurnAuth](t, s.get(t, target), http.StatusOK).Uris[0]
	}
	order := func() (hosts []string) {
		for _, server := range decode[rest.IceServers](t, s.post(t, "{}"), http.StatusCreated).IceServers {
			hosts = append(hosts, strings.Split(server.Urls[0], ":")[1])
		}
		return hosts
	}
	for name, tt := range map[string]struct {
		idle  []string
		first string
		order []string
	}{
		"none": {nil, "198.51.100.20", []string{"198.51.100.20", "203.0.113.7", "203.0.113.8", "203.0.113.9"}},
		"one":  {[]string{"media/bergen"}, "203.0.113.7", []string{"203.0.113.7", "203.0.113.8", "203.0.113.9", "198.51.100.20"}},
		"two": {[]string{"media/bergen", "media/oslo"}, "203.0.113.8",
			[]string{"203.0.113.8", "203.0.113.9", "198.51.100.20", "203.0.113.7"}},
		"all": {[]string{"media/bergen", "media/oslo", "short/lived", "stun/only", "media/pending"}, "198.51.100.20",
			[]string{"198.51.100.20", "203.0.113.7", "203.0.113.8", "203.0.113.9"}},
	} {
		t.Run(name, func(t *testing.T) {
			s.directory.Apply(discovery.Event{List: &discovery.List{Complete: true, Idle: tt.idle}})
			if got := order(); !slices.Equal(got, tt.order) {
				t.Errorf("order %v, want %v", got, tt.order)
			}
			if got := first("/?service=turn&username=ada"); !strings.Contains(got, tt.first) {
				t.Errorf("the only gateway is %s, want %s", got, tt.first)
			}
			if got := first("/?service=turn&username=ada&namespace=media&gateway=oslo"); !strings.Contains(got, "203.0.113.7") {
				t.Errorf("a named gateway is %s", got)
			}
		})
	}
}

// A namespace with many gateways does not displace others, and the order is kept.
func TestNamespacesTakeTurns(t *testing.T) {
	var ids []string
	for i := range 150 {
		ids = append(ids, fmt.Sprintf("crowd/g%03d", i))
	}
	for i := range 3 {
		ids = append(ids, fmt.Sprintf("few/g%d", i))
	}
	for i := range 60 {
		ids = append(ids, fmt.Sprintf("some/g%03d", i))
	}
	s := newService(t, open(), manyGateways(ids...)...)
	for _, answer := range [][]rest.IceServer{
		decode[rest.IceServers](t, s.post(t, `{}`), http.StatusCreated).IceServers,
		decode[rest.IceConfig](t, s.get(t, "/ice"), http.StatusOK).IceServers,
	} {
		got := hosts(answer)
		var want []string
		for i, id := range ids {
			namespace, _, _ := strings.Cut(id, "/")
			if first := map[string]int{"crowd": 49, "few": 3, "some": 48}[namespace]; i < slices.IndexFunc(
				ids, func(s string) bool { return strings.HasPrefix(s, namespace) },
			)+first {
				want = append(want, fmt.Sprintf("203.0.%d.%d", i/200, i%200+1))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d gateways %s, want %d %s", len(got), got, len(want), want)
		}
	}
}

// J-08: the maximum of a gateway that the request does not name does not cause a refusal.
func TestMaximumOfAnUnnamedGatewayCausesNoRefusal(t *testing.T) {
	s := newService(t, open(), gateways()...)
	for _, servers := range [][]rest.IceServer{
		decode[rest.IceServers](t, s.post(t, `{"ttl":3600}`), http.StatusCreated).IceServers,
		decode[rest.IceConfig](t, s.get(t, "/ice?ttl=3600"), http.StatusOK).IceServers,
	} {
		for host, end := range map[string]int64{"203.0.113.7": 3600, "203.0.113.8": 600} {
			i := slices.Index(hosts(servers), host)
			if i < 0 || !strings.HasPrefix(*servers[i].Username, fmt.Sprintf("%d:", now.Unix()+end)) {
				t.Errorf("%s: want credentials for %d s, got %+v", host, end, servers)
			}
		}
	}
	wantProblem(t, s.post(t, `{"ttl":86401}`), http.StatusBadRequest, "ttl")
	wantProblem(
		t, s.post(t, `{"ttl":601,"gateways":[{"namespace":"short","name":"lived"}]}`), http.StatusBadRequest, "ttl",
	)
}

// J-08: the compatible calls clamp a ttl to the maximum of each gateway, and answer the clamped ttl.
func TestCompatibleCallsClampTheTTL(t *testing.T) {
	s := newService(t, open(), gateways()...)
	for target, want := range map[string]int64{
		"/?service=turn&namespace=media&gateway=oslo&ttl=86401":               86400,
		"/?service=turn&namespace=media&gateway=oslo&ttl=9223372036854775807": 86400,
		"/?service=turn&namespace=short&ttl=601":                              600,
		"/?service=turn&namespace=short&gateway=lived&ttl=599":                599,
	} {
		answer := decode[rest.TurnAuth](t, s.get(t, target), http.StatusOK)
		if answer.TTL != want || !strings.HasPrefix(answer.Username, fmt.Sprintf("%d:", now.Unix()+want)) {
			t.Errorf("%s: ttl %d, user name %s, want %d s", target, answer.TTL, answer.Username, want)
		}
	}
	for target, want := range map[string]int64{
		"/ice?namespace=short&ttl=86401":                      600,
		"/ice?namespace=media&gateway=oslo&ttl=604800&dtls=0": 86400,
	} {
		answer := decode[rest.IceConfig](t, s.get(t, target), http.StatusOK)
		if !strings.HasPrefix(*answer.IceServers[0].Username, fmt.Sprintf("%d:", now.Unix()+want)) {
			t.Errorf("%s: user name %s, want %d s", target, *answer.IceServers[0].Username, want)
		}
	}
}
