// Package gateway knows the gateways of the cluster, as config discovery reports them: where clients reach them and who
// makes their credentials.
package gateway

import (
	"cmp"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// Gateway is what clients need to know of one gateway.
type Gateway struct {
	Namespace, Name string
	// Authority makes the credentials.
	Authority credential.Authority
	// STUNOnly is set when the gateway relays for nobody: it has no credentials.
	STUNOnly bool
	// Lifetime is the default and the maximum time to live of a credential; 0 leaves it to the service.
	Lifetime time.Duration

	listeners []listener
}

type listener struct {
	name string
	config.Listener
}

// order is how listeners are offered: what works best first. Browsers try URLs in any order, other clients take the first.
var order = map[config.Protocol]int{config.TURNUDP: 0, config.TURNDTLS: 1, config.TURNTCP: 2, config.TURNTLS: 3}

func newGateway(c config.Config) Gateway {
	namespace, name := splitID(c.Admin.Name)
	g := Gateway{
		Namespace: namespace,
		Name:      name,
		Authority: c.Auth.Authority(),
		STUNOnly:  c.Auth.Type == config.AuthNone,
		Lifetime:  min(time.Duration(c.Auth.Lifetime)*time.Second, credential.MaxTTL),
	}
	for _, l := range c.Listeners {
		g.listeners = append(g.listeners, listener{name: l.Name[strings.LastIndexByte(l.Name, '/')+1:], Listener: l})
	}
	slices.SortStableFunc(g.listeners, func(a, b listener) int {
		return cmp.Or(order[a.Protocol]-order[b.Protocol], strings.Compare(a.name, b.name))
	})
	return g
}

// splitID reads NAMESPACE/NAME; a config that was written by hand may have a name only.
func splitID(id string) (namespace, name string) {
	if namespace, name, ok := strings.Cut(id, "/"); ok {
		return namespace, name
	}
	return "", id
}

// ID is NAMESPACE/NAME.
func (g Gateway) ID() string {
	if g.Namespace == "" {
		return g.Name
	}
	return g.Namespace + "/" + g.Name
}

// View says how a caller wants to see the URLs of a gateway.
type View struct {
	// Host replaces the public address of every listener, also of those that have none.
	Host string
	// DTLS includes TURN over DTLS, which browsers cannot speak.
	DTLS bool
}

// URLs are the ICE URLs of the gateway, UDP before DTLS, TCP and TLS. A listener without public address is left out:
// the addresses of pods are no use to a client.
func (g Gateway) URLs(v View) []string {
	var out []string
	for _, l := range g.listeners {
		if url, ok := g.url(l.Listener, v); ok {
			out = append(out, url)
		}
	}
	return slices.Compact(out)
}

func (g Gateway) url(l config.Listener, v View) (string, bool) {
	if l.Protocol == config.TURNDTLS && !v.DTLS {
		return "", false
	}
	if v.Host != "" {
		l.PublicAddress = v.Host
	}
	uri, ok := l.URI()
	switch {
	case !ok:
		return "", false
	case g.STUNOnly:
		return stunURL(l.Protocol, uri)
	}
	return uri.String(), true
}

// stunURL is the RFC 7064 form, which cannot name a transport: "stun" means UDP to browsers, "stuns" TLS over TCP.
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

// Filter picks gateways and listeners; an empty field matches everything.
type Filter struct {
	Namespace, Name, Listener string
}

// pick returns the part of g that the filter asks for.
func (f Filter) pick(g Gateway) (Gateway, bool) {
	if f.Namespace != "" && f.Namespace != g.Namespace || f.Name != "" && f.Name != g.Name {
		return Gateway{}, false
	}
	if f.Listener == "" {
		return g, true
	}
	i := slices.IndexFunc(g.listeners, func(l listener) bool { return l.name == f.Listener })
	if i < 0 {
		return Gateway{}, false
	}
	g.listeners = g.listeners[i : i+1]
	return g, true
}
