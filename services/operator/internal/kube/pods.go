package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// podIndex contains the dataplane pods, which are needed to verify tokens that are bound to a pod, and to name the pods
// that answer no requests of the inspection API. A watch fills the index, so that neither needs a request to the API
// server.
type podIndex struct {
	// ready is closed when the existing pods are listed.
	ready chan struct{}
	cache client.Reader
}

func newPodIndex() *podIndex { return &podIndex{ready: make(chan struct{})} }

// get returns a pod, or nil if it does not exist. It waits until the existing pods are listed or ctx ends.
func (p *podIndex) get(ctx context.Context, key types.NamespacedName) (*corev1.Pod, error) {
	select {
	case <-p.ready:
	case <-ctx.Done():
		return nil, fmt.Errorf("find pod %s: %w: the pods have not been read yet", key, discovery.ErrUndecided)
	}
	pod := &corev1.Pod{}
	switch err := p.cache.Get(ctx, key, pod); {
	case err == nil:
		return pod, nil
	case client.IgnoreNotFound(err) == nil:
		return nil, nil
	default:
		return nil, fmt.Errorf("find pod %s: %w: %w", key, discovery.ErrUndecided, err)
	}
}

// addressIndex is the name of the cache index in which pods are found by IP address.
const addressIndex = "address"

// atAddress returns the running dataplane pod that has an IP address. It returns an error if there is none or more than
// one. Pods with host network are not in the index, because all processes of their node have the same address.
func (p *podIndex) atAddress(ctx context.Context, address netip.Addr) (*corev1.Pod, error) {
	select {
	case <-p.ready:
	case <-ctx.Done():
		return nil, fmt.Errorf("find pod at %s: %w: the pods have not been read yet", address, discovery.ErrUndecided)
	}
	list := &corev1.PodList{}
	if err := p.cache.List(ctx, list, client.MatchingFields{addressIndex: address.String()}); err != nil {
		return nil, fmt.Errorf("find pod at %s: %w: %w", address, discovery.ErrUndecided, err)
	}
	if len(list.Items) != 1 {
		return nil, fmt.Errorf("authorize reader of configs: it has no token, and %d dataplane pods have its address %s",
			len(list.Items), address)
	}
	return &list.Items[0], nil
}

// podAddresses returns the IP addresses under which a pod is in addressIndex. It returns none for a pod that has ended,
// because its status still contains its address although another pod may have it by now.
func podAddresses(o client.Object) (addresses []string) {
	pod, ok := o.(*corev1.Pod)
	if !ok || pod.Spec.HostNetwork || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	for _, ip := range pod.Status.PodIPs {
		if address, err := netip.ParseAddr(ip.IP); err == nil {
			addresses = append(addresses, address.Unmap().String())
		}
	}
	return addresses
}

// addresses returns the IP addresses of a dataplane pod of the Gateway id; none if it is a pod of another Gateway.
// known is false if the watch has not delivered the pod or its addresses yet. Unlike atAddress, it works for pods with
// host network: their addresses are those of the node.
func (p *podIndex) addresses(id, pod string) (list []netip.Addr, known bool) {
	select {
	case <-p.ready:
	default:
		return nil, false
	}
	namespace, _, _ := strings.Cut(id, "/")
	found, err := p.get(context.Background(), types.NamespacedName{Namespace: namespace, Name: pod})
	if err != nil || found == nil {
		return nil, false
	}
	if of, ok := configOf(found); !ok || of != id {
		return nil, true
	}
	for _, ip := range found.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			list = append(list, a.Unmap())
		}
	}
	return list, len(list) > 0
}

// running returns the running dataplane pods of a Gateway by name. known is false until the existing pods are listed.
func (p *podIndex) running(gateway types.NamespacedName) (pods map[string]*corev1.Pod, known bool) {
	select {
	case <-p.ready:
	default:
		return nil, false
	}
	list := &corev1.PodList{}
	if err := p.cache.List(context.Background(), list, client.InNamespace(gateway.Namespace),
		client.MatchingLabels{resource.RelatedGatewayName: gateway.Name}); err != nil {
		return nil, false
	}
	pods = map[string]*corev1.Pod{}
	for i := range list.Items {
		pod := &list.Items[i]
		if id, ok := configOf(pod); ok && id == gateway.String() && pod.Status.Phase == corev1.PodRunning {
			pods[pod.Name] = pod
		}
	}
	return pods, true
}

var errPodsUnknown = errors.New("the pods of the Gateway are not known: the operator has not read them yet")

// inspected implements inspect.Options.Running.
func (p *podIndex) inspected(id string) (reasons map[string]string, err error) {
	namespace, name, _ := strings.Cut(id, "/")
	pods, known := p.running(types.NamespacedName{Namespace: namespace, Name: name})
	if !known {
		return nil, errPodsUnknown
	}
	reasons = map[string]string{}
	for name, pod := range pods {
		if reason := silence(pod); reason != "" {
			reasons[name] = reason
		}
	}
	return reasons, nil
}

// silence returns why a pod in phase Running may answer no requests. It returns "" for a deleted pod whose container
// has ended, because its sessions have ended too. Any other container that has ended is restarted, and continues its
// sessions.
func silence(pod *corev1.Pod) string {
	for _, c := range pod.Status.ContainerStatuses {
		switch {
		case c.Name != manifest.ContainerName:
		case c.State.Waiting != nil:
			return "its container does not run: " + c.State.Waiting.Reason
		case c.State.Terminated != nil && pod.DeletionTimestamp != nil:
			return ""
		case c.State.Terminated != nil:
			return "its container does not run: " + c.State.Terminated.Reason
		}
	}
	return inspection.NotConnected
}

