package kube

import (
	"context"
	"fmt"
	"maps"
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
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// pods are the dataplane pods that there are, of which readers of configs show tokens. A watch tells of them: one question for all readers.
type podIndex struct {
	// ready is closed when all pods are known.
	ready chan struct{}
	cache client.Reader
}

func newPodIndex() *podIndex { return &podIndex{ready: make(chan struct{})} }

// get returns a pod; nil when there is none.
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

// podLag is by how much the watch of pods may be behind the API server, podPoll how often it is looked at meanwhile.
const (
	podLag  = 2 * time.Second
	podPoll = 50 * time.Millisecond
)

// await returns when a pod is known that the API server knows. A pod that is no dataplane is never known, and awaited for as long as the watch may be behind.
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

// gatewayOf is the Gateway whose config a pod may read, which is one of its own namespace.
func gatewayOf(pod *corev1.Pod) (id string, ok bool) {
	if pod.Labels[manifest.AppLabel] != manifest.AppValue || pod.Labels[resource.RelatedGatewayNamespace] != pod.Namespace {
		return "", false
	}
	return pod.Namespace + "/" + pod.Labels[resource.RelatedGatewayName], true
}

// slim leaves of a pod what is asked about it.
func slim(o any) (any, error) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	kept := map[string]string{}
	for _, label := range []string{manifest.AppLabel, resource.RelatedGatewayName, resource.RelatedGatewayNamespace} {
		if value, there := pod.Labels[label]; there {
			kept[label] = value
		}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, Labels: kept},
		Spec:       corev1.PodSpec{NodeName: pod.Spec.NodeName, ServiceAccountName: pod.Spec.ServiceAccountName},
	}, nil
}

// followPods starts the watch of the pods whose tokens readers of configs show. The streams of a pod that is gone, or that has become another Gateway's, are
// judged again at once. Without readers that show tokens there is nothing to watch.
func (p *Provider) followPods(ctx context.Context, group *errgroup.Group, readers *authorizer, l *loop, o cache.Options) error {
	if readers == nil {
		return nil
	}
	o.DefaultNamespaces = p.watched()
	o.ByObject = map[client.Object]cache.ByObject{&corev1.Pod{}: {
		Label: labels.SelectorFromSet(labels.Set{manifest.AppLabel: manifest.AppValue}), Transform: slim,
	}}
	c, err := cache.New(p.Config, o)
	if err != nil {
		return fmt.Errorf("make cache of pods: %w", err)
	}
	p.tasks.join(group, "watch of pods", func() error { return c.Start(ctx) })
	p.tasks.join(group, "start of the watch of pods", func() error {
		informer, err := c.GetInformer(ctx, &corev1.Pod{}, cache.BlockUntilSynced(false))
		if err != nil {
			return ignoreEnd(ctx, fmt.Errorf("watch pods: %w", err))
		}
		registration, err := informer.AddEventHandler(departures(func(pod *corev1.Pod) {
			if id, ok := gatewayOf(pod); ok {
				l.server.Reconsider(id, pod.Name)
			}
		}))
		if err != nil {
			return fmt.Errorf("watch pods: %w", err)
		}
		if toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			readers.pods.cache = c
			close(readers.pods.ready)
		}
		return nil
	})
	return nil
}

// departures tells of pods that are gone, or that are another Gateway's now.
func departures(left func(*corev1.Pod)) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, now any) {
			old, ok := before.(*corev1.Pod)
			pod, is := now.(*corev1.Pod)
			if ok && is && (old.UID != pod.UID || !maps.Equal(old.Labels, pod.Labels)) {
				left(old)
			}
		},
		DeleteFunc: func(o any) {
			if last, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			if pod, ok := o.(*corev1.Pod); ok {
				left(pod)
			}
		},
	}
}
