package topology

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// TestHostsReachEachOther: the test process reaches pods, pods reach media servers, and clients reach the public
// addresses of nodes, but no private address.
func TestHostsReachEachOther(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	for number, xdp := range []bool{false, true} {
		t.Run(fmt.Sprintf("xdp %v", xdp), func(t *testing.T) {
			n, err := New(Options{Number: number + 1, Nodes: 2, XDP: xdp})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := n.Close(); err != nil {
					t.Error(err)
				}
			}()
			node := n.Nodes[1]
			pod, err := node.AddPod()
			if err != nil {
				t.Fatal(err)
			}
			for family := range families {
				ping := func(s *netns.Space, to netip.Addr) error {
					_, err := s.Exec("ping -c 1 -W 2 " + to.String())
					return err
				}
				if _, err := netns.Exec("ping -c 1 -W 2 " + pod.Addrs[family].String()); err != nil {
					t.Errorf("from the test process: %v", err)
				}
				if err := ping(pod.Space, n.Peer(3)[family]); err != nil {
					t.Error(err)
				}
				if err := ping(n.Clients, node.External[family]); err != nil {
					t.Error(err)
				}
				if ping(n.Clients, node.Internal[family]) == nil {
					t.Errorf("clients reach %s", node.Internal[family])
				}
			}
		})
	}
}
