package probe

import (
	"context"
	"errors"
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
	limited, cancel := context.WithTimeout(ctx, timeout)
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

// probe sends Binding requests from several ports. If a NAT may forget the mapping of a connection, it returns one
// connection that was answered.
func (t target) probe(ctx context.Context) (u diagnose.ProbedURL, mapped *flow) {
	p := t.uri.Protocol()
	u = diagnose.ProbedURL{
		Listener: name(t.listener.Name), URL: t.uri.String(), Host: t.uri.Host, Transport: p.Network(), Secure: p.Secure(),
		Address: t.address, TLSAtBalancer: t.listener.TLSAtBalancer,
	}
	if !t.address.IsValid() {
		u.Result, u.Detail = diagnose.ProbeNoName, t.unresolved
		return u, nil
	}
	begun := time.Now()
	n := flows
	if p.Secure() {
		n = secureFlows
	}
	all := make([]flow, n)
	var group sync.WaitGroup
	for i := range all {
		group.Go(func() { t.try(ctx, &all[i]) })
	}
	group.Wait()
	var steady *flow
	u.Sent, u.Seconds, u.Long.Bytes = n, time.Since(begun).Seconds(), longest(p)
	for i := range all {
		f := &all[i]
		if f.err != nil {
			u.Result, u.Detail = resultOf(f.err), f.err.Error()
		} else {
			u.Answered++
		}
		if f.long {
			u.Long.Answered++
		}
		if f.serverConn == nil {
			continue
		}
		if u.Certificate == nil && len(f.certificates) > 0 {
			u.Certificate = certificate(f.certificates, t.uri.Host, time.Now())
		}
		switch {
		case mapped == nil && f.translated():
			mapped = f
		case steady == nil && f.err == nil && !p.Stream():
			steady = f
		default:
			f.end()
		}
	}
	if steady != nil {
		u.Train = steady.train(ctx)
		steady.end()
	}
	if u.Answered > 0 {
		u.Result, u.Detail = diagnose.ProbeAnswered, ""
	}
	if !t.longNeedsSession() {
		u.Long.Sent = u.Answered
	}
	return u, mapped
}

// flow is a new connection, or over UDP a new source port.
type flow struct {
	*serverConn // nil without a connection
	err         error
	// client is the address of the client that the server has received. at is the time of that answer.
	client netip.AddrPort
	at     time.Time
	// long is set if a long request was answered.
	long bool
}

// try sends a Binding request over a new connection. If it is answered, try sends a long request.
func (t target) try(ctx context.Context, f *flow) {
	p := t.uri.Protocol()
	if f.serverConn, f.err = dial(ctx, p, t.address, t.uri.Host); f.err != nil {
		return
	}
	if f.client, f.err = f.bind(ctx, 0); f.err != nil {
		return
	}
	if !t.longNeedsSession() {
		f.long = f.passes(ctx, longest(p))
	}
	f.at = time.Now()
}

// longNeedsSession reports whether only a client with an allocation may send long messages. Over DTLS only such a
// client may, because each message is a record.
func (t target) longNeedsSession() bool {
	return t.uri.Protocol().Secure() && !t.uri.Protocol().Stream()
}

// passes reports whether a long Binding request is answered, even if the server refuses it.
func (w *serverConn) passes(ctx context.Context, length int) bool {
	ctx, cancel := context.WithTimeout(ctx, longTimeout)
	defer cancel()
	_, err := w.bind(ctx, length)
	return !errors.Is(err, errNoAnswer)
}

// longest returns the length of the long messages of a protocol: with the headers of IPv6, UDP and DTLS they have the
// minimum MTU of IPv6 (RFC 8200 §5). Media packets of browsers are nearly as long. Two messages of a byte stream fill a
// whole segment of a usual path.
func longest(p config.Protocol) int {
	switch {
	case p.Stream():
		return 2 * maxUnauthenticated
	case p.Secure():
		return 1192
	}
	return 1232
}

// translated reports whether a NAT has translated the address of the client and may remove the mapping when no packets
// are sent. TCP mappings last for hours.
func (f *flow) translated() bool {
	local, ok := f.LocalAddr().(*net.UDPAddr)
	if !ok || f.err != nil || !f.client.IsValid() {
		return false
	}
	own := local.AddrPort()
	return netip.AddrPortFrom(own.Addr().Unmap(), own.Port()) != f.client
}

// pause waits for a time without sending, and then sends a Binding request. If the mapping has changed, it returns the
// mapping and ends the connection.
func (f *flow) pause(ctx context.Context, during time.Duration) *diagnose.LostMapping {
	defer f.end()
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(time.Until(f.at.Add(during))):
	}
	client, err := f.bind(ctx, 0)
	if ctx.Err() != nil || err == nil && (client == f.client || !client.IsValid()) {
		return nil
	}
	return &diagnose.LostMapping{Seconds: during.Seconds(), Before: f.client, After: client}
}
