package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// request calls a handler like a request over the stream of a config: without a source address.
func request(t *testing.T, h http.Handler, method, target string, answer any) (status int, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, target, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if answer != nil {
		if err := json.Unmarshal(w.Body.Bytes(), answer); err != nil {
			t.Fatalf("%s %s: %d %s", method, target, w.Code, w.Body)
		}
	}
	return w.Code, strings.TrimSpace(w.Body.String())
}

// Filters match user and client by value and by hash, whether the answers contain values or hashes.
func TestFiltersMatchValuesAndHashes(t *testing.T) {
	for _, users := range []bool{false, true} {
		i := inspected(Access{Users: users})
		h := i.Requests()
		user, client := i.hash("user", "ann"), i.hash("client", "198.51.100.7")
		for target, want := range map[string]int{
			"/sessions?user=ann":                            2,
			"/sessions?user=" + user:                        2,
			"/sessions?client=198.51.100.7":                 2,
			"/sessions?client=::ffff:198.51.100.7":          2,
			"/sessions?client=198.51.100.7:1111":            1,
			"/sessions?client=" + client:                    2,
			"/sessions?client=198.51.100.9":                 0,
			"/sessions?client=" + client + "&user=bob":      0,
			"/sessions?since=90s":                           1,
			"/sessions?since=2m30s&listener=media/edge/tls": 1,
			"/refusals?user=ann":                            1,
			"/refusals?user=" + user:                        1,
			"/refusals?client=198.51.100.7":                 2,
			"/refusals?client=" + client:                    2,
			"/refusals?reason=peer_denied":                  1,
			"/refusals?reason=quota":                        0,
			"/refusals?since=1h":                            2,
			"/refusals?since=2100-01-02T15:04:05Z":          0,
		} {
			var list struct{ Sessions, Refusals []any }
			request(t, h, "GET", target, &list)
			if got := len(list.Sessions) + len(list.Refusals); got != want {
				t.Errorf("users shown %t: %s: %d entries, want %d", users, target, got, want)
			}
		}
	}
	h := inspected(Access{}).Requests()
	for target, want := range map[string]string{
		"/sessions?reason=quota":  `unknown parameter "reason": use client, limit, listener, since or user`,
		"/sessions?client=10.0.0": `client "10.0.0": use an IP address, IP:PORT or a hash`,
		"/sessions?user=a&user=b": `parameter "user" is there 2 times: give it once`,
		"/refusals?reason=denied": `reason "denied": use a reason of the metrics`,
		"/refusals?since=never":   `since "never": use a duration`,
	} {
		if status, body := request(t, h, "GET", target, nil); status != 400 || !strings.HasPrefix(body, want) {
			t.Errorf("%s: %d %s", target, status, body)
		}
	}
}

// A request over the stream needs no access. The answer contains hashes unless the process shows users.
func TestRequestsShowTheSameAsEndpoints(t *testing.T) {
	for _, users := range []bool{false, true} {
		i := inspected(Access{Users: users})
		local := read[inspection.SessionList](t, i.Sessions(), "/sessions").Sessions
		var list inspection.SessionList
		if status, _ := request(t, i.Requests(), "GET", "/sessions", &list); status != 200 {
			t.Fatal(status)
		}
		for n, s := range list.Sessions {
			if s.ID != local[n].ID || s.User != local[n].User || s.Client != local[n].Client {
				t.Errorf("%+v, locally %+v", s, local[n])
			}
			if shown := strings.Contains(s.Client, "198.51.100."); shown != users {
				t.Errorf("client %s", s.Client)
			}
		}
		for target, want := range map[string]int{"/status": 200, "/refusals": 200, "/metrics": 404, "/": 404} {
			if status, body := request(t, i.Requests(), "GET", target, nil); status != want {
				t.Errorf("%s: %d %s", target, status, body)
			}
		}
		if status, _ := request(t, i.Requests(), "POST", "/sessions", nil); status != http.StatusMethodNotAllowed {
			t.Errorf("POST: %d", status)
		}
	}
}

