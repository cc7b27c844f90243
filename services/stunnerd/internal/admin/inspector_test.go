package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// address is a client with an address only.
type address struct {
	session.Client
	netip.AddrPort
}

func (a address) Addr() netip.AddrPort { return a.AddrPort }

// call adds a session that began n minutes ago.
func call(table *session.Table, n int, listener, user, client string) {
	s := &session.Session{
		Client:   address{AddrPort: netip.MustParseAddrPort(client)},
		Listener: listener, Protocol: config.TURNTLS, Username: "1900000000:" + user, UserID: user,
		Relay:   netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(50_000+n)),
		Started: time.Now().Add(-time.Duration(n) * time.Minute), Channels: func() int { return n },
	}
	s.Traffic.Rx.Add(100 * n)
	s.Traffic.Tx.Add(10 * n)
	table.Add(s)
}

// inspected is an inspector over three calls of two users.
func inspected(a Access) *Inspector {
	table, m := session.NewTable(), meter.New()
	call(table, 1, "media/edge/udp", "ann", "198.51.100.7:1111")
	call(table, 3, "media/edge/udp", "bob", "198.51.100.8:2222")
	call(table, 2, "media/edge/tls", "ann", "198.51.100.7:3333")
	client := netip.MustParseAddrPort("198.51.100.7:1111")
	m.RefuseNote(meter.UnknownUser, meter.Note{Listener: "media/edge/tls", Client: client, User: "eve\nlevel=ERROR"})
	m.DropNote(meter.PeerDenied, meter.Note{
		Listener: "media/edge/udp", Client: client, User: "1900000000:ann",
		Peer: netip.MustParseAddrPort("10.0.0.7:53"),
	})
	listeners := func() []config.Listener {
		return []config.Listener{{Name: "media/edge/udp", Routes: []string{"media/sfu"}}}
	}
	reach := func(netip.AddrPort) []inspection.ListenerReach {
		return []inspection.ListenerReach{{Listener: "media/edge/udp", Allowed: true}, {Listener: "media/edge/tls"}}
	}
	end := func(selected func(*session.Session) bool) (ended []*session.Session) {
		for _, s := range table.List() {
			if selected(s) {
				table.Remove(s)
				ended = append(ended, s)
			}
		}
		return ended
	}
	status := func() inspection.Status { return inspection.Status{Version: "v1"} }
	used := func(q inspection.UsageQuery) inspection.Usage {
		u := inspection.Usage{From: q.From, To: q.To, Entries: []inspection.UsageEntry{}}
		for _, name := range []string{"ann", "bob"} {
			if q.User == "" || q.User == name {
				u.Entries = append(u.Entries, inspection.UsageEntry{User: name})
			}
		}
		return u
	}
	return NewInspector(Process{
		Usage:    used,
		Sessions: table, Meter: m, Listeners: listeners, Reach: reach, End: end, Status: status,
	}, a)
}

