package admin

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/server"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// Inspector shows the status, single sessions and refusals, to a person who asks why a call does not work. What it shows is about people and internal
// addresses, and its port is often open to the world: it answers callers on this host and hides names and addresses of clients, unless told
// otherwise. Other callers get a reduced status only.
type Inspector struct {
	sessions  *session.Table
	meter     *meter.Meter
	listeners func() []config.Listener
	access    Access
	key       []byte
}

// Access says how much of an Inspector is shown to whom.
type Access struct {
	// Anywhere answers callers that are not on this host too.
	Anywhere bool
	// Users shows user names and client addresses as they are. Without, equal ones are seen as equal.
	Users bool
}

// NewInspector returns an inspector; listeners returns those that run now.
func NewInspector(t *session.Table, m *meter.Meter, listeners func() []config.Listener, a Access) *Inspector {
	return &Inspector{sessions: t, meter: m, listeners: listeners, access: a, key: []byte(rand.Text())}
}

// query is what a caller may ask for.
type query struct {
	limit          int
	listener, user string
}

const (
	defaultLimit = 100
	maxLimit     = 1000
)

// show serves what a function finds, to those who may see it.
func (i *Inspector) show(find func(query) any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !i.answers(r) {
			http.Error(w, "shown to callers on this host only: forward the port, or start stunnerd with --sessions-from=any", http.StatusForbidden)
			return
		}
		q, err := parseQuery(r.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		writeJSON(w, find(q))
	})
}

// Status serves what a function returns: the whole of it to those who may see sessions, and the part that is nobody's secret to all others.
func (i *Inspector) Status(current func() server.Status) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := current()
		if !i.answers(r) {
			status = status.Reduced("the rest is shown to callers on this host only: forward the port, or start stunnerd with --sessions-from=any")
		}
		writeJSON(w, status)
	})
}

// answers tells whether the caller may see everything.
func (i *Inspector) answers(r *http.Request) bool { return i.access.Anywhere || local(r) }

// local tells whether a request was made on this host, and not merely passed on: by a proxy that says so, by a service mesh, which calls
// from another address of the loopback network, or by a browser for a page whose name an attacker has made to stand for this host.
func local(r *http.Request) bool {
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !slices.Contains(loopback, remote.Addr().Unmap()) {
		return false
	}
	host := (&url.URL{Host: r.Host}).Hostname()
	_, notAddress := netip.ParseAddr(host)
	forwarded := r.Header.Get("Forwarded") + r.Header.Get("X-Forwarded-For")
	return forwarded == "" && (host == "localhost" || notAddress == nil)
}

// loopback are the addresses from which a program on this host calls.
var loopback = []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}

// parseQuery refuses what it does not know: a filter that is misspelt would show everything.
func parseQuery(values url.Values) (query, error) {
	q := query{limit: defaultLimit}
	for name := range values {
		switch value := values.Get(name); name {
		case "listener":
			q.listener = value
		case "user":
			q.user = value
		case "limit":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > maxLimit {
				return q, fmt.Errorf("limit %q: use 1 to %d", value, maxLimit)
			}
			q.limit = n
		default:
			return q, fmt.Errorf("unknown parameter %q: use limit, listener or user", name)
		}
	}
	return q, nil
}

// wants tells whether something of that listener and user, as it is shown, is asked for.
func (q query) wants(listener, user string) bool {
	return (q.listener == "" || q.listener == listener) && (q.user == "" || q.user == user)
}

// user is a user's name as it is shown. Nobody stays nobody.
func (i *Inspector) user(name string) string {
	if i.access.Users || name == "" {
		return name
	}
	return i.hash("user", name)
}

// client is a client's address as it is shown. Hidden, it is the same for all ports: it tells which calls come from one place.
func (i *Inspector) client(a netip.AddrPort) string {
	switch {
	case !a.IsValid():
		return ""
	case i.access.Users:
		return a.String()
	}
	return i.hash("client", a.Addr().String())
}

// hash stands for a text. Only this process can tell for which one: what is guessed cannot be tried without its key.
func (i *Inspector) hash(parts ...string) string {
	mac := hmac.New(sha256.New, i.key)
	mac.Write([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(mac.Sum(nil))[:12]
}
