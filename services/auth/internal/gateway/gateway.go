// Package gateway holds the gateways of config discovery: their public addresses and their credentials.
//
// # Files
//
//	gateway.go    ICE URLs; selection of gateways and listeners
//	directory.go  configs of a source, and the rejection of some
//	clusters.go   selection of the clusters for a caller
package gateway

import (
	"cmp"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// Gateway is the part of a gateway's config that is needed to answer requests for credentials.
type Gateway struct {
	Namespace, Name string
	// Cluster is the name of its cluster; empty for the only cluster of --config.
	Cluster string
	// Authority mints the credentials.
	Authority credential.Authority
	// STUNOnly is set if the gateway does not relay. Such a gateway has no credentials.
	STUNOnly bool
	// Lifetime is the default and maximum time to live of a credential of the gateway; 0 means that the flags
	// --default-ttl and --max-ttl of the service apply.
	Lifetime time.Duration
	// Revoked are the revocations in the config.
	Revoked  *credential.Revocations
	Revision string
	// Idle is set if the operator has reported no dataplane of the gateway that could take a session.
	Idle bool

	former    formerLifetimes
	listeners []listener
	// answers caches the URLs for the options of earlier requests. They change only with the config.
	answers *answers
}

// formerLifetimes tells until when credentials are valid that were issued with earlier lifetimes of a gateway.
type formerLifetimes struct {
	// expiry is when the last credential expires that was issued with an earlier lifetime of the config; the zero time if
	// there was none.
	expiry time.Time
	// flags is until when the config may have had no lifetime, so that the flags of the service applied.
	flags time.Time
}

// or returns the later times of both.
func (f formerLifetimes) or(o formerLifetimes) formerLifetimes {
	if o.expiry.After(f.expiry) {
		f.expiry = o.expiry
	}
	if o.flags.After(f.flags) {
		f.flags = o.flags
	}
	return f
}

// LastExpiry returns when the last credential of the gateway expires that may have been issued until now. A credential
// stays valid if the lifetime is lowered after it was issued. maxTTL is the value of the flag --max-ttl.
func (g *Gateway) LastExpiry(now time.Time, maxTTL time.Duration) time.Time {
	last := now.Add(cmp.Or(g.Lifetime, maxTTL))
	former := []time.Time{g.former.expiry}
	if !g.former.flags.IsZero() {
		former = append(former, g.former.flags.Add(maxTTL))
	}
	for _, expiry := range former {
		if expiry.After(last) {
			last = expiry
		}
	}
	return last
}

// maxAnswers is the maximum number of cached options. The options of the service and of the fields of a request are
// fewer.
const maxAnswers = 8

// answers keeps URLs by options.
type answers struct {
	mu   sync.RWMutex
	urls map[URLOptions][]string
}

// get returns the URLs for options, and makes them at the first call.
func (a *answers) get(v URLOptions, make func() []string) []string {
	a.mu.RLock()
	urls, ok := a.urls[v]
	a.mu.RUnlock()
	if ok {
		return urls
	}
	urls = make()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.urls) < maxAnswers {
		a.urls[v] = urls
	}
	return urls
}

type listener struct {
	name string
	config.Listener
}

// order is the position of listeners in an answer by the protocol of their clients, the best protocol first, because
// some clients use only the first URL. Browsers try URLs in any order.
var order = map[config.Protocol]int{config.TURNUDP: 0, config.TURNDTLS: 1, config.TURNTCP: 2, config.TURNTLS: 3}

func newGateway(c config.Config) *Gateway {
	namespace, name := splitID(c.Admin.Name)
	g := &Gateway{
		Namespace: namespace,
		Name:      name,
		Authority: c.Auth.Authority(),
		STUNOnly:  c.Auth.Type == config.AuthNone,
		Revoked:   credential.NewRevocations(c.Auth.Revocations),
		answers:   &answers{urls: map[URLOptions][]string{}},
		Lifetime:  min(time.Duration(c.Auth.Lifetime)*time.Second, credential.MaxTTL),
	}
	for _, l := range c.Listeners {
		g.listeners = append(g.listeners, listener{name: l.Name[strings.LastIndexByte(l.Name, '/')+1:], Listener: l})
	}
	slices.SortStableFunc(g.listeners, func(a, b listener) int {
		return cmp.Or(order[a.ClientProtocol()]-order[b.ClientProtocol()], strings.Compare(a.name, b.name))
	})
	return g
}

// splitID splits the id of a config, NAMESPACE/NAME. The id of a hand-written config may have no namespace.
func splitID(id string) (namespace, name string) {
	if namespace, name, ok := strings.Cut(id, "/"); ok {
		return namespace, name
	}
	return "", id
}

// ID returns NAMESPACE/NAME.
func (g *Gateway) ID() string {
	if g.Namespace == "" {
		return g.Name
	}
	return g.Namespace + "/" + g.Name
}

