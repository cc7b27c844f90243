package env

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	listers "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/stunner-gateway/stunner/e2e/internal/topology"
)

// services acts as a cloud and kube-proxy: it assigns addresses to load balancers, and translates the addresses of
// Services to pods.
type services struct {
	cluster *inCluster
	stop    func()

	mu     sync.Mutex
	served map[string][]netip.AddrPort // the pods to which new flows go, by port of a Service, NAMESPACE/NAME/PORT
	alive  map[netip.Addr]bool         // pods that serve, including terminating pods
}

// source lists the objects of one namespace.
type source struct {
	services listers.ServiceLister
	slices   discoverylisters.EndpointSliceLister
	synced   []cache.InformerSynced
}

// startServices watches Services and EndpointSlices until stop.
func startServices(c *inCluster) *services {
	ctx, cancel := context.WithCancel(context.Background())
	s := &services{cluster: c, served: map[string][]netip.AddrPort{}}
	changed := make(chan struct{}, 1)
	notify := func(any) {
		select {
		case changed <- struct{}{}:
		default: // the pending signal covers this change too
		}
	}
	var sources []source
	var running sync.WaitGroup
	for _, namespace := range c.namespaces() {
		factory := informers.NewSharedInformerFactoryWithOptions(c.client, 0, informers.WithNamespace(namespace))
		of := source{services: factory.Core().V1().Services().Lister(), slices: factory.Discovery().V1().EndpointSlices().Lister()}
		for _, i := range []cache.SharedIndexInformer{
			factory.Core().V1().Services().Informer(), factory.Discovery().V1().EndpointSlices().Informer(),
		} {
			// AddEventHandler fails only for a stopped informer.
			_, _ = i.AddEventHandler(cache.ResourceEventHandlerFuncs{
				AddFunc: notify, UpdateFunc: func(_, now any) { notify(now) }, DeleteFunc: notify,
			})
			of.synced = append(of.synced, i.HasSynced)
		}
		sources = append(sources, of)
		factory.Start(ctx.Done())
		running.Go(func() { <-ctx.Done(); factory.Shutdown() })
	}
	running.Go(func() {
		for {
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
			if err := s.sync(ctx, sources); err != nil && ctx.Err() == nil {
				c.fail(fmt.Errorf("serve Services: %w", err))
			}
		}
	})
	s.stop = func() { cancel(); running.Wait() }
	return s
}

// sync updates load balancers and nodes.
func (s *services) sync(ctx context.Context, sources []source) error {
	served, alive := map[string][]netip.AddrPort{}, map[netip.Addr]bool{}
	var ports []topology.ServicePort
	for _, of := range sources {
		all, err := of.services.List(labels.Everything())
		if err != nil {
			return err
		}
		slices.SortFunc(all, func(a, b *corev1.Service) int { return strings.Compare(a.Name, b.Name) })
		for _, svc := range all {
			if err := s.balance(ctx, svc); err != nil {
				return err
			}
			list, err := of.slices.EndpointSlices(svc.Namespace).List(
				labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: svc.Name}))
			if err != nil {
				return err
			}
			for _, p := range svc.Spec.Ports {
				pods := endpoints(list, p.Name, alive)
				served[fmt.Sprintf("%s/%s/%d", svc.Namespace, svc.Name, p.Port)] = pods
				ports = append(ports, servicePorts(svc, p, pods)...)
			}
		}
	}
	if err := s.cluster.Net.Serve(ports); err != nil {
		return err
	}
	s.mu.Lock()
	before := s.alive
	s.served, s.alive = served, alive
	s.mu.Unlock()
	var gone []netip.Addr
	for pod := range before {
		if !alive[pod] {
			gone = append(gone, pod)
		}
	}
	for _, pod := range gone {
		if err := s.cluster.Net.Forget(pod); err != nil {
			return err
		}
	}
	return nil
}

