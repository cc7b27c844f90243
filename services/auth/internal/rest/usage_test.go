package rest_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
	"github.com/stunner-gateway/stunner/services/auth/internal/region"
	"github.com/stunner-gateway/stunner/services/auth/internal/rest"
)

// operator is an operator whose Gateways have one pod each, in which ann has sent 10 bytes and bob 1 byte. If err is
// set, it does not answer.
type operator struct {
	err error

	mu    sync.Mutex
	asked []string
}

func (o *operator) Inspect(_ context.Context, id, path string, values url.Values) (inspection.List, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked = append(o.asked, id+"/"+path)
	q, err := inspection.ParseUsageQuery(values, now)
	if err != nil || o.err != nil {
		return inspection.List{}, errors.Join(err, o.err)
	}
	u := inspection.Usage{From: q.From, To: q.To, Since: now.Add(-30 * time.Minute)}
	for name, bytes := range map[string]uint64{"ann": 10, "bob": 1} {
		if q.User != "" && q.User != name {
			continue
		}
		e := inspection.UsageEntry{User: name, UsageFigures: inspection.UsageFigures{
			Sessions: 1, Seconds: 2.5, Sent: inspection.UsageCount{Bytes: bytes, Packets: 1},
		}}
		if u.Total.Add(e.UsageFigures); q.By == inspection.UsageByRoute {
			e.User, e.Route = "", "media/echo"
		}
		u.Entries = append(u.Entries, e)
	}
	body, err := json.Marshal(u)
	return inspection.List{Gateway: id, Items: []inspection.Item{{Pod: "p", Status: http.StatusOK, Body: body}}}, err
}

// usageService returns a service with the API key "secret" of shop. fields are further fields of the entry of shop in
// the policy. The service has an operator, unless the argument is nil.
func usageService(t *testing.T, fields string, of *operator) *service {
	c := rest.Clusters{Operators: map[string]discovery.Inspector{}}
	if of != nil {
		c.Operators[""] = of
	}
	s := newServiceWith(t, rest.Options{Policy: keyPolicy(t, "shop", "secret", fields)}, gateways()...)
	c.All = gateway.Clusters{{Directory: s.directory}}
	s.fleet.Replace(c)
	return s
}

func usageOf(fields, query string, of *operator) func(*testing.T, keys) provoked {
	return func(t *testing.T, _ keys) provoked {
		return provoked{usageService(t, fields, of), keyed(http.MethodGet, "/v1/usage"+query, "")}
	}
}

