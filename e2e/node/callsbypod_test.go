//go:build node

package node_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
)

// callsByPod contains calls, by the address of the pod that relays them.
type callsByPod struct {
	caller
	calls map[string][]*call.Call
}

const (
	calm     = time.Second // interval between datagrams
	diallers = 8           // concurrent set-ups
)

// size returns the number of calls.
func (c *callsByPod) size() (n int) {
	for _, at := range c.calls {
		n += len(at)
	}
	return n
}

// dial makes calls until there are n: nine of ten over UDP, the others over TCP, at the address of the Gateway, or at
// the address of a pod if given.
func (c *callsByPod) dial(n int, pod string) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), timeout)
	defer cancel()
	var mu sync.Mutex
	var workers sync.WaitGroup
	var errs []error
	missing := make(chan call.Network, n)
	for i := range n - c.size() {
		network := call.UDP
		if i%10 == 9 {
			network = call.TCP
		}
		missing <- network
	}
	close(missing)
	for range diallers {
		workers.Go(func() {
			for network := range missing {
				one, err := c.one(ctx, network, pod)
				mu.Lock()
				if err != nil {
					errs = append(errs, err)
				} else {
					at := one.Relay().(*net.UDPAddr).IP.String()
					c.calls[at] = append(c.calls[at], one)
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	if err := errors.Join(errs...); err != nil {
		c.Fatalf("%d of %d calls are set up: %v", c.size(), n, err)
	}
	c.Logf("%d calls are set up: %s", n, c.loads())
}

// one makes a call with a new credential.
func (c *callsByPod) one(ctx context.Context, network call.Network, pod string) (*call.Call, error) {
	ice, err := c.ask(ctx)
	if err != nil {
		return nil, err
	}
	gateway, err := ice.Address(protocols[network])
	if err != nil {
		return nil, err
	}
	if pod != "" {
		gateway = netip.AddrPortFrom(netip.MustParseAddr(pod), gateway.Port())
	}
	one, err := call.Start(c.Context(), call.Options{
		Gateway: gateway, Network: network, Username: ice.Username, Password: ice.Credential, Peer: c.peer,
		Interval: calm,
	})
	if err != nil {
		return nil, err
	}
	return one, one.Await(ctx, 1)
}

// spread changes the number of calls per pod. It first makes new calls and then ends others, so that the total never
// drops below the target.
func (c *callsByPod) spread(loads map[string]int) {
	c.Helper()
	for pod, load := range loads {
		if missing := load - len(c.calls[pod]); missing > 0 {
			c.dial(c.size()+missing, pod)
		}
	}
	for pod, load := range loads {
		c.leave(pod, len(c.calls[pod])-load)
	}
}

// leave ends calls of a pod.
func (c *callsByPod) leave(pod string, n int) {
	c.Helper()
	if n <= 0 {
		return
	}
	at := c.calls[pod]
	c.end(at[:n]...)
	c.calls[pod] = at[n:]
	c.Logf("%d calls have ended: %s", n, c.loads())
}

func (c *callsByPod) leaveAll() {
	c.Helper()
	for pod := range c.calls {
		c.leave(pod, len(c.calls[pod]))
	}
}

// end ends calls, which must have lost nothing.
func (c *callsByPod) end(calls ...*call.Call) {
	c.Helper()
	var workers sync.WaitGroup
	for _, one := range calls {
		workers.Go(func() {
			if stats := one.End(silence); stats.Lost != 0 || stats.Err != nil {
				c.Errorf("call of %s: %s", one.Relay(), stats)
			}
		})
	}
	workers.Wait()
}

// intact checks that every call continues.
func (c *callsByPod) intact() {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), silence)
	defer cancel()
	var workers sync.WaitGroup
	for pod, calls := range c.calls {
		for _, one := range calls {
			workers.Go(func() {
				if err := one.AwaitMore(ctx, 3); err != nil {
					c.Errorf("call of %s: %v", pod, err)
				}
			})
		}
	}
	workers.Wait()
	c.Logf("all %d calls continue: %s", c.size(), c.loads())
}

// loads formats the number of calls per pod.
func (c *callsByPod) loads() string {
	var all []string
	for _, pod := range slices.Sorted(maps.Keys(c.calls)) {
		if n := len(c.calls[pod]); n > 0 {
			all = append(all, fmt.Sprintf("%s %d", pod, n))
		}
	}
	return strings.Join(all, ", ")
}

// awaitPods waits until n pods accept new calls, and returns their addresses. It logs every change.
func (c *callsByPod) awaitPods(n int) []string {
	c.Helper()
	begun, last := time.Now(), -1
	var found []string
	c.until(fmt.Sprintf("%d pods accept calls", n), func(context.Context) error {
		found = nil
		for _, p := range c.pods(dataplanes) {
			if ready(p) {
				found = append(found, p.Status.PodIP)
			}
		}
		if len(found) != last {
			last = len(found)
			c.Logf("%7s  %d pods accept calls, %d calls are live", since(begun), last, c.size())
		}
		if last != n {
			return fmt.Errorf("%d pods accept calls, want %d", last, n)
		}
		return nil
	})
	return found
}

func ready(p corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// awaitRemoval waits until one of the given pods accepts no more calls. It returns the addresses of the other pods, and
// the address of the pod that is gone.
func (c *callsByPod) awaitRemoval(of []string) (left []string, gone string) {
	c.Helper()
	left = c.awaitPods(len(of) - 1)
	for _, pod := range of {
		if !slices.Contains(left, pod) {
			gone = pod
		}
	}
	return left, gone
}

// awaitDeletionCosts waits until the deletion costs of the pods correspond to their calls.
func (c *callsByPod) awaitDeletionCosts(loads map[string]int) {
	c.Helper()
	c.until("the deletion costs correspond to the calls", func(context.Context) error {
		for _, p := range c.pods(dataplanes) {
			var cost int
			if text := p.Annotations[corev1.PodDeletionCost]; text != "" {
				if _, err := fmt.Sscan(text, &cost); err != nil {
					return err
				}
			}
			if want := loads[p.Status.PodIP]; cost < want*9/10 || cost > want*11/10 {
				return fmt.Errorf("pod %s has deletion cost %d and %d calls", p.Name, cost, want)
			}
		}
		return nil
	})
}

// named returns the name of the pod with an address, including terminating pods.
func (c *callsByPod) named(address string) string {
	c.Helper()
	return c.kubectl(
		"", "get", "pods", "--selector="+dataplanes, "--field-selector=status.podIP="+address,
		"--output=jsonpath={.items[*].metadata.name}",
	)
}
