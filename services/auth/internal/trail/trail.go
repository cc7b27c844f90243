// Package trail keeps the latest credentials that were given to callers, without passwords, and shows them to the
// operator.
package trail

import (
	"crypto/rand"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// Bounds of the entries.
const (
	size = 1_000
	// userShare is the maximum number of entries of one user, and originShare that of one origin, so that neither
	// displaces the entries of others. An origin may be an application with many users.
	userShare   = 20
	originShare = size / 2
)

// Entry is a credential that was given to a caller.
type Entry struct {
	Time time.Time
	// User is the user ID of the request.
	User string
	// Gateways are the Gateways of the credential, NAMESPACE/NAME.
	Gateways []string
	// Username is the TURN user name, with Expires and User. It is empty for a credential that does not expire.
	Username string
	// Expires is zero for a credential that does not expire.
	Expires time.Time
	// Source is the address of the caller.
	Source string
	// Caller is the subject of the caller's token, or empty.
	Caller string
	// Origin identifies the caller: by its token, or else by its address.
	Origin string
}

// Trail keeps the latest entries.
type Trail struct {
	showUsers bool
	now       func() time.Time
	key       []byte

	mu      sync.Mutex
	entries []Entry // the oldest first
	// users and origins contain the number of entries of each user and origin.
	users, origins map[string]int
	suppressed     uint64
}

// New returns an empty trail. With showUsers it shows user names and addresses instead of hashes.
func New(showUsers bool, now func() time.Time) *Trail {
	return &Trail{
		showUsers: showUsers, now: now, key: []byte(rand.Text()), users: map[string]int{}, origins: map[string]int{},
	}
}

// Add records an entry. It removes the oldest entry of the same user or origin if there are too many of them, or else
// the oldest of all.
func (t *Trail) Add(e Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.users[e.User] >= userShare:
		t.remove(slices.IndexFunc(t.entries, func(o Entry) bool { return o.User == e.User }))
		t.suppressed++
	case t.origins[e.Origin] >= originShare:
		t.remove(slices.IndexFunc(t.entries, func(o Entry) bool { return o.Origin == e.Origin }))
		t.suppressed++
	case len(t.entries) == size:
		t.remove(0)
	}
	t.users[e.User]++
	t.origins[e.Origin]++
	t.entries = append(t.entries, e)
}

func (t *Trail) remove(at int) {
	decrement(t.users, t.entries[at].User)
	decrement(t.origins, t.entries[at].Origin)
	if at > 0 {
		t.entries = slices.Delete(t.entries, at, at+1)
		return
	}
	t.entries[0] = Entry{} // so that its memory can be freed
	t.entries = t.entries[1:]
}

func decrement(counts map[string]int, key string) {
	if counts[key]--; counts[key] == 0 {
		delete(counts, key)
	}
}

// Requests returns the handler for the requests of the operator, which has authorized them. The parameter gateway is
// required, because a user may have the right to see the grants of one Gateway and not of another.
func (t *Trail) Requests() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /grants", func(w http.ResponseWriter, r *http.Request) {
		f, err := inspection.ParseFilter(r.URL.Query(), t.now(), "gateway", "limit", "since", "user")
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		case f.Gateway == "":
			http.Error(w, "gateway is missing: use NAMESPACE/NAME", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(t.list(f))
	})
	return mux
}

// list returns the grants that a filter selects, the newest first.
func (t *Trail) list(f inspection.Filter) inspection.GrantList {
	t.mu.Lock()
	entries := slices.Clone(t.entries)
	list := inspection.GrantList{Grants: []inspection.Grant{}, Suppressed: t.suppressed}
	t.mu.Unlock()
	for _, e := range slices.Backward(entries) {
		if len(list.Grants) == f.Limit {
			break
		}
		if slices.Contains(e.Gateways, f.Gateway) && !e.Time.Before(f.Since) &&
			(f.User == "" || f.User == e.User || f.User == t.hash("user", e.User)) {
			list.Grants = append(list.Grants, t.grant(e, f.Gateway))
		}
	}
	return list
}

// grant returns an entry as shown to a user who may see one Gateway.
func (t *Trail) grant(e Entry, gateway string) inspection.Grant {
	g := inspection.Grant{
		Time: e.Time.UTC().Truncate(time.Millisecond), User: e.User, Username: e.Username, Gateways: []string{gateway},
		Expires: e.Expires, Source: e.Source, Caller: e.Caller,
	}
	if !e.Expires.IsZero() {
		g.Expires = e.Expires.UTC()
	}
	if t.showUsers {
		return g
	}
	g.User, g.Source = t.hash("user", e.User), t.hash("client", e.Source)
	if e.Caller != "" {
		g.Caller = t.hash("user", e.Caller)
	}
	if e.Username != "" {
		g.Username = strconv.FormatInt(e.Expires.Unix(), 10) + ":" + g.User
	}
	return g
}

func (t *Trail) hash(kind, text string) string { return inspection.Hash(t.key, kind, text) }