// The policy of a caller bounds whose usage it reads, and at which gateways. An unknown part of a request is an error:
// if it were ignored, the answer would include more than the caller asked for.
func TestUsage(t *testing.T) {
	const ago = "2029-12-31T22:"
	for name, tt := range map[string]struct {
		fields, query string
		status        int
		reason        string // of the refusal, or else the names of the entries
	}{
		"any":                   {"usage: any", "", 200, "ann bob"},
		"any, one user":         {"usage: any", "?user=bob", 200, "bob"},
		"any, a user of none":   {"usage: any", "?user=eve", 200, ""},
		"by gateway":            {"usage: any", "?by=gateway&namespace=media", 200, "media/bergen media/oslo media/pending"},
		"by gateway of a user":  {"usage: any", "?by=gateway&user=bob&namespace=media&gateway=oslo", 200, "media/oslo"},
		"by route":              {"usage: any", "?by=route", 200, "media/echo"},
		"limit":                 {"usage: any", "?limit=1", 200, "ann"},
		"a period":              {"usage: any", "?from=" + ago + "01:00Z&to=" + ago + "02:00Z", 200, "ann bob"},
		"until tomorrow":        {"usage: any", "?to=2030-01-01T22:01:00Z", 200, "ann bob"},
		"own fixed":             {"usage: own\nuser: ann", "", 200, "ann"},
		"own fixed, named":      {"usage: own\nuser: ann", "?user=ann", 200, "ann"},
		"own by route":          {"usage: own\nuser: ann", "?by=route", 200, "media/echo"},
		"own fixed, of another": {"usage: own\nuser: ann", "?user=bob", 403, "usage_not_allowed"},
		"own by prefix":         {"usage: own\nuser: an{username}", "?user=ann", 200, "ann"},
		"own of another":        {"usage: own\nuser: an{username}", "?user=bob", 403, "usage_not_allowed"},
		"own without a user":    {"usage: own\nuser: an{username}", "", 400, "parameter_missing"},
		"none":                  {"", "", 403, "usage_not_allowed"},
		"revoke is another":     {"revoke: any", "", 403, "usage_not_allowed"},
		"narrowed":              {"usage: any\ngateways: [media/o*]", "?by=gateway", 200, "media/oslo"},
		"outside":               {"usage: any\ngateways: [media/o*]", "?namespace=media&gateway=bergen", 403, "gateway_not_in_policy"},
		"another namespace":     {"usage: any\ngateways: [media/o*]", "?namespace=short", 403, "gateway_not_in_policy"},
		"no such gateway":       {"usage: any", "?namespace=media&gateway=none", 404, "gateway_unknown"},
		"no gateway left":       {"usage: any\ngateways: []", "", 404, "no_gateway"},
		"gateway alone":         {"usage: any", "?gateway=oslo", 400, "parameter_missing"},
		"an hour ago and more":  {"usage: any", "?from=2029-12-31T21:59:00Z", 400, "parameter_invalid"},
		"in the future":         {"usage: any", "?from=2030-01-01T01:00:00Z", 400, "parameter_invalid"},
		"backwards":             {"usage: any", "?from=" + ago + "02:00Z&to=" + ago + "01:00Z", 400, "parameter_invalid"},
		"no period":             {"usage: any", "?from=" + ago + "02:00Z&to=" + ago + "02:00Z", 400, "parameter_invalid"},
		"no time":               {"usage: any", "?from=1h", 400, "parameter_invalid"},
		"by nothing":            {"usage: any", "?by=listener", 400, "parameter_invalid"},
		"limit of 0":            {"usage: any", "?limit=0", 400, "parameter_invalid"},
		"limit of 1001":         {"usage: any", "?limit=1001", 400, "parameter_invalid"},
		"limit of text":         {"usage: any", "?limit=all", 400, "parameter_invalid"},
		"an empty user":         {"usage: any", "?user=", 400, "parameter_invalid"},
		"a long user":           {"usage: any", "?user=" + strings.Repeat("%C3%A9", 255), 400, "parameter_invalid"},
		"control characters":    {"usage: any", "?user=a%00", 400, "parameter_invalid"},
		"twice":                 {"usage: any", "?user=ann&user=bob", 400, "parameter_repeated"},
		"mistyped":              {"usage: any", "?usr=ann", 400, "parameter_unknown"},
		"another case":          {"usage: any", "?User=ann", 400, "parameter_unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			of := &operator{}
			s := usageService(t, tt.fields, of)
			w := s.do(t, keyed(http.MethodGet, "/v1/usage"+tt.query, ""))
			if tt.status != http.StatusOK {
				if p := decode[rest.Problem](t, w, tt.status); p.Reason != tt.reason {
					t.Errorf("%s", w.Body)
				}
				if len(of.asked) > 0 {
					t.Errorf("the operator was asked for %q", of.asked)
				}
				return
			}
			answer := decode[rest.Usage](t, w, http.StatusOK)
			var names []string
			for _, e := range answer.Entries {
				for _, name := range []*string{e.User, e.Gateway, e.Route} {
					if name != nil {
						names = append(names, *name)
					}
				}
			}
			if got := strings.Join(names, " "); got != tt.reason || !answer.Complete || answer.PodsAnswered != len(of.asked) {
				t.Errorf("entries %s of %s", got, w.Body)
			}
		})
	}
}

