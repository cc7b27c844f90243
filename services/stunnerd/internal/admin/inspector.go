package admin

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// Inspector serves status, sessions, refusals and reachable peers for troubleshooting calls, and usage. These answers
// contain personal data and internal addresses, and the port is often reachable from other hosts. Unless Access allows
// more, the Inspector therefore serves them only to callers on this host, and hashes the names and addresses of
// clients. Other callers get a reduced status.
type Inspector struct {
	process Process
	access  Access
	key     []byte
}

// Process is the process that an Inspector shows.
type Process struct {
	Sessions *session.Table
	Meter    *meter.Meter
	// Listeners returns the listeners that run.
	Listeners func() []config.Listener
	// Status returns the complete status.
	Status func() inspection.Status
	// Reach returns whether the clients of each listener may reach a peer.
	Reach func(peer netip.AddrPort) []inspection.ListenerReach
	// Usage returns the usage of a period in the last hour.
	Usage func(inspection.UsageQuery) inspection.Usage
	// End ends the selected sessions, and returns them.
	End func(selected func(*session.Session) bool) []*session.Session
}

// Access configures which callers an Inspector serves, and with which data.
type Access struct {
	// Anywhere serves callers on other hosts too.
	Anywhere bool
	// Users makes an Inspector show user names and client addresses instead of their hashes.
	Users bool
}

// NewInspector returns an inspector.
func NewInspector(p Process, a Access) *Inspector {
	return &Inspector{process: p, access: a, key: []byte(rand.Text())}
}

// Requests returns the handler for the requests of the operator, which has authorized them. The handler serves
// everything that the endpoints serve, and can end sessions.
func (i *Inspector) Requests() http.Handler {
	all := *i
	all.access.Anywhere = true
	mux := http.NewServeMux()
	mux.Handle("GET /status", all.boundedStatus())
	mux.Handle("GET /sessions", all.Sessions())
	mux.Handle("DELETE /sessions", all.Kick())
	mux.Handle("DELETE /sessions/{id}", all.Kick())
	mux.Handle("GET /refusals", all.Refusals())
	mux.Handle("GET /reach", all.Reach())
	mux.Handle("GET /usage", all.Usage())
	return counted(i.process.Meter, mux)
}

// show serves the result of find to callers with access. known lists the parameters of the request.
func (i *Inspector) show(find func(inspection.Filter) any, known ...string) http.Handler {
	return i.guard(func(w http.ResponseWriter, r *http.Request) {
		f, err := i.filter(r.URL.Query(), known)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		writeJSON(w, find(f))
	})
}

// guard serves callers with access only.
func (i *Inspector) guard(serve http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !i.allows(r) {
			http.Error(w, "shown to callers on this host only: forward the port, or start stunnerd with --sessions-from=any",
				http.StatusForbidden)
			return
		}
		serve(w, r)
	})
}

// Status serves the current status: all of it to callers with access, and the reduced status to others.
func (i *Inspector) Status() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !i.allows(r) {
			writeJSON(w, i.process.Status().Reduced(
				"the rest is shown to callers on this host only: forward the port, or start stunnerd with --sessions-from=any"))
			return
		}
		writeJSON(w, i.status())
	})
}

// Reach serves whether the clients of the listener in the parameter listener, or of all listeners, may reach the peer
// in the parameter peer.
func (i *Inspector) Reach() http.Handler {
	return i.guard(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		wanted := query.Get("listener")
		query.Del("listener")
		peer, err := netip.ParseAddrPort(query.Get("peer"))
		if query.Del("peer"); len(query) > 0 || err != nil || peer.Port() == 0 || peer.Addr().Zone() != "" {
			http.Error(w, "reach: give peer=IP:PORT, and listener=NAME for one listener only", http.StatusBadRequest)
			return
		}
		peer = netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port())
		answer := inspection.Reach{Peer: peer.String(), Listeners: i.process.Reach(peer)}
		if wanted != "" {
			answer.Listeners = slices.DeleteFunc(answer.Listeners, func(l inspection.ListenerReach) bool {
				return l.Listener != wanted
			})
			if len(answer.Listeners) == 0 {
				http.Error(w, fmt.Sprintf("reach: no listener %q runs", wanted), http.StatusNotFound)
				return
			}
		}
		writeJSON(w, answer)
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

// commonParameters are the parameters of sessions and refusals.
var commonParameters = []string{"client", "limit", "listener", "since", "user"}[:5:5]

// hashed matches the result of Inspector.hash.
var hashed = regexp.MustCompile(`^[0-9a-f]{12}$`)

// filter parses the parameters of a request.
func (i *Inspector) filter(query url.Values, known []string) (inspection.Filter, error) {
	f, err := inspection.ParseFilter(query, time.Now(), known...)
	_, notAddress := parseClient(f.Client)
	switch {
	case err != nil:
	case f.Client != "" && notAddress != nil && !hashed.MatchString(f.Client):
		err = fmt.Errorf("client %q: use an IP address, IP:PORT or a hash", f.Client)
	case f.Reason != "" && !meter.IsReason(f.Reason):
		err = fmt.Errorf("reason %q: use a reason of the metrics stunner_refused_total and stunner_dropped_total", f.Reason)
	}
	return f, err
}

// parseClient parses IP or IP:PORT. The port of an IP address is 0.
func parseClient(text string) (netip.AddrPort, error) {
	addr, err := netip.ParseAddr(text)
	if err == nil {
		return netip.AddrPortFrom(addr.Unmap(), 0), nil
	}
	at, err := netip.ParseAddrPort(text)
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), err
}

// matches reports whether a filter selects an entry with a listener, a user name and the address of a client. The
// filter may contain the value or the hash of user and client.
func (i *Inspector) matches(f inspection.Filter, listener, user string, client netip.AddrPort) bool {
	return (f.Listener == "" || f.Listener == listener) &&
		(f.User == "" || user != "" && (f.User == user || f.User == i.hash("user", user))) &&
		(f.Client == "" || client.IsValid() && i.isClient(f.Client, client))
}

func (i *Inspector) isClient(wanted string, client netip.AddrPort) bool {
	if at, err := parseClient(wanted); err == nil {
		return at.Addr() == client.Addr().Unmap() && (at.Port() == 0 || at.Port() == client.Port())
	}
	return wanted == i.hash("client", client.Addr().String())
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

func (i *Inspector) hash(parts ...string) string { return inspection.Hash(i.key, parts...) }
