package topology

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// ReachPublic routes the public addresses of this network, which are those of nodes, load balancers and the NAT, from
// the test process. Each network has the same public addresses, so undo must be called before the next network is
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
