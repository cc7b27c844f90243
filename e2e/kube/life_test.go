package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// dataplane follows the config of a Gateway as its pods do.
type dataplane struct {
	*tenant
	events <-chan discovery.Event
}

func (n *tenant) dataplane(gateway string) *dataplane {
	n.Helper()
	source, err := discovery.Open(
		fmt.Sprintf("http://127.0.0.1:%d", n.discovery), discovery.Options{ID: n.name + "/" + gateway},
	)
	n.must(err)
	return &dataplane{n, source.Watch(n.Context())}
}

// next waits for the next event, other than a change of the connection state.
func (d *dataplane) next() discovery.Event {
	d.Helper()
	ctx, cancel := context.WithTimeout(d.Context(), timeout)
	defer cancel()
	for {
		select {
		case e := <-d.events:
			if e.Connected {
				continue
			}
			d.must(e.Err)
			return e
		case <-ctx.Done():
			d.Fatal("no event arrived")
		}
	}
}

// until waits for a config that satisfies holds. It returns all configs up to this config.
func (d *dataplane) until(holds func(config.Config) bool) (seen []config.Config) {
	d.Helper()
	for {
		e := d.next()
		if e.Deleted {
			d.Fatal("the config was withdrawn")
		}
		seen = append(seen, e.Config)
		if holds(e.Config) {
			return seen
		}
	}
}

func offers(address string) func(config.Config) bool {
	return func(c config.Config) bool { return len(c.Listeners) > 0 && c.Listeners[0].PublicAddress == address }
}

// the address of a load balancer is copied to the status and the config. A replaced address is never published
// again.
func TestLoadBalancerAddressIsFollowed(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: lobby}
spec:
  gatewayClassName: CLASS
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]
`)
	n.expose("lobby", "192.0.2.7")
	n.addresses("lobby", "192.0.2.7")
	d := n.dataplane("lobby")
	d.until(offers("192.0.2.7"))
	before := map[string]bool{"192.0.2.7": true}
	for _, address := range []string{"192.0.2.8", "", "192.0.2.9"} {
		n.expose("lobby", address)
		n.gateway("lobby", map[bool]string{true: homeless, false: programmed}[address == ""])
		if address == "" {
			n.addresses("lobby")
		} else {
			n.addresses("lobby", address)
		}
		seen := d.until(offers(address))
		// The first config may have been sent before the address changed.
		for i, c := range seen {
			if old := c.Listeners[0].PublicAddress; i > 0 && before[old] {
				n.Errorf("%s was published again, before %q", old, address)
			}
		}
		before[address] = true
	}
}

// L-3: a Secret, GatewayConfig or Dataplane that is deleted sets conditions, and changes no object and no config.
// All conditions are good again when it is re-created.
func TestGatewaySurvivesMissingReferences(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	const (
		secret = `
apiVersion: v1
kind: Secret
metadata: {name: vault}
stringData: {type: ephemeral, secret: marzipan-and-rosewater}
`
		settings = `
apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata: {name: settings}
spec: {dataplane: NAMESPACE, authRef: {name: vault}}
`
		template = `
apiVersion: stunner.l7mp.io/v1
kind: Dataplane
metadata: {name: NAMESPACE}
spec: {enableMetricsEndpoint: true, allowedNamespaces: {from: All}}
`
	)
	n.apply(secret + "---" + settings + "---" + template + rooms + udpRoute("media", "{name: lobby}", "{name: rooms}") + `
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: lobby}
spec:
  gatewayClassName: CLASS
  infrastructure: {parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: settings}}
  listeners:
  - {name: udp, port: 3478, protocol: TURN-UDP}
  - {name: tcp, port: 3478, protocol: TURN-TCP}
