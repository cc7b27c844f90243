package env

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/e2e/internal/topology"
)

// proxy is the part of a load balancer that ends the connections of clients: HAProxy on its own host. Datagrams pass
// the load balancer unchanged.
type proxy struct {
	addrs   topology.Both[netip.Addr]
	roots   *x509.CertPool // CAs that verify the certificate of the proxy
	ca      []byte         // the CAs in PEM
	process *harness.Process
}

// startProxy starts the proxy of a Gateway, and waits until it accepts connections.
func (g *Gateway) startProxy(ctx context.Context) error {
	path, err := exec.LookPath("haproxy")
	if err != nil {
		return errors.New("haproxy is not installed: run .ci/install")
	}
	var ports []int32
	for _, l := range g.proxied() {
		ports = append(ports, l.port)
	}
	g.proxy = &proxy{roots: x509.NewCertPool()}
	space, addrs, err := g.env.Net.AddProxy(g.public[0], ports)
	if err != nil {
		return err
	}
	g.proxy.addrs = addrs
	file := filepath.Join(g.env.Dir, "haproxy-"+g.Name)
	if err := g.writeProxyConfig(file); err != nil {
		return err
	}
	space.Do(func() {
		g.proxy.process, err = harness.Start(harness.Command{
			Name: "haproxy-" + g.Name, Path: path, Args: []string{"-db", "-f", file + ".cfg"}, Logs: g.env.Dir,
		})
	})
	if err != nil {
		return err
	}
	return g.env.Await(ctx, "start of haproxy", func(ctx context.Context) error {
		return g.proxy.process.Until(ctx, func(ctx context.Context) error { return accepts(ctx, space, addrs[0], ports) })
	})
}

// accepts returns nil if an address of a host accepts connections at all ports.
func accepts(ctx context.Context, host *netns.Space, at netip.Addr, ports []int32) error {
	for _, port := range ports {
		var conn net.Conn
		var err error
		host.Do(func() {
			conn, err = new(net.Dialer).DialContext(ctx, "tcp", netip.AddrPortFrom(at, uint16(port)).String())
		})
		if err != nil {
			return err
		}
		_ = conn.Close()
	}
	return nil
}

// proxied returns the listeners whose connections the proxy ends.
func (g *Gateway) proxied() (list []*Listener) {
	for _, l := range g.Listeners {
		if l.transport == "tcp" && (g.env.Shape.place().header || !l.Secure()) {
			list = append(list, l)
		}
	}
	return list
}

// writeProxyConfig writes the config of the proxy and its certificate, FILE.cfg and FILE.pem. The config has both
// address families. Clients use the families of the shape.
func (g *Gateway) writeProxyConfig(file string) error {
	authority, err := harness.NewAuthority()
	if err != nil {
		return err
	}
	chain, key, err := authority.Issue(g.clientAddresses()...)
	if err != nil {
		return err
	}
	g.proxy.roots.AddCert(authority.Certificate)
	g.proxy.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Certificate.Raw})
	var text strings.Builder
	text.WriteString("defaults\n  mode tcp\n  timeout connect 10s\n  timeout client 1h\n  timeout server 1h\n")
	for _, l := range g.proxied() {
		bind, server := "", ""
		if l.Network == call.TLS && !l.Secure() {
			bind = " ssl crt " + file + ".pem"
		}
		if g.env.Shape.place().header {
			server = " send-proxy-v2"
		}
		for family, own := range g.balancers[0] {
			port := uint16(l.port)
			fmt.Fprintf(&text, "listen %s%d\n  bind %s%s\n  server gateway %s%s\n", l.Name, family,
				netip.AddrPortFrom(g.proxy.addrs[family], port), bind, netip.AddrPortFrom(own, port), server)
		}
	}
	return errors.Join(
		os.WriteFile(file+".pem", append(chain, key...), 0o600), os.WriteFile(file+".cfg", []byte(text.String()), 0o600))
}

// prefixes returns the addresses from which the proxy connects, as the annotation of a Gateway has them.
func (p *proxy) prefixes(e *Env) string {
	var list []string
	for _, a := range e.families(p.addrs) {
		list = append(list, netip.PrefixFrom(a, a.BitLen()).String())
	}
	return strings.Join(list, ",")
}

func (p *proxy) close() error {
	if p == nil || p.process == nil {
		return nil
	}
	return p.process.Kill()
}
