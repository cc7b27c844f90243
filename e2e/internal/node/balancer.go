package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// firstAddress is the address of the first LoadBalancer Service; later Services get the next addresses. The default
// route of the test leads to the first node, so packets for these addresses reach it.
var firstAddress = netip.MustParseAddr("198.18.1.1")

// balancer assigns addresses to Services of type LoadBalancer, as a cloud controller does.
type balancer struct {
	cluster *Cluster
	next    netip.Addr
	given   map[types.UID]netip.Addr
}

func (c *Cluster) startBalancer(ctx context.Context) error {
	b := &balancer{cluster: c, next: firstAddress, given: map[types.UID]netip.Addr{}}
	own, stop := context.WithCancel(context.Background())
	c.stop = stop
	factory := informers.NewSharedInformerFactory(c.Client, 0)
	services := factory.Core().V1().Services().Informer()
	handle := func(o any) { b.give(own, o.(*corev1.Service)) }
	if _, err := services.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: handle, UpdateFunc: func(_, o any) { handle(o) },
	}); err != nil {
		return err
	}
	factory.Start(own.Done())
	if !cache.WaitForCacheSync(ctx.Done(), services.HasSynced) {
		return errors.Join(errors.New("list Services"), context.Cause(ctx))
	}
	return nil
}

// give writes the address of a Service into its status. The informer calls give for one event at a time.
func (b *balancer) give(ctx context.Context, s *corev1.Service) {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return
	}
	address, known := b.given[s.UID]
	if !known {
		address, b.next = b.next, b.next.Next()
		b.given[s.UID] = address
	}
	// In mode VIP, kube-proxy on the node of a pod handles the packets that the pod sends to the address.
	mode := corev1.LoadBalancerIPModeVIP
	want := []corev1.LoadBalancerIngress{{IP: address.String(), IPMode: &mode}}
	if has := s.Status.LoadBalancer.Ingress; len(has) == 1 && has[0].IP == want[0].IP {
		return
	}
	s = s.DeepCopy()
	s.Status.LoadBalancer.Ingress = want
	_, err := b.cluster.Client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, s, metav1.UpdateOptions{})
	// after a conflict, the informer delivers another event
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		fmt.Printf("give Service %s/%s its address: %v\n", s.Namespace, s.Name, err)
	}
}
