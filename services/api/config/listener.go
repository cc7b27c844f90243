package config

import (
	"cmp"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// MaxPublicAddresses is the maximum number of public_addresses of a listener.
const MaxPublicAddresses = 32

// MaxServiceAddresses is the maximum number of service_addresses of a listener.
const MaxServiceAddresses = 1_000

// AllPublicAddresses returns the IP addresses and host names that clients receive.
func (l Listener) AllPublicAddresses() []string {
	if len(l.PublicAddresses) > 0 || l.PublicAddress == "" {
		return l.PublicAddresses
	}
	return []string{l.PublicAddress}
}

// PublicHosts returns the IP addresses and host names in the URIs for clients: PublicHost, or else all public
// addresses.
func (l Listener) PublicHosts() []string {
	if l.PublicHost != "" {
		return []string{l.PublicHost}
	}
	return l.AllPublicAddresses()
}

// PublicNames returns the host names among the public addresses, and PublicHost.
func (l Listener) PublicNames() (names []string) {
	for _, host := range l.reachedHosts() {
		if _, err := netip.ParseAddr(host); err != nil {
			names = append(names, host)
		}
	}
	return names
}

// reachedHosts returns all public addresses, and PublicHost if there is one.
func (l Listener) reachedHosts() []string {
	if l.PublicHost == "" {
		return l.AllPublicAddresses()
	}
	return append(slices.Clip(l.AllPublicAddresses()), l.PublicHost)
}

// ReachedAt returns the external addresses of the listener: its public addresses, the addresses of PublicHost, and its
// addresses in Services. resolved returns the addresses of a host name. Addresses that do not parse are left out;
// Validate rejects them.
func (l Listener) ReachedAt(resolved func(name string) []netip.Addr) (addrs []netip.AddrPort) {
	for _, host := range l.reachedHosts() {
		public := []netip.Addr{}
		if a, err := netip.ParseAddr(host); err == nil {
			public = append(public, a)
		} else {
			public = append(public, resolved(host)...)
		}
		for _, a := range public {
			addrs = append(addrs, netip.AddrPortFrom(a.Unmap(), uint16(cmp.Or(l.PublicPort, l.Port))))
		}
	}
	for _, text := range l.ServiceAddresses {
		if addr, err := netip.ParseAddrPort(text); err == nil {
			addrs = append(addrs, netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()))
		}
	}
	return addrs
}

// AllCertificates returns Cert with Key, followed by Certificates. Clients whose server name (SNI) is in no other
// certificate receive the first one.
func (l Listener) AllCertificates() []Certificate {
	return append([]Certificate{{l.Cert, l.Key}}, l.Certificates...)
}

// KeyPair decodes a certificate and its key. Its errors quote neither of them.
func (c Certificate) KeyPair() (tls.Certificate, error) {
	cert, err := base64.StdEncoding.DecodeString(c.Cert)
	if err != nil {
		return tls.Certificate{}, errors.New("decode certificate: no base64: give the base64 form of the PEM")
	}
	key, err := base64.StdEncoding.DecodeString(string(c.Key))
	if err != nil {
		return tls.Certificate{}, errors.New("decode key: no base64: give the base64 form of the PEM")
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("read key pair: %w", err)
	}
	return pair, nil
}

func (f *findings) listeners(listeners []Listener) {
	if !f.atMost("listeners", len(listeners), maxListeners) {
		return
	}
	names, sockets := map[string]int{}, map[string]int{}
	for i, l := range listeners {
		at := func(field string) string { return index("listeners", i, field) }
		f.name(at("name"), l.Name)
		f.unique("listeners", i, l.Name, names)
		f.addresses(i, l)
		f.socket(i, l, sockets)
		f.balancer(i, l)
		f.certificates(i, l)
		if f.atMost(at("routes"), len(l.Routes), maxRoutes) {
			for j, route := range l.Routes {
				f.entryName(route, func() string { return fmt.Sprintf("listeners[%d].routes[%d]", i, j) })
			}
		}
	}
}

