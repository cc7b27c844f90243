package netns

import (
	"fmt"
	"io"
	"net/netip"
	"os"
)

// Join connects the namespace to a router, which is another namespace, by a veth pair. The interface of the router has
// the given name and the addresses here. The interface of the namespace is eth0, has the addresses there, and is the
// default route of each family.
func (s *Space) Join(router *Space, name string, here, there []netip.Prefix) error {
	if _, err := router.Exec(fmt.Sprintf("ip link add %s type veth peer name eth0 netns %d", name, s.thread)); err != nil {
		return err
	}
	return s.configure(router, name, here, there)
}

// JoinByTAP is Join with two TAP interfaces, because their driver supports XDP, as the driver of a network card does.
// Closing the returned value deletes both.
func (s *Space) JoinByTAP(router *Space, name string, here, there []netip.Prefix) (io.Closer, error) {
	var near, far *os.File
	var err error
	router.Do(func() { near, err = tap(name) })
	if err != nil {
		return nil, err
	}
	s.Do(func() { far, err = tap("eth0") })
	if err != nil {
		_ = near.Close()
		return nil, err
	}
	if err := s.configure(router, name, here, there); err != nil {
		return pair{near, far}, err
	}
	// Copying begins only now, because reading from an interface that is down is an error.
	for from, to := range map[*os.File]*os.File{near: far, far: near} {
		go func() { _, _ = io.Copy(to, struct{ io.Reader }{from}) }() // ends with Close
	}
	return pair{near, far}, nil
}

type pair [2]*os.File

// Close deletes both interfaces.
func (p pair) Close() error {
	_ = p[0].Close()
	return p[1].Close()
}

// Plug connects the namespace to a bridge of a router by a veth pair. The interface at the bridge has the given name.
// The interface of the namespace is eth0 and has the addresses. Its default route of each family leads to a gateway.
func (s *Space) Plug(router *Space, bridge, name string, gateways, addresses []netip.Prefix) error {
	add := fmt.Sprintf("ip link add %s type veth peer name eth0 netns %d", name, s.thread)
	for _, command := range []string{add, "ip link set " + name + " master " + bridge, "ip link set " + name + " up"} {
		if _, err := router.Exec(command); err != nil {
			return err
		}
	}
	return s.connect(gateways, addresses)
}

func (s *Space) configure(router *Space, name string, here, there []netip.Prefix) error {
	for _, p := range here {
		if err := router.AddAddress(p, name); err != nil {
			return err
		}
	}
	if _, err := router.Exec(fmt.Sprintf("ip link set %s up", name)); err != nil {
		return err
	}
	return s.connect(here, there)
}

// connect configures eth0.
func (s *Space) connect(gateways, addresses []netip.Prefix) error {
	for _, p := range addresses {
		if err := s.AddAddress(p, "eth0"); err != nil {
			return err
		}
	}
	if _, err := s.Exec("ip link set eth0 up"); err != nil {
		return err
	}
	for _, p := range gateways {
		if _, err := s.Exec(fmt.Sprintf("ip route add default via %s dev eth0", p.Addr())); err != nil {
			return err
		}
	}
	return nil
}

// AddAddress adds an address to an interface of the namespace.
func (s *Space) AddAddress(p netip.Prefix, device string) error {
	_, err := s.Exec(addressCommand(p, device))
	return err
}

// AddAddress adds an address to an interface of the network namespace of the calling thread.
func AddAddress(p netip.Prefix, device string) error {
	_, err := Exec(addressCommand(p, device))
	return err
}

// addressCommand returns the command that adds an address. An IPv6 address is not checked for duplicates (nodad), so
// that it is usable at once.
func addressCommand(p netip.Prefix, device string) string {
	command := fmt.Sprintf("ip address add %s dev %s", p, device)
	if p.Addr().Is6() {
		command += " nodad"
	}
	return command
}
