package topology

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// ReachPublic makes the test process reach the public addresses of this network, which are the same in each network:
// the addresses of nodes, load balancers and the NAT. undo is called before another network is reached.
func (n *Network) ReachPublic() (undo func() error, err error) {
	router := host(n.subnet(homeNet), 2)
	change := func(verb string) (err error) {
		for _, public := range []Both[netip.Prefix]{nodeNet, balancers, translated} {
			for family := range families {
				_, changeErr := netns.Exec(fmt.Sprintf("ip route %s %s via %s", verb, public[family], router[family].Addr()))
				err = errors.Join(err, changeErr)
			}
		}
		return err
	}
	return func() error { return change("del") }, change("add")
}