`)
	n.expose("lobby", "192.0.2.7")
	n.expose("lobby-tcp", "192.0.2.8")
	n.gateway("lobby", programmed)
	n.serves("lobby", "udp 192.0.2.7", "tcp 192.0.2.8")
	n.reaches("lobby", "198.51.100.21")
	devices := []*dataplane{n.dataplane("lobby"), n.dataplane("lobby")}
	for _, d := range devices {
		d.until(func(c config.Config) bool { return offers("192.0.2.7")(c) && len(c.Clusters) == 1 })
	}
	made := func() string {
		n.Helper()
		udp, tcp, pods := &corev1.Service{}, &corev1.Service{}, &appsv1.Deployment{}
		n.must(errors.Join(
			n.read(n.Context(), "lobby", udp), n.read(n.Context(), "lobby-tcp", tcp),
			n.read(n.Context(), "lobby", pods),
		))
		return fmt.Sprintf("%s %s %s %d", udp.ResourceVersion, tcp.ResourceVersion, pods.UID, pods.Generation)
	}
	before := made()
	for _, c := range []struct{ lost, want string }{
		{secret, "!Accepted:Pending !Programmed:Invalid"},
		{template, "!Accepted:InvalidParameters !Programmed:Invalid"},
		{settings, "!Accepted:InvalidParameters !Programmed:Invalid"},
	} {
		n.remove(c.lost)
		n.gateway("lobby", c.want)
		n.serves("lobby", "udp 192.0.2.7", "tcp 192.0.2.8")
		n.reaches("lobby", "198.51.100.21")
		n.addresses("lobby", "192.0.2.7", "192.0.2.8")
		n.apply(c.lost)
		n.gateway("lobby", programmed)
		if after := made(); after != before {
			n.Errorf("without %s: objects %s, were %s", c.lost, after, before)
		}
	}
	// The next event at the dataplane must be this change, and no earlier one.
	n.apply(udpRoute("media", "{name: lobby}", "{name: rooms, port: 7001}"))
	for _, d := range devices {
		if e := d.next(); e.Deleted || len(e.Config.Clusters) != 1 ||
			!slices.Equal(e.Config.Clusters[0].Endpoints, []string{"198.51.100.21:<7001-7001>"}) {
			n.Errorf("the dataplane received %+v", e)
		}
	}
}

// the config of a deleted Gateway is withdrawn explicitly. A Gateway that is re-created at once owns all objects,
// and uses none of the deleted Gateway.
func TestRecreatedGatewayUsesNothingOfItsPredecessor(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	const lobby = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: lobby}
spec:
  gatewayClassName: CLASS
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]
`
	n.apply(lobby)
	n.expose("lobby", "192.0.2.7")
	n.gateway("lobby", programmed)
	d := n.dataplane("lobby")
	d.until(offers("192.0.2.7"))
	for range 3 {
		n.remove(lobby)
		n.apply(lobby)
		gw := &gwapiv1.Gateway{}
		n.must(n.read(n.Context(), "lobby", gw))
		for _, o := range []client.Object{&corev1.Service{}, &appsv1.Deployment{}, &corev1.ConfigMap{}} {
			n.await(func(ctx context.Context) error { return n.ownedBy(ctx, gw, o) })
		}
		n.expose("lobby", "192.0.2.8")
		n.gateway("lobby", programmed)
		n.addresses("lobby", "192.0.2.8")
		n.serves("lobby", "udp 192.0.2.8")
	}
	n.remove(lobby)
	n.await(func(context.Context) error {
		if e := d.next(); !e.Deleted {
			return errors.New("the config was not withdrawn")
		}
		return nil
	})
	n.serves("lobby")
	for _, o := range []client.Object{
		&corev1.Service{}, &appsv1.Deployment{}, &corev1.ConfigMap{}, &gwapiv1.Gateway{},
	} {
		n.awaitDeleted("lobby", o)
	}
}

// ownedBy returns nil if an object is not being deleted and the Gateway is its only owner.
func (n *tenant) ownedBy(ctx context.Context, gw *gwapiv1.Gateway, o client.Object) error {
	if err := n.read(ctx, gw.Name, o); err != nil {
		return err
	}
	owners := o.GetOwnerReferences()
	if o.GetDeletionTimestamp() != nil || len(owners) != 1 || owners[0].UID != gw.UID {
		return fmt.Errorf("%T %s is owned by %+v, want %s", o, gw.Name, owners, gw.UID)
	}
	return nil
}

// a namespace that is deleted while its Gateways are being created disappears completely. Other Gateways are not
// affected.
func TestNamespaceCanBeDeleted(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	guest := n.namespace("-guest")
	const gateways = 12
	for i := range gateways {
		guest.apply(fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: lobby-%d}
spec:
  gatewayClassName: CLASS
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP}, {name: tcp, port: 3478, protocol: TURN-TCP}]
`, i) + udpRoute(fmt.Sprintf("media-%d", i), fmt.Sprintf("{name: lobby-%d}", i), "{name: missing}"))
	}
	d := guest.dataplane("lobby-0")
	d.until(func(config.Config) bool { return true })
	n.must(n.Delete(n.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: guest.name}}))
	for !d.next().Deleted {
	}
	n.await(func(ctx context.Context) error {
		namespace := &corev1.Namespace{}
		if err := n.Get(ctx, types.NamespacedName{Name: guest.name}, namespace); client.IgnoreNotFound(err) != nil ||
			err == nil {
			return fmt.Errorf("the namespace is %s: %+v", namespace.Status.Phase, namespace.Status.Conditions)
		}
		return nil
	})
	for i := range gateways {
		guest.serves(fmt.Sprintf("lobby-%d", i))
	}
	n.apply(lobby)
	n.gateway("lobby", programmed)
}
