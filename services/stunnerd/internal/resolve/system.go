package resolve

import (
	"context"
	"errors"
	"net"
	"net/netip"
)

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// System returns the lookup that resolves names as this system is configured. A nil dial connects to the name servers
// directly.
//
// StrictErrors is set because otherwise net.Resolver would continue with the next entry of the search list if a name
// server fails, and return the "no such host" of that entry.
func System(dial dialFunc) Lookup {
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	r := &net.Resolver{PreferGo: true, StrictErrors: true, Dial: closeWithContext(dial)}
	return func(ctx context.Context, family, host string) ([]netip.Addr, error) {
		addrs, err := r.LookupNetIP(ctx, family, host)
		if hasNone(err) {
			return nil, nil
		}
		return addrs, err
	}
}

// closeWithContext closes connections to name servers when the lookup is canceled. net.Resolver alone would wait for
// its own timeout.
func closeWithContext(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err == nil {
			context.AfterFunc(ctx, func() { _ = conn.Close() })
		}
		return conn, err
	}
}

// hasNone reports whether err means that a name does not exist or has no address (*net.DNSError, from a name server),
// or has no address of the requested family (*net.AddrError, from a hosts file).
func hasNone(err error) bool {
	var dns *net.DNSError
	var family *net.AddrError
	return errors.As(err, &dns) && dns.IsNotFound || errors.As(err, &family)
}
