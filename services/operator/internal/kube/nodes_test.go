package kube

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func nodeAt(kind corev1.NodeAddressType, texts ...string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "north"}}
	for _, text := range texts {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: kind, Address: text})
	}
	node.Status.Addresses = append(
		node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.1"},
	)
	return node
}

func TestExternalAddressOfANode(t *testing.T) {
	for want, addresses := range map[string][]string{
		"": {"no address"}, "192.0.2.1": {"2001:db8::1", "192.0.2.1"}, "2001:db8::1": {"2001:db8::1"},
	} {
		if got := externalAddress(nodeAt(corev1.NodeExternalIP, addresses...)); got != want {
			t.Errorf("%v: %q, want %q", addresses, got, want)
		}
	}
}

// A node with a DNS name only has the address that its name resolves to. A failed lookup and another order of the
// answers keep the address.
func TestNamesOfNodesAreLookedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answer atomic.Pointer[[]string]
		var told atomic.Pointer[string]
		told.Store(new("nothing"))
		n := newNodeAddresses(func(_, address string) { told.Store(&address) }, slog.New(slog.DiscardHandler))
		n.lookup = func(_ context.Context, _, host string) (found []netip.Addr, err error) {
			if host != "north.example.net" {
				return nil, errors.New("no such host")
			}
			for _, a := range *answer.Load() {
				found = append(found, netip.MustParseAddr(a))
			}
			if len(found) == 0 {
				return nil, errors.New("no answer")
			}
			return found, nil
		}
		ts := &tasks{}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go ts.do("names", func(t *task) { n.run(ctx, t) })
		name := func(host string) func() { return func() { n.update(nodeAt(corev1.NodeExternalDNS, host), false) } }
		for _, step := range []struct {
			name   string
			answer []string
			do     func()
			want   string
		}{
			{"no answer yet", nil, name("north.example.net"), "nothing"},
			{"an answer", []string{"2001:db8::1", "192.0.2.2", "192.0.2.1"}, nil, "192.0.2.1"},
			{"no answer any more", nil, nil, "192.0.2.1"},
			{"another order, and one more", []string{"192.0.2.1", "192.0.2.0", "2001:db8::1"}, nil, "192.0.2.1"},
			{"it has moved", []string{"::ffff:192.0.2.7"}, nil, "192.0.2.7"},
			{"an unknown name", nil, name("south.example.net"), "192.0.2.7"},
			{"the name from before", []string{"192.0.2.8"}, name("north.example.net"), "192.0.2.8"},
			{"an address", []string{"192.0.2.8"}, func() {
				n.update(
					nodeAt(corev1.NodeExternalIP, "198.51.100.1"), false,
				)
			}, "198.51.100.1"},
			{"neither", []string{"192.0.2.8"}, func() { n.update(nodeAt(corev1.NodeHostName, "north"), false) }, ""},
			{"a name again", []string{"192.0.2.8"}, name("north.example.net"), "192.0.2.8"},
			{"gone", []string{"192.0.2.8"}, func() {
				n.update(
					nodeAt(corev1.NodeExternalDNS, "north.example.net"), true,
				)
			}, ""},
		} {
			answer.Store(&step.answer)
			if step.do != nil {
				step.do()
			}
			time.Sleep(lookupEvery)
			synctest.Wait()
			if is := *told.Load(); is != step.want {
				t.Errorf("%s: the address is %q, want %q", step.name, is, step.want)
			}
		}
	})
}
