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

// Inspector serves status, sessions and refusals for troubleshooting calls. They contain personal data and internal
// addresses, and the port is often reachable from other hosts. Therefore, unless Access allows more, the Inspector
// serves them only to callers on this host, and hashes the names and addresses of clients. Other callers get a reduced
// status.
type Inspector struct {
	sessions  *session.Table
	meter     *meter.Meter
	listeners func() []config.Listener
	access    Access
	key       []byte
}

// Access configures which callers an Inspector serves, and with which data.
type Access struct {
	// Anywhere serves callers on other hosts too.
	Anywhere bool
	// Users makes an Inspector show user names and client addresses instead of their hashes.
	Users bool
}

// NewInspector returns an inspector. listeners returns the running listeners.
func NewInspector(t *session.Table, m *meter.Meter, listeners func() []config.Listener, a Access) *Inspector {
	return &Inspector{sessions: t, meter: m, listeners: listeners, access: a, key: []byte(rand.Text())}
}

// query holds the parameters of a request.
type query struct {
	limit          int
	listener, user string
}

const (
	defaultLimit = 100
	maxLimit     = 1000
)

// show serves the result of find to callers with access.
func (i *Inspector) show(find func(query) any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !i.allows(r) {
			http.Error(w, "shown to callers on this host only: forward the port, or start stunnerd with --sessions-from=any",
				http.StatusForbidden)
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

// Status serves the current status: all of it to callers with access, and the reduced status to others.
func (i *Inspector) Status(current func() server.Status) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := current()
		if !i.allows(r) {
			status = status.Reduced(
				"the rest is shown to callers on this host only: forward the port, or start stunnerd with --sessions-from=any")
		}
		writeJSON(w, status)
	})
}

// allows reports whether the caller has access.
func (i *Inspector) allows(r *http.Request) bool { return i.access.Anywhere || isLocal(r) }

// isLocal reports whether a request was made on this host. It is false for a request that is only forwarded on this
// host: by a proxy, which adds a forwarding header; by a service mesh, which uses another address of 127.0.0.0/8; or by
// a browser on a page whose host name an attacker resolves to this host (DNS rebinding).
func isLocal(r *http.Request) bool {
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !slices.Contains(loopback, remote.Addr().Unmap()) {
		return false
	}
	host := (&url.URL{Host: r.Host}).Hostname()
	_, notAddress := netip.ParseAddr(host)
	forwarded := r.Header.Get("Forwarded") + r.Header.Get("X-Forwarded-For")
	return forwarded == "" && (host == "localhost" || notAddress == nil)
}

// loopback are the source addresses of callers on this host.
var loopback = []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}

// parseQuery parses the filter parameters of a request for sessions or refusals. It refuses unknown parameters, because
// a misspelled filter would select all entries.
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

// matches reports whether the query selects an entry with the listener and the shown user.
func (q query) matches(listener, user string) bool {
	return (q.listener == "" || q.listener == listener) && (q.user == "" || q.user == user)
}

// user returns a user name as shown to the caller: hashed, unless Access.Users is set.
func (i *Inspector) user(name string) string {
	if i.access.Users || name == "" {
		return name
	}
	return i.hash("user", name)
}

// client returns the address of a client as shown to the caller: hashed, unless Access.Users is set. The hash does not
// depend on the port, so that calls from one address have the same hash.
func (i *Inspector) client(a netip.AddrPort) string {
	switch {
	case !a.IsValid():
		return ""
	case i.access.Users:
		return a.String()
	}
	return i.hash("client", a.Addr().String())
}

// hash returns a short HMAC of texts. Its key is random and never leaves the process, so that a reader of a hash cannot
// find the text by hashing guesses.
func (i *Inspector) hash(parts ...string) string {
	mac := hmac.New(sha256.New, i.key)
	mac.Write([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(mac.Sum(nil))[:12]
}