const (
	// podLag is how long await waits for the watch to deliver a new pod.
	podLag = 2 * time.Second
	// podPoll is the polling interval of await.
	podPoll = 50 * time.Millisecond
)

// await waits up to podLag until the watch has delivered a pod that was just created. For a pod that is not a dataplane
// pod, it always waits for podLag.
func (p *podIndex) await(ctx context.Context, key types.NamespacedName) {
	ctx, cancel := context.WithTimeout(ctx, podLag)
	defer cancel()
	poll := time.NewTicker(podPoll)
	defer poll.Stop()
	for {
		if pod, err := p.get(ctx, key); pod != nil || err != nil {
			return
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return
		}
	}
}

// newPodCache returns a cache of the dataplane pods.
func newPodCache(s Settings, o cache.Options) (cache.Cache, error) {
	o.DefaultNamespaces = s.watchedNamespaces()
	o.ByObject = map[client.Object]cache.ByObject{&corev1.Pod{}: {
		Label: labels.SelectorFromSet(labels.Set{manifest.AppLabel: manifest.AppValue}), Transform: trimPod,
	}}
	c, err := cache.New(s.Config, o)
	if err != nil {
		return nil, fmt.Errorf("make cache of pods: %w", err)
	}
	return c, nil
}

// start watches the dataplane pods. When a pod is deleted or its labels change, the config discovery streams of the pod
// must be authorized again, so reconsider is called with the config ID and the pod name.
func (p *podIndex) start(
	ctx context.Context, group *errgroup.Group, ts *tasks, c cache.Cache, reconsider func(id, pod string),
) error {
	if err := c.IndexField(ctx, &corev1.Pod{}, addressIndex, podAddresses); err != nil {
		return fmt.Errorf("make index of pods: %w", err)
	}
	ts.join(group, "watch of pods", func() error { return c.Start(ctx) })
	ts.join(group, "start of the watch of pods", func() error {
		synced, err := addHandler(ctx, c, &corev1.Pod{}, podHandler(func(pod *corev1.Pod) {
			if id, ok := configOf(pod); ok {
				reconsider(id, pod.Name)
			}
		}))
		if err != nil {
			return ignoreEnd(ctx, fmt.Errorf("watch pods: %w", err))
		}
		if toolscache.WaitForCacheSync(ctx.Done(), synced) {
			p.cache = c
			close(p.ready)
		}
		return nil
	})
	return nil
}

// podHandler returns an event handler that calls changed when a pod is deleted or replaced, when its labels change, or
// when its node reports its first address. The argument is the previous state of the pod.
func podHandler(changed func(*corev1.Pod)) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, now any) {
			old, ok := before.(*corev1.Pod)
			pod, is := now.(*corev1.Pod)
			if !ok || !is {
				return
			}
			reported := len(old.Status.PodIPs) == 0 && len(pod.Status.PodIPs) > 0
			if reported || old.UID != pod.UID || !maps.Equal(old.Labels, pod.Labels) {
				changed(old)
			}
		},
		DeleteFunc: func(payload any) {
			o, _ := objectOf(payload)
			if pod, ok := o.(*corev1.Pod); ok {
				changed(pod)
			}
		},
	}
}

// configOf returns the ID of the config that a dataplane pod may read. A pod may only read the config of a Gateway in
// its own namespace, because users can set the labels of their pods.
func configOf(pod *corev1.Pod) (id string, ok bool) {
	if pod.Labels[manifest.AppLabel] != manifest.AppValue ||
		pod.Labels[resource.RelatedGatewayNamespace] != pod.Namespace {
		return "", false
	}
	return pod.Namespace + "/" + pod.Labels[resource.RelatedGatewayName], true
}

// trimPod drops all fields of a pod that podIndex does not need, to save memory. It is a cache.TransformFunc.
func trimPod(o any) (any, error) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	kept := map[string]string{}
	for _, label := range []string{manifest.AppLabel, resource.RelatedGatewayName, resource.RelatedGatewayNamespace} {
		if value, found := pod.Labels[label]; found {
			kept[label] = value
		}
	}
	var containers []corev1.ContainerStatus
	for _, c := range pod.Status.ContainerStatuses {
		if c.Name == manifest.ContainerName {
			containers = append(containers, corev1.ContainerStatus{Name: c.Name, State: trimState(c.State)})
		}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, Labels: kept,
			DeletionTimestamp: pod.DeletionTimestamp,
		},
		Spec: corev1.PodSpec{
			NodeName: pod.Spec.NodeName, ServiceAccountName: pod.Spec.ServiceAccountName,
			HostNetwork: pod.Spec.HostNetwork,
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, PodIPs: pod.Status.PodIPs, ContainerStatuses: containers},
	}, nil
}

// trimState drops all fields of the state of a container except its reason. A running container has none.
func trimState(s corev1.ContainerState) (trimmed corev1.ContainerState) {
	if s.Waiting != nil {
		trimmed.Waiting = &corev1.ContainerStateWaiting{Reason: s.Waiting.Reason}
	}
	if s.Terminated != nil {
		trimmed.Terminated = &corev1.ContainerStateTerminated{Reason: s.Terminated.Reason}
	}
	return trimmed
}