// Usage contains user ids even if the process hashes them elsewhere, because hashes of several processes cannot be
// added up. A request with an invalid selection is refused with the remedy.
func TestUsage(t *testing.T) {
	h := inspected(Access{}).Requests()
	for target, want := range map[string]int{
		"/usage": 2, "/usage?user=ann&by=route&limit=1000": 1, "/usage?user=eve&from=2026-01-02T15:04:05Z": 0,
		"/usage?from=2026-01-02T15:04:05Z&to=2026-01-02T16:04:05%2B01:00": -1,
	} {
		var u inspection.Usage
		status, body := request(t, h, "GET", target, nil)
		if want < 0 {
			if status != 400 || !strings.Contains(body, "from is not before to") {
				t.Errorf("%s: %d %s", target, status, body)
			}
			continue
		}
		if err := json.Unmarshal([]byte(body), &u); err != nil || status != 200 || len(u.Entries) != want {
			t.Errorf("%s: %d %s", target, status, body)
		}
	}
	for target, want := range map[string]string{
		"/usage?reason=quota":   `usage: unknown parameter "reason": use by, from, limit, to or user`,
		"/usage?by=gateway":     `usage: by "gateway": use user or route`,
		"/usage?limit=1001":     `usage: limit "1001": use 1 to 1000`,
		"/usage?limit=0":        `usage: limit "0": use 1 to 1000`,
		"/usage?user=":          "usage: user is empty: give a user id, or leave it out",
		"/usage?from=10m":       `usage: from "10m": use a time such as 2006-01-02T15:04:05Z`,
		"/usage?user=a&user=b":  `usage: parameter "user" is there 2 times: give it once`,
		"/usage?to=1998-01-01T": `usage: to "1998-01-01T": use a time such as`,
	} {
		if status, body := request(t, h, "GET", target, nil); status != 400 || !strings.HasPrefix(body, want) {
			t.Errorf("%s: %d %s", target, status, body)
		}
	}
}

// Sessions can be ended by ID, user or client. Without a selection, none is ended.
func TestKick(t *testing.T) {
	i := inspected(Access{})
	id := read[inspection.SessionList](t, i.Sessions(), "/sessions?user=ann").Sessions[0].ID
	for target, want := range map[string]int{
		"/sessions/" + id:                              1,
		"/sessions/000000000000":                       0,
		"/sessions?user=ann":                           2,
		"/sessions?user=" + i.hash("user", "ann"):      2,
		"/sessions?client=198.51.100.8":                1,
		"/sessions?client=198.51.100.8:2222&user=bob":  1,
		"/sessions?client=198.51.100.8&user=ann":       0,
		"/sessions?user=nobody":                        0,
		"/sessions?user=" + url.QueryEscape("an%"):     0,
		"/sessions?client=" + i.hash("client", "none"): 0,
	} {
		i.process = inspected(Access{}).process // keeps the key of the hashes
		var kicked inspection.Kicked
		status, body := request(t, i.Requests(), "DELETE", target, &kicked)
		if status != 200 || kicked.Total != want || len(kicked.Ended) != want || kicked.Ended == nil {
			t.Errorf("%s: %d %s, want %d", target, status, body, want)
		}
		if left := i.process.Sessions.Len(); left != 3-want {
			t.Errorf("%s: %d sessions are left", target, left)
		}
	}
	for _, target := range []string{
		"/sessions", "/sessions?user=", "/sessions?client=", "/sessions?user=ann&client=", "/sessions?listener=media/edge/udp",
		"/sessions?users=ann", "/sessions?limit=1", "/sessions?client=198.51.100", "/sessions/" + id + "?user=ann",
	} {
		status, body := request(t, i.Requests(), "DELETE", target, nil)
		if status != 400 || body == "" || i.process.Sessions.Len() == 0 {
			t.Errorf("%s: %d %s", target, status, body)
		}
	}
}

// The list of ended sessions is bounded.
func TestKickOfManySessions(t *testing.T) {
	i := inspected(Access{})
	for n := range 2 * inspection.DefaultLimit {
		call(i.process.Sessions, n, "media/edge/udp", "cat", fmt.Sprintf("192.0.2.1:%d", n+1))
	}
	var kicked inspection.Kicked
	request(t, i.Requests(), "DELETE", "/sessions?user=cat", &kicked)
	if kicked.Total != 2*inspection.DefaultLimit || len(kicked.Ended) != inspection.DefaultLimit ||
		kicked.Ended[0].Started.After(kicked.Ended[1].Started) {
		t.Errorf("%d of %d, first %+v", len(kicked.Ended), kicked.Total, kicked.Ended[:2])
	}
}

