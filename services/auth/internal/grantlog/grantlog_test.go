package grantlog

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// ada is an entry of a user with a credential for two Gateways.
func ada() Entry {
	expires := now.Add(time.Hour)
	return Entry{
		Time: now, User: "person", Gateways: []string{"media/oslo", "other/bergen"}, Expires: expires,
		Username: fmt.Sprintf("%d:person", expires.Unix()), Source: "198.51.100.7", Caller: "web:person", Origin: "subject web:person",
	}
}

func ask(t *testing.T, log *Log, target string) (list inspection.GrantList) {
	t.Helper()
	w := httptest.NewRecorder()
	log.Requests().ServeHTTP(w, httptest.NewRequest("GET", target, nil))
	if w.Code != 200 || json.Unmarshal(w.Body.Bytes(), &list) != nil || list.Grants == nil {
		t.Fatalf("%s: %d %s", target, w.Code, w.Body)
	}
	return list
}

// Names and addresses are hashes unless the service shows users, and other Gateways are never shown.
func TestGrantsHideUsers(t *testing.T) {
	for _, users := range []bool{false, true} {
		log := New(users, func() time.Time { return now })
		log.Add(ada())
		grant := ask(t, log, "/grants?gateway=media/oslo").Grants[0]
		if fmt.Sprint(grant.Gateways) != "[media/oslo]" || !grant.Expires.Equal(now.Add(time.Hour)) || !grant.Time.Equal(now) {
			t.Errorf("grant %+v", grant)
		}
		plain := inspection.Grant{
			Time: grant.Time, User: "person", Username: ada().Username, Gateways: grant.Gateways, Expires: grant.Expires,
			Source: "198.51.100.7", Caller: "web:person",
		}
		if shown := fmt.Sprint(grant) == fmt.Sprint(plain); shown != users {
			t.Errorf("users shown %t: %+v", users, grant)
		}
		if text := fmt.Sprint(grant); !users && (strings.Contains(text, "person") || strings.Contains(text, "198.51")) {
			t.Errorf("grant %s", text)
		}
		if want := fmt.Sprintf("%d:%s", now.Add(time.Hour).Unix(), grant.User); grant.Username != want {
			t.Errorf("user name %s, want %s", grant.Username, want)
		}
		for target, want := range map[string]int{
			"/grants?gateway=media/oslo&user=person":                        1,
			"/grants?gateway=media/oslo&user=" + log.hash("user", "person"): 1,
			"/grants?gateway=media/oslo&user=bob":                           0,
			"/grants?gateway=other/bergen":                                  1,
			"/grants?gateway=media/elsewhere":                               0,
			"/grants?gateway=media/oslo&since=1h":                           1,
			"/grants?gateway=media/oslo&since=2026-03-01T12:00:01Z":         0,
			"/grants?gateway=media/oslo&since=2026-03-01T12:00:00Z&limit=1": 1,
		} {
			if got := len(ask(t, log, target).Grants); got != want {
				t.Errorf("%s: %d, want %d", target, got, want)
			}
		}
	}
}

// Without a Gateway no grant is shown, and unknown parameters and paths are errors.
func TestGrantsNeedAGateway(t *testing.T) {
	log := New(true, time.Now)
	for target, want := range map[string]string{
		"GET /grants":          "400 gateway is missing: use NAMESPACE/NAME",
		"GET /grants?gateway=": "400 gateway is missing: use NAMESPACE/NAME",
		"GET /grants?gateway=media/oslo&client=10.1": `400 unknown parameter "client": use gateway, limit, since or user`,
		"GET /grants?gateway=media/oslo&gateway=b/c": `400 parameter "gateway" is there 2 times: give it once`,
		"GET /sessions":                     "404 404 page not found",
		"DELETE /grants?gateway=media/oslo": "405 Method Not Allowed",
	} {
		method, path, _ := strings.Cut(target, " ")
		w := httptest.NewRecorder()
		log.Requests().ServeHTTP(w, httptest.NewRequest(method, path, nil))
		if got := fmt.Sprint(w.Code, " ", strings.TrimSpace(w.Body.String())); got != want {
			t.Errorf("%s: %s, want %s", target, got, want)
		}
	}
}

// Neither a single user nor a caller with many users displaces the grants of others.
func TestOneUserDisplacesNoGrantsOfOthers(t *testing.T) {
	log := New(true, func() time.Time { return now })
	list := func(query string) inspection.GrantList {
		return ask(t, log, "/grants?gateway=media/oslo&limit=1000"+query)
	}
	log.Add(ada())
	for n := range 3 * size {
		e := ada()
		e.User, e.Origin, e.Time = "eve", "192.0.2.1/32", now.Add(time.Duration(n)*time.Second)
		log.Add(e)
	}
	if eve := list("&user=eve"); len(eve.Grants) != userShare || len(list("&user=person").Grants) != 1 ||
		!eve.Grants[0].Time.Equal(now.Add((3*size-1)*time.Second)) || eve.Suppressed != 3*size-userShare {
		t.Errorf("%d of eve, the newest %+v, %d suppressed", len(eve.Grants), eve.Grants[0], eve.Suppressed)
	}
	for n := range 3 * size {
		e := ada()
		e.User, e.Origin = fmt.Sprint("random-", n), "192.0.2.1/32"
		log.Add(e)
	}
	if got := list(""); len(got.Grants) != originShare+1 || len(list("&user=person").Grants) != 1 {
		t.Errorf("%d entries", len(got.Grants))
	}
	for n := range 3 * size {
		e := ada()
		e.User, e.Origin = fmt.Sprint("user-", n), fmt.Sprint("origin-", n)
		log.Add(e)
	}
	if got := list(""); len(got.Grants) != size || got.Grants[0].User != fmt.Sprint("user-", 3*size-1) ||
		len(log.users) != size || len(log.origins) != size || cap(log.entries) > 4*size {
		t.Errorf("%d entries, %d users, %d origins, room for %d", len(got.Grants), len(log.users), len(log.origins),
			cap(log.entries))
	}
}