// ask sends a request from an address.
func ask(h http.Handler, from, method, target string, header http.Header) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, nil)
	r.RemoteAddr, r.Header, r.Host = from, header, "localhost:8086"
	if host := header.Get("Host"); host != "" {
		r.Host = host
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func read[T any](t *testing.T, h http.Handler, target string) (list T) {
	t.Helper()
	w := ask(h, "127.0.0.1:9", "GET", target, nil)
	if w.Code != http.StatusOK || w.Header().Get("Cache-Control") != "no-store" {
		t.Fatalf("%s: %d %s", target, w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	return list
}

func TestSessionsAreShownOldestFirst(t *testing.T) {
	list := read[inspection.SessionList](t, inspected(Access{Users: true}).Sessions(), "/sessions")
	if len(list.Sessions) != 3 || list.Total != 3 {
		t.Fatalf("%+v", list)
	}
	s := list.Sessions[0]
	if s.Started.IsZero() || s.ID == "" {
		t.Errorf("session %+v", s)
	}
	if read := time.Unix(0, s.Stats.Rx.Timestamp); s.Stats.Tx.Timestamp != s.Stats.Rx.Timestamp ||
		time.Since(read).Abs() > time.Minute {
		t.Errorf("counters read at %s", read)
	}
	s.Started, s.ID, s.Stats.Rx.Timestamp, s.Stats.Tx.Timestamp = time.Time{}, "", 0, 0
	want := inspection.Session{
		Listener: "media/edge/udp", Protocol: config.TURNTLS, User: "bob", Client: "198.51.100.8:2222",
		Relay: "192.0.2.1:50003", Age: "3m0s", Channels: 3,
	}
	want.Stats.Rx.Packets, want.Stats.Rx.Bytes, want.Stats.Tx.Packets, want.Stats.Tx.Bytes = 1, 300, 1, 30
	if !reflect.DeepEqual(s, want) {
		t.Errorf("oldest %+v, want %+v", s, want)
	}
	if list.Sessions[1].Age != "2m0s" || list.Sessions[2].Age != "1m0s" {
		t.Errorf("not oldest first: %+v", list.Sessions)
	}
}

// T-20: hashes show which calls have the same user or client, but do not show the user or client.
func TestHashesOfUsersAndClientsAreComparable(t *testing.T) {
	i := inspected(Access{})
	list := read[inspection.SessionList](t, i.Sessions(), "/sessions").Sessions
	hash := regexp.MustCompile(`^[0-9a-f]{12}$`)
	for _, s := range list {
		if !hash.MatchString(s.User) || !hash.MatchString(s.Client) || !hash.MatchString(s.ID) {
			t.Errorf("session %+v", s)
		}
	}
	bob, ann, again := list[0], list[1], list[2]
	if ann.User != again.User || ann.Client != again.Client || ann.User == bob.User || ann.Client == bob.Client ||
		ann.ID == again.ID {
		t.Errorf("ann %+v and %+v, bob %+v", ann, again, bob)
	}
	if drop := read[inspection.RefusalList](t, i.Refusals(), "/refusals").Refusals[0]; drop.User != ann.User ||
		drop.Client != ann.Client {
		t.Errorf("the drop is not seen as ann's: %+v", drop)
	}
	if twice := read[inspection.SessionList](t, i.Sessions(), "/sessions").Sessions; twice[0].ID != bob.ID ||
		twice[0].User != bob.User {
		t.Error("a session changes its id")
	}
	if other := read[inspection.SessionList](t, inspected(Access{}).Sessions(), "/sessions").Sessions; other[0].User == bob.User {
		t.Error("two processes have the same key")
	}
	for _, h := range []http.Handler{i.Sessions(), i.Refusals()} {
		body := ask(h, "127.0.0.1:9", "GET", "/", nil).Body.String()
		for _, secret := range []string{`"ann"`, `"bob"`, "1900000000", "eve", "198.51.100."} {
			if strings.Contains(body, secret) {
				t.Errorf("%s stands in %s", secret, body)
			}
		}
	}
}

func TestFiltersAndLimitsChooseSessions(t *testing.T) {
	h := inspected(Access{Users: true}).Sessions()
	for target, want := range map[string]string{
		"/sessions":                                  "3 of 3",
		"/sessions?limit=1":                          "1 of 3",
		"/sessions?limit=1000":                       "3 of 3",
		"/sessions?user=ann":                         "2 of 2",
		"/sessions?listener=media/edge/udp":          "2 of 2",
		"/sessions?listener=media/edge/udp&user=bob": "1 of 1",
		"/sessions?user=nobody":                      "0 of 0",
	} {
		list := read[inspection.SessionList](t, h, target)
		if got := fmt.Sprintf("%d of %d", len(list.Sessions), list.Total); got != want {
			t.Errorf("%s: %s, want %s", target, got, want)
		}
	}
	for target, want := range map[string]string{
		"/sessions?limit=0":    `limit "0": use 1 to 1000`,
		"/sessions?limit=1001": `limit "1001": use 1 to 1000`,
		"/sessions?limit=many": `limit "many"`,
		"/sessions?limit=":     `limit ""`,
		"/sessions?users=ann":  `unknown parameter "users"`,
	} {
		if w := ask(h, "127.0.0.1:9", "GET", target, nil); w.Code != http.StatusBadRequest ||
			!strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s", target, w.Code, w.Body)
		}
	}
}

func TestOnlyThisHostHasAccessByDefault(t *testing.T) {
	cases := map[string]struct {
		from   string
		header http.Header
		want   int
	}{
		"IPv4 loopback":          {"127.0.0.1:1", nil, 200},
		"IPv6 loopback":          {"[::1]:1", nil, 200},
		"IPv4 loopback in IPv6":  {"[::ffff:127.0.0.1]:1", nil, 200},
		"another host":           {"10.1.2.3:1", nil, 403},
		"another host, IPv6":     {"[2001:db8::1]:1", nil, 403},
		"another host in IPv6":   {"[::ffff:10.1.2.3]:1", nil, 403},
		"through a proxy":        {"127.0.0.1:1", http.Header{"X-Forwarded-For": {"10.1.2.3"}}, 403},
		"through a modern proxy": {"127.0.0.1:1", http.Header{"Forwarded": {"for=10.1.2.3"}}, 403},
		"through a mesh":         {"127.0.0.6:1", nil, 403},
		"by address":             {"127.0.0.1:1", http.Header{"Host": {"127.0.0.1:8086"}}, 200},
		"by IPv6 address":        {"[::1]:1", http.Header{"Host": {"[::1]:8086"}}, 200},
		"by address, no port":    {"[::1]:1", http.Header{"Host": {"[::1]"}}, 200},
		"a page's own name":      {"127.0.0.1:1", http.Header{"Host": {"rebound.example:8086"}}, 403},
		"no address":             {"@", nil, 403},
	}
	closed, open := inspected(Access{}), inspected(Access{Anywhere: true})
	for name, c := range cases {
		for _, h := range []http.Handler{closed.Sessions(), closed.Refusals()} {
			w := ask(h, c.from, "GET", "/", c.header)
			if w.Code != c.want || c.want == 403 && !strings.Contains(w.Body.String(), "--sessions-from=any") {
				t.Errorf("%s: %d %s", name, w.Code, w.Body)
			}
		}
		for _, h := range []http.Handler{open.Sessions(), open.Refusals()} {
			if w := ask(h, c.from, "GET", "/", c.header); w.Code != 200 {
				t.Errorf("%s, open to all: %d %s", name, w.Code, w.Body)
			}
		}
	}
}

// T-20: callers on other hosts get a status without names, addresses, endpoints and secrets, in the same shape.
func TestStatusForCallersOnOtherHostsIsReduced(t *testing.T) {
	full := inspection.Status{
		Version: "v1", Revision: "0123456789ab", Status: inspection.Ready, AllocationCount: 7,
		Admin: inspection.AdminStatus{
			Name: "media/edge", LogLevel: "all:INFO", HealthcheckEndpoint: "http://10.0.0.1:8086", Quota: "3",
			Offload: "None",
		},
		Auth: config.Auth{
			Type: config.AuthStatic, Realm: "inner.example",
			Credentials: map[string]credential.Secret{"username": "ann"},
		},
		Listeners: []inspection.ListenerStatus{
			{Listener: config.Listener{Name: "media/edge/udp", PublicAddress: "203.0.113.9"}},
		},
		Clusters: []inspection.ClusterStatus{
			{Cluster: config.Cluster{Name: "media/sfu", Endpoints: []string{"10.0.0.7"}}},
		},
		Failures: map[string]string{"media/edge/tls": "open listener"}, Warnings: []string{"admin.offload_engine"},
		Problem: "a problem at 10.0.0.8", Lost: "dial 10.0.0.9", Origin: "http://10.0.0.9",
		Unknown: []string{"auth.more"},
	}
	for from, whole := range map[string]bool{"127.0.0.1:9": true, "10.1.2.3:9": false} {
		for _, a := range []Access{{}, {Anywhere: true}} {
			i := inspected(a)
			i.process.Status = func() inspection.Status { return full }
			w := ask(i.Status(), from, "GET", "/status", nil)
			var got inspection.Status
			if err := json.Unmarshal(w.Body.Bytes(), &got); w.Code != http.StatusOK || err != nil {
				t.Fatalf("%d: %v", w.Code, err)
			}
			if whole || a.Anywhere {
				if got.Media == nil {
					t.Error("no media")
				}
				got.Media = nil
				if !reflect.DeepEqual(full, got) {
					t.Errorf("%s, %+v: %+v, want %+v", from, a, got, full)
				}
				continue
			}
			if got.Withheld == "" || !strings.Contains(got.Withheld, "--sessions-from=any") {
				t.Errorf("it says nothing of what is left out: %q", got.Withheld)
			}
			got.Withheld = ""
			want := inspection.Status{
				Version: "v1", Revision: "0123456789ab", Status: inspection.Ready, AllocationCount: 7,
				Listeners: []inspection.ListenerStatus{}, Clusters: []inspection.ClusterStatus{},
			}
			if !reflect.DeepEqual(want, got) {
				t.Errorf("%s: %+v, want %+v", from, got, want)
			}
			var shape map[string]json.RawMessage
			if err := json.Unmarshal(w.Body.Bytes(), &shape); err != nil {
				t.Fatal(err)
			}
			for _, field := range []string{
				"version", "admin", "auth", "listeners", "clusters", "allocationCount", "status",
			} {
				if _, there := shape[field]; !there {
					t.Errorf("field %s of the contract is not there", field)
				}
			}
		}
	}
}

func TestRefusalsHaveATextWithTheReason(t *testing.T) {
	h := inspected(Access{Users: true}).Refusals()
	list := read[inspection.RefusalList](t, h, "/refusals").Refusals
	if len(list) != 2 {
		t.Fatalf("%+v", list)
	}
	denied, unknown := list[0], list[1]
	if denied.Text != "peer 10.0.0.7:53 denied: no route of listener media/edge/udp allows it (routes: media/sfu)" ||
		denied.Reason != "peer_denied" || denied.Answered || denied.Peer != "10.0.0.7:53" || denied.User != "ann" ||
		denied.Client != "198.51.100.7:1111" || denied.Times != 1 {
		t.Errorf("drop %+v", denied)
	}
	if unknown.Text != "the user name is unknown in this realm" || !unknown.Answered || unknown.User != "eve\nlevel=ERROR" {
		t.Errorf("refusal %+v", unknown)
	}
	if one := read[inspection.RefusalList](t, h, "/refusals?user=ann&limit=5"); len(one.Refusals) != 1 {
		t.Errorf("of ann: %+v", one)
	}
	if body := ask(h, "127.0.0.1:9", "GET", "/", nil).Body.String(); strings.Contains(body, "eve\nlevel") {
		t.Error("a user name makes a line of its own")
	}
}

func TestRefusalOfARemovedListenerNamesNoRoutes(t *testing.T) {
	i := inspected(Access{})
	for routes, want := range map[string]map[string]string{
		"(it has no routes)":         {"media/edge/udp": "it has no routes"},
		"(it does not run any more)": {},
	} {
		e := meter.Entry{Reason: meter.PortDenied, Note: meter.Note{Listener: "media/edge/udp"}}
		if got := i.refusal(e, want).Text; !strings.HasSuffix(got, routes) {
			t.Errorf("%q does not say %q", got, routes)
		}
	}
}

func TestSuppressedRefusalsAreCounted(t *testing.T) {
	i := inspected(Access{})
	for n := range 1000 {
		i.process.Meter.DropNote(meter.Malformed, meter.Note{Client: netip.AddrPortFrom(netip.IPv6Loopback(), uint16(n))})
	}
	if list := read[inspection.RefusalList](t, i.Refusals(), "/refusals"); list.Suppressed == 0 || len(list.Refusals) > 64 {
		t.Errorf("%d refusals, %d suppressed", len(list.Refusals), list.Suppressed)
	}
}