// Reach is shown to callers with access, and needs a peer.
func TestReach(t *testing.T) {
	i := inspected(Access{})
	for target, want := range map[string]string{
		"/reach?peer=10.0.0.1:53":                         "10.0.0.1:53 2",
		"/reach?peer=[::ffff:10.0.0.1]:53":                "10.0.0.1:53 2",
		"/reach?peer=[2001:db8::1]:53":                    "[2001:db8::1]:53 2",
		"/reach?peer=10.0.0.1:53&listener=media/edge/tls": "10.0.0.1:53 1",
		"/reach":                                            "400",
		"/reach?peer=10.0.0.1":                              "400",
		"/reach?peer=10.0.0.1:0":                            "400",
		"/reach?peer=sfu.example:53":                        "400",
		"/reach?peer=[fe80::1%25eth0]:53":                   "400",
		"/reach?peer=10.0.0.1:53&port=5":                    "400",
		"/reach?peer=10.0.0.1:53&listener=media/edge/other": "404",
	} {
		var answer inspection.Reach
		status, body := request(t, i.Requests(), "GET", target, nil)
		got := fmt.Sprint(status)
		if status == 200 && json.Unmarshal([]byte(body), &answer) == nil {
			got = fmt.Sprint(answer.Peer, " ", len(answer.Listeners))
		}
		if got != want {
			t.Errorf("%s: %d %s, want %s", target, status, body, want)
		}
	}
	for from, want := range map[string]int{"127.0.0.1:9": 200, "10.1.2.3:9": 403} {
		if w := ask(i.Reach(), from, "GET", "/reach?peer=10.0.0.1:53", nil); w.Code != want {
			t.Errorf("from %s: %d", from, w.Code)
		}
	}
}

// The status of a large config is cut so that it fits into an answer to the operator, and names the missing parts.
func TestLongStatusIsCut(t *testing.T) {
	i := inspected(Access{})
	big := func(clusters, endpoints, listeners, cert int) func() inspection.Status {
		return func() (s inspection.Status) {
			for n := range clusters {
				c := config.Cluster{Name: fmt.Sprint("media/cluster-", n)}
				for e := range endpoints {
					c.Endpoints = append(c.Endpoints, fmt.Sprintf("10.0.%d.%d", e>>8, e&255))
				}
				s.Clusters = append(s.Clusters, inspection.ClusterStatus{Cluster: c})
			}
			for n := range listeners {
				l := config.Listener{Name: fmt.Sprint("media/edge/", n), Cert: strings.Repeat("x", cert)}
				l.Routes = []string{strings.Repeat("y", 1000)}
				s.Listeners = append(s.Listeners, inspection.ListenerStatus{Listener: l})
			}
			return s
		}
	}
	for want, status := range map[string]func() inspection.Status{
		"": big(100, 100, 10, 2000),
		"too long for an answer to the operator: endpoints of clusters":                                                                                                        big(10, 10_000, 10, 2000),
		"too long for an answer to the operator: endpoints of clusters, certificates of listeners in PEM":                                                                      big(10, 10_000, 100, 6000),
		"too long for an answer to the operator: endpoints of clusters, certificates of listeners in PEM, clusters":                                                            big(10_000, 1, 10, 2000),
		"too long for an answer to the operator: endpoints of clusters, certificates of listeners in PEM, clusters, routes, service addresses and load balancers of listeners": big(10_000, 1, 1000, 2000),
	} {
		i.process.Status = status
		var got inspection.Status
		_, body := request(t, i.Requests(), "GET", "/status", &got)
		if got.Withheld != want {
			t.Errorf("withheld %q, want %q", got.Withheld, want)
		}
		compact, err := json.Marshal(json.RawMessage(body))
		if err != nil || len(compact) > discovery.ResponseLimit {
			t.Errorf("%d bytes, %v", len(compact), err)
		}
	}
	i.process.Status = big(10, 10_000, 10, 2000)
	if local := read[inspection.Status](t, i.Status(), "/status"); local.Withheld != "" || len(local.Clusters[0].Endpoints) != 10_000 {
		t.Error("the status for this host is cut")
	}
}
