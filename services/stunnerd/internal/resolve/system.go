package resolve

import (
	"context"
	"errors"
	"net"
	"net/netip"
)

// System returns the lookup that resolves names the way this system is set up. A nil dial reaches the name servers directly.
//
// An answer is whole or it is an error: without StrictErrors, net.Resolver walks past a name server that is in trouble to the
// next entry of the search list, and takes the "no such host" that it finds there for the answer.
func System(dial func(ctx context.Context, network, address string) (net.Conn, error)) Lookup {
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	r := &net.Resolver{PreferGo: true, StrictErrors: true, Dial: abandoning(dial)}
	return func(ctx context.Context, family, host string) ([]netip.Addr, error) {
		addrs, err := r.LookupNetIP(ctx, family, host)
		if hasNone(err) {
			return nil, nil
		}
		return addrs, err
	}
}

// abandoning ends the wait for a name server together with the lookup; net.Resolver alone would sit it out after everyone has left.
func abandoning(dial func(context.Context, string, string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err == nil {
			context.AfterFunc(ctx, func() { _ = conn.Close() })
		}
		return conn, err
	}
}

// hasNone tells that a name does not exist, has no address, or has none of the family: net.Resolver knows the first two from a
// name server and the last from a hosts file.
func hasNone(err error) bool {
	var dns *net.DNSError
	var family *net.AddrError
	return errors.As(err, &dns) && dns.IsNotFound || errors.As(err, &family)
}
