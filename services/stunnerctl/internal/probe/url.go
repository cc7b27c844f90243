package probe

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/diagnose"
)

// maxResolved is the number of addresses of a host name that are tested.
const maxResolved = 4

// target is a public URL at one address.
type target struct {
	listener config.Listener
	uri      config.URI
	// address is invalid if the host name was not resolved, and unresolved is why.
	address    netip.AddrPort
	unresolved string
}

// targets returns the addresses of the public URLs, and how many were left out.
func (o Options) targets(ctx context.Context) (all []target, omitted int) {
	for _, l := range o.Config.Listeners {
		for _, uri := range l.URIs() {
			for _, t := range resolve(ctx, l, uri) {
				if len(all) == MaxURLs {
					omitted++
					continue
				}
				all = append(all, t)
			}
		}
	}
	return all, omitted
}

// resolve returns the addresses of a URL.
func resolve(ctx context.Context, l config.Listener, uri config.URI) (all []target) {
	if a, err := netip.ParseAddr(uri.Host); err == nil {
		return []target{{listener: l, uri: uri, address: netip.AddrPortFrom(a.Unmap(), uint16(uri.Port))}}
	}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	found, err := net.DefaultResolver.LookupNetIP(limited, "ip", uri.Host)
	if err != nil {
		return []target{{listener: l, uri: uri, unresolved: err.Error()}}
	}
	for _, a := range found[:min(len(found), maxResolved)] {
		all = append(all, target{listener: l, uri: uri, address: netip.AddrPortFrom(a.Unmap(), uint16(uri.Port))})
	}
	return all
}

// probe sends Binding requests from several ports.
func (t target) probe(ctx context.Context) diagnose.ProbedURL {
	p := t.uri.Protocol()
	u := diagnose.ProbedURL{
		Listener: name(t.listener.Name), URL: t.uri.String(), Host: t.uri.Host, Transport: p.Network(), Secure: p.Secure(),
		Address: t.address,
	}
	if !t.address.IsValid() {
		u.Result, u.Detail = diagnose.ProbeNoName, t.unresolved
		return u
	}
	begun := time.Now()
	n := flows
	if p.Secure() {
		n = secureFlows
	}
	results, wires := make([]error, n), make([]*wire, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { wires[i], results[i] = t.try(ctx) })
	}
	all.Wait()
	u.Sent, u.Seconds = n, time.Since(begun).Seconds()
	for i, err := range results {
		if w := wires[i]; w != nil {
			if u.Certificate == nil && len(w.served) > 0 {
				u.Certificate = certificate(w.served, t.uri.Host)
			}
			w.end()
		}
		if err == nil {
			u.Answered++
		} else {
			u.Result, u.Detail = resultOf(err), err.Error()
		}
	}
	if u.Answered > 0 {
		u.Result, u.Detail = diagnose.ProbeAnswered, ""
	}
	return u
}

// try sends a Binding request over a new connection, which it returns.
func (t target) try(ctx context.Context) (*wire, error) {
	w, err := dial(ctx, t.uri.Protocol(), t.address, t.uri.Host)
	if err != nil {
		return nil, err
	}
	return w, w.bind(ctx)
}
