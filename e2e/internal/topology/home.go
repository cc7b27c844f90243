package topology

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// ReachPublic routes the public addresses of this network from the test process. These are the addresses of nodes, load
// balancers and the NAT. All networks have the same public addresses, so undo must be called before another network is
// routed.
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