// balance writes the address of a load balancer into the status of its Service, once.
func (s *services) balance(ctx context.Context, svc *corev1.Service) error {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer || len(svc.Status.LoadBalancer.Ingress) > 0 {
		return nil
	}
	for _, g := range s.cluster.Gateways {
		if g.Namespace != svc.Namespace || !g.owns(svc.Name) {
			continue
		}
		var status corev1.ServiceStatus
		for _, both := range g.balancers {
			for _, a := range s.cluster.families(both) {
				status.LoadBalancer.Ingress = append(status.LoadBalancer.Ingress,
					corev1.LoadBalancerIngress{IP: a.String(), Ports: g.portErrors(svc.Spec.Ports)})
			}
		}
		patch, err := json.Marshal(map[string]any{"status": status})
		if err != nil {
			return err
		}
		_, err = s.cluster.client.CoreV1().Services(svc.Namespace).Patch(
			ctx, svc.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	}
	return nil
}

// portError is the error of a load balancer for a port that it does not serve.
const portError = "example.org/PortInUse"

// portErrors returns the ports in the status of a load balancer; nil if it serves all.
func (g *Gateway) portErrors(ports []corev1.ServicePort) (list []corev1.PortStatus) {
	if g.Unserved == nil {
		return nil
	}
	for _, p := range ports {
		status := corev1.PortStatus{Port: p.Port, Protocol: p.Protocol}
		if g.Unserved.isPort(p) {
			status.Error = new(string)
			*status.Error = portError
		}
		list = append(list, status)
	}
	return list
}

// isPort reports whether a port of a Service of the Gateway belongs to the listener.
func (l *Listener) isPort(p corev1.ServicePort) bool {
	return p.Port == l.port && strings.EqualFold(string(p.Protocol), l.transport)
}

// endpoints returns the pods that get new flows of a port: ready pods, or, if there are none, terminating pods that
// still serve. It adds all serving pods to alive.
func endpoints(list []*discoveryv1.EndpointSlice, port string, alive map[netip.Addr]bool) []netip.AddrPort {
	var ready, serving []netip.AddrPort
	for _, slice := range list {
		number := slices.IndexFunc(slice.Ports, func(p discoveryv1.EndpointPort) bool {
			return p.Port != nil && (p.Name == nil && port == "" || p.Name != nil && *p.Name == port)
		})
		if number < 0 {
			continue
		}
		for _, e := range slice.Endpoints {
			a, err := netip.ParseAddr(e.Addresses[0])
			if err != nil {
				continue // the address is a host name
			}
			pod := netip.AddrPortFrom(a, uint16(*slice.Ports[number].Port))
			isReady := e.Conditions.Ready == nil || *e.Conditions.Ready
			serves := isReady || e.Conditions.Serving != nil && *e.Conditions.Serving
			alive[a] = alive[a] || serves
			if isReady {
				ready = append(ready, pod)
			} else if serves {
				serving = append(serving, pod)
			}
		}
	}
	if len(ready) == 0 {
		ready = serving
	}
	slices.SortFunc(ready, netip.AddrPort.Compare)
	return ready
}

// servicePorts returns the translations for a port of a Service: connections to the cluster IP, and connections from
// outside, whose source is replaced with externalTrafficPolicy Cluster.
func servicePorts(svc *corev1.Service, p corev1.ServicePort, pods []netip.AddrPort) []topology.ServicePort {
	base := topology.ServicePort{
		Protocol: strings.ToLower(string(p.Protocol)), Port: p.Port, Endpoints: pods,
		Sticky: svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP,
	}
	inside, outside := base, base
	inside.KeepSource = true
	for _, ip := range svc.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(ip); err == nil { // the cluster IP of a headless Service is None
			inside.Addresses = append(inside.Addresses, a)
		}
	}
	outside.KeepSource = svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	outside.NodePort = p.NodePort
	for _, i := range svc.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(i.IP); err == nil && !refuses(i, p) {
			outside.Addresses = append(outside.Addresses, a)
		}
	}
	return []topology.ServicePort{inside, outside}
}

// refuses reports whether a load balancer has an error for a port of a Service.
func refuses(i corev1.LoadBalancerIngress, p corev1.ServicePort) bool {
	return slices.ContainsFunc(i.Ports, func(s corev1.PortStatus) bool {
		return s.Port == p.Port && s.Protocol == p.Protocol && s.Error != nil
	})
}

// exposed returns nil when nodes send new clients of a Gateway to all of its pods, and sets the node ports of its
// listeners.
func (s *services) exposed(ctx context.Context, g *Gateway) error {
	if s.cluster.Shape.place().hostNetwork {
		return nil // nodes and pods have the same addresses
	}
	all, err := s.cluster.client.CoreV1().Services(g.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	pods, err := s.cluster.dataplanes(g)
	if err != nil {
		return err
	}
	for _, l := range g.Listeners {
		if err := s.exposedBy(l, all.Items, pods); err != nil {
			return err
		}
	}
	return nil
}

// exposedBy looks for the port of a listener in the Services of its namespace.
func (s *services) exposedBy(l *Listener, all []corev1.Service, pods []Dataplane) error {
	for _, svc := range all {
		if !l.Gateway.owns(svc.Name) {
			continue
		}
		for _, p := range svc.Spec.Ports {
			if !l.isPort(p) {
				continue
			}
			if svc.Spec.Type == corev1.ServiceTypeLoadBalancer && len(svc.Status.LoadBalancer.Ingress) == 0 {
				return fmt.Errorf("the load balancer of Service %s has no address yet", svc.Name)
			}
			if err := s.leads(svc, p, pods); err != nil {
				return err
			}
			if s.cluster.Shape.place().at == nodePort {
				l.nodePort = p.NodePort
			}
			return nil
		}
	}
	return fmt.Errorf("no Service has listener %s", l)
}

// owns reports whether the Service with a name belongs to the Gateway.
func (g *Gateway) owns(service string) bool {
	return service == g.Name || service == g.Name+"-tcp" || service == g.Name+"-udp"
}

// leads returns nil if the nodes forward a port of a Service to the given pods and to no other pod.
func (s *services) leads(svc corev1.Service, p corev1.ServicePort, pods []Dataplane) error {
	var want []netip.Addr
	for _, d := range pods {
		want = append(want, d.Addrs...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var got []netip.Addr
	for _, a := range s.served[fmt.Sprintf("%s/%s/%d", svc.Namespace, svc.Name, p.Port)] {
		got = append(got, a.Addr())
	}
	slices.SortFunc(want, netip.Addr.Compare)
	slices.SortFunc(got, netip.Addr.Compare)
	if !slices.Equal(got, want) {
		return fmt.Errorf("port %d of Service %s leads to pods %v, want %v", p.Port, svc.Name, got, want)
	}
	return nil
}
