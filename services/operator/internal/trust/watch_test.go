package trust

import (
	"crypto/tls"
	"net"
	"net/netip"
	"testing"
)

// WatchPlain names the source of a client without TLS, and changes neither TLS nor the data that is read.
func TestWatchPlain(t *testing.T) {
	plain := make(chan netip.Addr, 10)
	address, _, a := port(t, func(ln net.Listener, id *Identity) net.Listener {
		return tls.NewListener(WatchPlain(ln, func(source netip.Addr) { plain <- source }), id.Server())
	})
	conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: a.Pool(), ServerName: "discovery.example.net"})
	if err != nil {
		t.Fatal(err)
	}
	if got := ask(t, conn); got != "200 OK" {
		t.Errorf("over TLS: %s", got)
	}
	if len(plain) != 0 {
		t.Error("a client with TLS counts as plain")
	}
	raw, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	if got := ask(t, raw); got != "400 Bad Request" {
		t.Errorf("without TLS: %s", got)
	}
	if got := <-plain; got != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("plain client %s", got)
	}
}
