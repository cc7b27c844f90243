// Package grantlog keeps the latest credentials that were given to callers, without passwords, and shows them to the
// operator.
package grantlog

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
	// userShare is the maximum number of entries of one user. originShare is the maximum number of entries of one
	// origin, which may be an application with many users. So neither displaces the entries of others.
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

// Log keeps the latest entries.
type Log struct {
	showUsers bool
	now       func() time.Time
	key       []byte

	mu      sync.Mutex
	entries []Entry // the oldest first
	// users and origins contain the number of entries of each user and origin.
	users, origins map[string]int
	suppressed     uint64
}

// New returns an empty Log. With showUsers it shows user names and addresses instead of hashes.
func New(showUsers bool, now func() time.Time) *Log {
	return &Log{
		showUsers: showUsers, now: now, key: []byte(rand.Text()), users: map[string]int{}, origins: map[string]int{},
	}
}

// Add records an entry. It removes the oldest entry of the same user or origin if there are too many of them, or else
// the oldest of all.
func (l *Log) Add(e Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.users[e.User] >= userShare:
		l.remove(slices.IndexFunc(l.entries, func(o Entry) bool { return o.User == e.User }))
		l.suppressed++
	case l.origins[e.Origin] >= originShare:
		l.remove(slices.IndexFunc(l.entries, func(o Entry) bool { return o.Origin == e.Origin }))
		l.suppressed++
	case len(l.entries) == size:
		l.remove(0)
	}
	l.users[e.User]++
	l.origins[e.Origin]++
	l.entries = append(l.entries, e)
}

func (l *Log) remove(at int) {
	decrement(l.users, l.entries[at].User)
	decrement(l.origins, l.entries[at].Origin)
	if at > 0 {
		l.entries = slices.Delete(l.entries, at, at+1)
		return
	}
	l.entries[0] = Entry{} // so that its memory can be freed
	l.entries = l.entries[1:]
}

func decrement(counts map[string]int, key string) {
	if counts[key]--; counts[key] == 0 {
		delete(counts, key)
	}
}

// Requests returns the handler for the requests of the operator, which has authorized them. The parameter gateway is
// required, because a user may have the right to see the grants of one Gateway and not of another.
func (l *Log) Requests() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /grants", func(w http.ResponseWriter, r *http.Request) {
		f, err := inspection.ParseFilter(r.URL.Query(), l.now(), "gateway", "limit", "since", "user")
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		case f.Gateway == "":
			http.Error(w, "gateway is missing: use NAMESPACE/NAME", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(l.list(f))
	})
	return mux
}

// list returns the grants that a filter selects, the newest first.
func (l *Log) list(f inspection.Filter) inspection.GrantList {
	l.mu.Lock()
	entries := slices.Clone(l.entries)
	list := inspection.GrantList{Grants: []inspection.Grant{}, Suppressed: l.suppressed}
	l.mu.Unlock()
	for _, e := range slices.Backward(entries) {
		if len(list.Grants) == f.Limit {
			break
		}
		if slices.Contains(e.Gateways, f.Gateway) && !e.Time.Before(f.Since) &&
			(f.User == "" || f.User == e.User || f.User == l.hash("user", e.User)) {
			list.Grants = append(list.Grants, l.grant(e, f.Gateway))
		}
	}
	return list
}

// grant returns an entry as shown to a user who may see one Gateway.
func (l *Log) grant(e Entry, gateway string) inspection.Grant {
	g := inspection.Grant{
		Time: e.Time.UTC().Truncate(time.Millisecond), User: e.User, Username: e.Username, Gateways: []string{gateway},
		Expires: e.Expires, Source: e.Source, Caller: e.Caller,
	}
	if !e.Expires.IsZero() {
		g.Expires = e.Expires.UTC()
	}
	if l.showUsers {
		return g
	}
	g.User, g.Source = l.hash("user", e.User), l.hash("client", e.Source)
	if e.Caller != "" {
		g.Caller = l.hash("user", e.Caller)
	}
	if e.Username != "" {
		g.Username = strconv.FormatInt(e.Expires.Unix(), 10) + ":" + g.User
	}
	return g
}

func (l *Log) hash(kind, text string) string { return inspection.Hash(l.key, kind, text) }