func (f *findings) addresses(i int, l Listener) {
	if !isAddress(l.Address) && !(f.lenient && l.Address == NodeAddressPlaceholder) {
		f.add(index("listeners", i, "address"), l.Address, "is no IP address",
			"use an IP address, localhost or "+AddressPlaceholder)
	}
	f.publicAddress(index("listeners", i, "public_address"), l.PublicAddress)
	if field := index("listeners", i, "public_addresses"); f.atMost(field, len(l.PublicAddresses), MaxPublicAddresses) {
		for j, address := range l.PublicAddresses {
			f.publicAddress(fmt.Sprintf("%s[%d]", field, j), address)
		}
	}
	f.publicHost(i, l)
	if l.PublicPort < 0 || l.PublicPort > 65535 {
		f.add(index("listeners", i, "public_port"), strconv.Itoa(l.PublicPort), "is out of range",
			"use 1 to 65535, or 0 for the port itself")
	}
	field := index("listeners", i, "service_addresses")
	if !f.atMost(field, len(l.ServiceAddresses), MaxServiceAddresses) {
		return
	}
	for j, text := range l.ServiceAddresses {
		if addr, err := netip.ParseAddrPort(text); err != nil || addr.Addr().Zone() != "" || addr.Port() == 0 {
			f.add(fmt.Sprintf("%s[%d]", field, j), text, "is no IP address with a port", "write IP:PORT or [IP]:PORT")
		}
	}
}

func (f *findings) publicAddress(field, address string) {
	if address == "" || f.lenient && address == NodeAddressPlaceholder || isAddress(address) || isHost(address) {
		return
	}
	f.add(field, address, "is neither IP address nor host name", "use one of them, without port")
}

func (f *findings) publicHost(i int, l Listener) {
	field, p := index("listeners", i, "public_host"), l.ClientProtocol()
	switch {
	case l.PublicHost == "":
	case !isHost(l.PublicHost) || isAddress(l.PublicHost):
		f.add(field, l.PublicHost, "is no host name", "write a name of the certificate, without port")
	case p.known() && !p.Secure():
		f.add(field, l.PublicHost, "is set for a listener of protocol "+string(p), "use public_address")
	}
}

// socket checks the protocol and the port of a listener, and that no other listener uses the same port.
func (f *findings) socket(i int, l Listener, sockets map[string]int) {
	if !l.Protocol.known() {
		f.add(index("listeners", i, "protocol"), string(l.Protocol), "is unknown", "use "+ProtocolNames())
	}
	port := strconv.Itoa(l.Port)
	if l.Port < 1 || l.Port > 65535 {
		f.add(index("listeners", i, "port"), port, "is out of range", "use 1 to 65535")
		return
	}
	if !l.Protocol.known() {
		return
	}
	socket := l.Protocol.Network() + ":" + port
	if first, taken := sockets[socket]; taken {
		problem := fmt.Sprintf("is the %s port of listeners[%d] already", l.Protocol.Network(), first)
		f.add(index("listeners", i, "port"), port, problem, "choose another port")
		return
	}
	sockets[socket] = i
}

func (f *findings) certificates(i int, l Listener) {
	f.secret(index("listeners", i, "key"), l.Key)
	for j, c := range l.Certificates {
		f.secret(index(index("listeners", i, "certificates"), j, "key"), c.Key)
	}
	if !l.Protocol.Secure() || !f.atMost(index("listeners", i, "certificates"), len(l.Certificates), maxCertificates) {
		return
	}
	for j, c := range l.AllCertificates() {
		at := func(field string) string { return index("listeners", i, field) }
		if j > 0 {
			at = func(field string) string { return index(index("listeners", i, "certificates"), j-1, field) }
		}
		f.certificate(at, l.Protocol, c)
	}
}

func (f *findings) certificate(at func(field string) string, p Protocol, c Certificate) {
	switch {
	case c.Cert == "":
		f.add(at("cert"), "", "is missing", fmt.Sprintf("%s needs a certificate", p))
	case c.Key == "":
		f.add(at("key"), "", "is missing", fmt.Sprintf("%s needs a private key", p))
	case f.lenient && (variable.MatchString(c.Cert) || variable.MatchString(string(c.Key))):
	case c.Key == credential.Redacted: // reported by secret
	default:
		if _, err := c.KeyPair(); err != nil {
			f.add(at("cert"), "", "and key are unusable", err.Error())
		}
	}
}
