// Package kubelet runs the pods of an API server as processes, in networks that its caller provides. It acts as a
// scheduler and as the kubelets of some nodes, with the functions that pods of the product need: binding, environment,
// volumes, probes, restarts, termination and status.
//
//	kubelet.go  the watch of pods, scheduling
//	pod.go      the life of one pod
//	volume.go   volumes as folders, and the environment
package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Sandbox is the network of a pod.
type Sandbox struct {
	// Do calls a function in the network namespace.
	Do func(func())
	// Addrs are the addresses of the pod. Host is the address of its node.
	Addrs []netip.Addr
	Host  netip.Addr
}

// Options of a Kubelet.
type Options struct {
	Client kubernetes.Interface
	// Namespaces are the namespaces whose pods run.
	Namespaces []string
	// Nodes are the names of the nodes, which exist at the API server.
	Nodes []string
	// Sandbox returns the network of a new pod of a namespace on a node.
	Sandbox func(namespace, node string, hostNetwork bool) (Sandbox, error)
	// Program returns the path of the program in an image, or "" if there is none.
	Program func(image string) string
	// Dir takes volumes and logs.
	Dir string
	// Failed is called with each error that keeps a pod from having a process.
	Failed func(error)
}

// Kubelet runs the pods of some namespaces.
type Kubelet struct {
	Options

	stop    context.CancelFunc
	running sync.WaitGroup

	mu   sync.Mutex
	pods map[types.UID]*Pod
	// waiting are the pods for which no node is available yet.
	waiting map[types.UID]*corev1.Pod
}

// Start watches pods until Stop.
func Start(o Options) *Kubelet {
	ctx, stop := context.WithCancel(context.Background())
	k := &Kubelet{Options: o, stop: stop, pods: map[types.UID]*Pod{}, waiting: map[types.UID]*corev1.Pod{}}
	for _, namespace := range o.Namespaces {
		factory := informers.NewSharedInformerFactoryWithOptions(o.Client, 0, informers.WithNamespace(namespace))
		core := factory.Core().V1()
		k.handle(core.Pods().Informer(), func(object any) { k.observe(ctx, object.(*corev1.Pod)) }, k.forget)
		refresh := func(any) { k.refresh(ctx, namespace) }
		k.handle(core.ConfigMaps().Informer(), refresh, nil)
		k.handle(core.Secrets().Informer(), refresh, nil)
		factory.Start(ctx.Done())
		k.running.Go(func() { <-ctx.Done(); factory.Shutdown() })
	}
	return k
}

func (k *Kubelet) handle(informer cache.SharedIndexInformer, changed, deleted func(any)) {
	// AddEventHandler fails only for a stopped informer.
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: changed, UpdateFunc: func(_, now any) { changed(now) }, DeleteFunc: deleted,
	})
}

// forget removes a pod that was deleted before it had a node. The API server deletes such a pod at once.
func (k *Kubelet) forget(object any) {
	if last, missed := object.(cache.DeletedFinalStateUnknown); missed {
		object = last.Obj
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.waiting, object.(*corev1.Pod).UID)
}

// Stop kills all processes and ends the watches.
func (k *Kubelet) Stop() {
	k.stop()
	k.running.Wait()
}

// observe handles a new version of a pod.
func (k *Kubelet) observe(ctx context.Context, pod *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.pods[pod.UID]
	delete(k.waiting, pod.UID)
	switch {
	case p != nil:
		if pod.DeletionTimestamp != nil {
			p.terminate(time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second)
		}
	case pod.DeletionTimestamp != nil:
		k.running.Go(func() { k.remove(ctx, pod) })
	case pod.Spec.NodeName == "":
		k.schedule(ctx, pod)
	}
}

// schedule starts a pod on a node, or later when a node is available.
func (k *Kubelet) schedule(ctx context.Context, pod *corev1.Pod) {
	node := k.node(pod)
	if node == "" {
		k.waiting[pod.UID] = pod
		return
	}
	p := newPod(k, pod, node)
	k.pods[pod.UID] = p
	k.running.Go(func() {
		p.run(ctx)
		k.mu.Lock()
		defer k.mu.Unlock()
		for _, next := range slices.SortedFunc(maps.Values(k.waiting), func(a, b *corev1.Pod) int {
			return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
		}) {
			delete(k.waiting, next.UID)
			if ctx.Err() == nil {
				k.schedule(ctx, next)
			}
		}
	})
}

// node returns the node for a pod: the one with the fewest pods with the same labels, as with the default constraints
// of the scheduler, and of these the one with the fewest pods. It returns "" if anti-affinity excludes all nodes.
func (k *Kubelet) node(pod *corev1.Pod) string {
	same, all, excluded := map[string]int{}, map[string]int{}, map[string]bool{}
	for _, p := range k.pods {
		if p.ended() {
			continue
		}
		all[p.node]++
		// A terminating pod counts too.
		if excludes(pod, p.spec) || excludes(p.spec, pod) {
			excluded[p.node] = true
		}
		if p.spec.Namespace == pod.Namespace && maps.Equal(p.spec.Labels, pod.Labels) && !p.Terminating() {
			same[p.node]++
		}
	}
	nodes := slices.DeleteFunc(slices.Clone(k.Nodes), func(n string) bool { return excluded[n] })
	if len(nodes) == 0 {
		return ""
	}
	return slices.MinFunc(nodes, func(a, b string) int {
		return cmp.Or(same[a]-same[b], all[a]-all[b])
	})
}

// excludes reports whether the required anti-affinity of a pod keeps another pod from its node.
func excludes(pod, other *corev1.Pod) bool {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil || pod.Namespace != other.Namespace {
		return false
	}
	terms := pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	return slices.ContainsFunc(terms, func(t corev1.PodAffinityTerm) bool {
		s, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
		return err == nil && t.TopologyKey == corev1.LabelHostname && s.Matches(labels.Set(other.Labels))
	})
}

// refresh writes the volumes of all pods of a namespace again, after a ConfigMap or Secret has changed.
func (k *Kubelet) refresh(ctx context.Context, namespace string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.pods {
		if p.spec.Namespace == namespace && !p.ended() {
			k.running.Go(func() { p.report(p.mount(ctx)) })
		}
	}
}

// remove deletes a pod whose processes have ended.
func (k *Kubelet) remove(ctx context.Context, pod *corev1.Pod) {
	err := k.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
	})
	if err != nil && ctx.Err() == nil {
		k.Failed(fmt.Errorf("remove pod %s/%s: %w", pod.Namespace, pod.Name, err))
	}
}

// Pods returns the pods with a running process whose label has the given value, the oldest first.
func (k *Kubelet) Pods(namespace, label, value string) (list []*Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.pods {
		if p.spec.Namespace == namespace && p.spec.Labels[label] == value && !p.ended() {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b *Pod) int { return a.created.Compare(b.created) })
	return list
}

// bind writes the node of a pod to the API server.
func (k *Kubelet) bind(ctx context.Context, pod *corev1.Pod, node string) error {
	err := k.Client.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("bind to %s: %w", node, err)
	}
	return nil
}

// errNoProgram reports an image that this machine does not have.
var errNoProgram = errors.New("no program for the image")