// URLOptions configures the URLs in an answer.
type URLOptions struct {
	// Host replaces the public hosts of every listener in the URLs, including listeners without a public address.
	Host string
	// DTLS includes TURN over DTLS, which browsers do not support.
	DTLS bool
	// FromRequest is set if a request has chosen Host. Such URLs are not cached.
	FromRequest bool
	// Max is the number of URLs of a gateway above which no second URL of a listener is added. 0 means that each
	// listener has a URL for each of its public addresses.
	Max int
	// Limit makes Max a strict maximum. If a gateway has more listeners, protocols alternate in the list of URLs.
	Limit bool
}

// URLs returns the ICE URLs of the gateway. The URLs for the first public address of each listener are first, in the
// order UDP, DTLS, TCP, TLS. Then follow those for the second addresses, and so on, while there are fewer than v.Max.
// TURN over DTLS is left out unless v.DTLS is set. Listeners without a public address are left out unless v.Host is
// set, because clients cannot reach the addresses of pods.
//
// The result is shared: the caller must not change it.
func (g *Gateway) URLs(v URLOptions) []string {
	if v.FromRequest || g.answers == nil {
		return g.makeURLs(v)
	}
	return g.answers.get(v, func() []string { return g.makeURLs(v) })
}

func (g *Gateway) makeURLs(v URLOptions) (urls []string) {
	var protocols []config.Protocol // of urls
	more := true
	for i := 0; more; i++ {
		more = false
		for _, l := range g.listeners {
			all := g.urlsOf(l.Listener, v)
			if i >= len(all) || i > 0 && v.Max > 0 && len(urls) >= v.Max {
				continue
			}
			more = true
			if !slices.Contains(urls, all[i]) {
				urls, protocols = append(urls, all[i]), append(protocols, l.ClientProtocol())
			}
		}
	}
	if v.Limit && v.Max > 0 && len(urls) > v.Max {
		return limited(urls, protocols, v.Max)
	}
	return urls
}

// limited returns n of the URLs in their order: the first URL of each protocol, then the second URL of each, and so on.
func limited(urls []string, protocols []config.Protocol, n int) (out []string) {
	turn, seen := make([]int, len(urls)), map[config.Protocol]int{}
	for i, p := range protocols {
		turn[i] = seen[p]*len(order) + order[p]
		seen[p]++
	}
	last := slices.Sorted(slices.Values(turn))[n-1]
	for i, url := range urls {
		if turn[i] <= last {
			out = append(out, url)
		}
	}
	return out
}

// STUNURLs returns the stun: URL of the first listener for TURN over UDP, which answers STUN requests too, or none.
func (g *Gateway) STUNURLs(v URLOptions) []string {
	for _, l := range g.listeners {
		if l.ClientProtocol() != config.TURNUDP {
			continue
		}
		for _, uri := range v.uris(l.Listener) {
			if url, ok := stunURL(config.TURNUDP, uri); ok {
				return []string{url}
			}
		}
	}
	return nil
}

// uris returns the URIs of a listener, one for each of its public hosts, or the URI for v.Host.
func (v URLOptions) uris(l config.Listener) []config.URI {
	if v.Host != "" {
		l.PublicAddress, l.PublicAddresses, l.PublicHost = v.Host, nil, ""
	}
	return l.URIs()
}

// urlsOf returns the URLs of a listener, one for each of its public hosts.
func (g *Gateway) urlsOf(l config.Listener, v URLOptions) (urls []string) {
	if l.Protocol == config.TURNDTLS && !v.DTLS {
		return nil
	}
	for _, uri := range v.uris(l) {
		url, ok := uri.String(), true
		if g.STUNOnly {
			url, ok = stunURL(l.ClientProtocol(), uri)
		}
		if ok {
			urls = append(urls, url)
		}
	}
	return urls
}

// stunURL returns the STUN URI of a listener (RFC 7064). A STUN URI has no transport: for browsers "stun" means UDP and
// "stuns" means TLS over TCP. For a listener with another protocol stunURL returns false.
func stunURL(p config.Protocol, uri config.URI) (string, bool) {
	address := net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port))
	switch p {
	case config.TURNUDP:
		return "stun:" + address, true
	case config.TURNTLS:
		return "stuns:" + address, true
	}
	return "", false
}

// Filter selects gateways and listeners by their names; an empty field matches all.
type Filter struct {
	Namespace, Name, Listener string
}

// pick returns a gateway with the listeners that the filter selects, or nil if the filter selects another gateway, or a
// listener that the gateway does not have.
func (f Filter) pick(g *Gateway) *Gateway {
	if f.Namespace != "" && f.Namespace != g.Namespace || f.Name != "" && f.Name != g.Name {
		return nil
	}
	if f.Listener == "" {
		return g
	}
	i := slices.IndexFunc(g.listeners, func(l listener) bool { return l.name == f.Listener })
	if i < 0 {
		return nil
	}
	one := *g
	one.listeners, one.answers = g.listeners[i:i+1], nil
	return &one
}