// The answer has the sums over gateways, its period in whole minutes, and the time since which the pods have counted.
// The audit log has one line about the request.
func TestUsageAnswer(t *testing.T) {
	s := usageService(t, "usage: any", &operator{})
	w := s.do(t, keyed(http.MethodGet, "/v1/usage?namespace=media&from=2029-12-31T22:00:30Z&to=2029-12-31T22:40:30Z", ""))
	sameJSON(t, w, `{"from":"2029-12-31T22:00:00Z","to":"2029-12-31T22:41:00Z","since":"2029-12-31T22:30:00Z",
		"total":{"sessions":6,"seconds":15,"sent":{"bytes":33,"packets":6},"received":{"bytes":0,"packets":0}},
		"entries":[
			{"user":"ann","sessions":3,"seconds":7.5,"sent":{"bytes":30,"packets":3},"received":{"bytes":0,"packets":0}},
			{"user":"bob","sessions":3,"seconds":7.5,"sent":{"bytes":3,"packets":3},"received":{"bytes":0,"packets":0}}],
		"podsAsked":3,"podsAnswered":3,"complete":true,"truncated":false}`)
	const want = `msg="gave usage" scope=audit gateways="[media/bergen media/oslo media/pending]" by=user ` +
		`from=2029-12-31T22:00:30Z to=2029-12-31T22:40:30Z pods="3 of 3" key=shop`
	if got := s.logs.String(); strings.Count(got, "scope=audit") != 1 || !strings.Contains(got, want) {
		t.Errorf("log %s, want %s", got, want)
	}
}

// A service with several clusters asks all of their operators, not only the operators near the caller. The answer
// reports that one of them is unreachable.
func TestUsageOfSeveralClusters(t *testing.T) {
	s := usageService(t, "usage: any", nil)
	frankfurt, tokyo := &operator{}, &operator{}
	c := rest.Clusters{Operators: map[string]discovery.Inspector{"frankfurt": frankfurt, "tokyo": tokyo}}
	for _, name := range []string{"frankfurt", "tokyo"} {
		d := gateway.NewDirectory(name, func() time.Time { return now }, slog.New(slog.DiscardHandler))
		d.Apply(discovery.Event{ID: "media/oslo", Config: gateways()[1]})
		c.All = append(c.All, &gateway.Cluster{Cluster: region.Cluster{Name: name, Region: name}, Directory: d})
	}
	s.fleet.Replace(c)
	ask := func() rest.Usage {
		w := s.do(t, keyed(http.MethodGet, "/v1/usage?by=gateway&namespace=media", ""))
		return decode[rest.Usage](t, w, http.StatusOK)
	}
	names := func(u rest.Usage) (names []string) {
		for _, e := range u.Entries {
			names = append(names, *e.Gateway)
		}
		return names
	}
	both := []string{"frankfurt/media/oslo", "tokyo/media/oslo"}
	if u := ask(); !u.Complete || u.PodsAsked != 2 || !slices.Equal(names(u), both) {
		t.Errorf("both: %+v", u)
	}
	tokyo.err = errors.New("connection refused")
	if u := ask(); u.Complete || u.PodsAsked != 1 || !slices.Equal(names(u), both[:1]) || u.Total.Sessions != 2 {
		t.Errorf("one is away: %+v", u)
	}
}

// A request selects a limited number of gateways, because each is a request to an operator.
func TestUsageOfManyGateways(t *testing.T) {
	of := &operator{}
	s := usageService(t, "usage: any", of)
	c := gateways()[1]
	for i := range 20 {
		c.Admin.Name = "many/g" + strings.Repeat("x", i)
		s.directory.Apply(discovery.Event{ID: c.Admin.Name, Config: c})
	}
	w := s.do(t, keyed(http.MethodGet, "/v1/usage?namespace=many", ""))
	want := rest.ParameterError{
		Parameter: "namespace", Message: "selects 20 gateways: select at most 16, with namespace and gateway",
	}
	if p := decode[rest.Problem](t, w, http.StatusBadRequest); len(of.asked) > 0 || (*p.Errors)[0] != want {
		t.Errorf("%s", w.Body)
	}
}
