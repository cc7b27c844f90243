package icetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// Label is on all objects of a run. Its value is the name of the run's Job.
const Label = "stunner.l7mp.io/icetest"

// Ports of the echo peer, and the time that its pod has to start.
const (
	signallingPort = 7000
	mediaPort      = 7001
	podTimeout     = 90 * time.Second
	// deletionDelay is how long the Job may run after the timeout of the run.
	deletionDelay = time.Minute
)

var udpRoutes = schema.GroupVersionResource{Group: "stunner.l7mp.io", Version: "v1", Resource: "udproutes"}

// Deployment is an echo peer in the namespace of a Gateway: a Job, and owned by it a Service and a UDPRoute. The Job
// has a deadline, and Kubernetes deletes it after its end. Therefore the objects of a run that was killed are deleted,
// too.
type Deployment struct {
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	Gateway types.NamespacedName
	// Image is the image of the echo peer. Empty means the image of the release that the dataplane pods run.
	Image string
	// Timeout is the longest duration of the run.
	Timeout time.Duration
	// Dial connects to a port of a ready pod with the labels of a selector.
	Dial func(ctx context.Context, namespace, selector string, port int32) (net.Conn, error)

	name string
	// pullSecrets are those of the dataplane pods, because the image is in their repository.
	pullSecrets []corev1.LocalObjectReference
	media       []netip.AddrPort // the addresses of the pod, one of each family
}

// Start creates the objects and waits until the pod is ready. Stop must be called even if Start returns an error.
func (d *Deployment) Start(ctx context.Context) (err error) {
	dataplanes, err := d.dataplanes(ctx)
	if d.Image == "" {
		if err == nil {
			d.Image, err = d.releasedImage(dataplanes)
		}
		if err != nil {
			return err
		}
	}
	for _, pod := range dataplanes { // without the right to read them there may be none, and the image needs no Secret
		d.pullSecrets = pod.Spec.ImagePullSecrets
	}
	d.name = "icetest-" + strings.ToLower(rand.Text()[:8])
	meta := metav1.ObjectMeta{
		Name:   d.name,
		Labels: map[string]string{Label: d.name, "app.kubernetes.io/managed-by": "stunnerctl"},
	}
	job, err := d.Client.BatchV1().Jobs(d.Gateway.Namespace).Create(ctx, d.job(meta), metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create the Job of the echo peer: %w", err)
	}
	meta.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: job.UID}}
	dual := corev1.IPFamilyPolicyPreferDualStack // without it, the Service has endpoints of one family
	service := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
		ClusterIP: corev1.ClusterIPNone, IPFamilyPolicy: &dual, Selector: map[string]string{Label: d.name},
		Ports: []corev1.ServicePort{{Name: "webrtc", Port: mediaPort, Protocol: corev1.ProtocolUDP}},
	}}
	_, err = d.Client.CoreV1().Services(d.Gateway.Namespace).Create(ctx, service, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create the Service of the echo peer: %w", err)
	}
	route := d.route(meta)
	_, err = d.Dynamic.Resource(udpRoutes).Namespace(d.Gateway.Namespace).Create(ctx, route, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create the UDPRoute to the echo peer: %w", err)
	}
	return d.await(ctx)
}

// dataplanes returns the pods of the Gateway.
func (d *Deployment) dataplanes(ctx context.Context) ([]corev1.Pod, error) {
	pods, err := d.Client.CoreV1().Pods(d.Gateway.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: "stunner.l7mp.io/related-gateway-name=" + d.Gateway.Name,
	})
	if err != nil {
		return nil, fmt.Errorf("find the image of the echo peer: read the dataplane pods: %w: use --echo-image", err)
	}
	return pods.Items, nil
}

// releasedImage returns the image of the echo peer that was released with the image of a dataplane pod, in the same
// repository.
func (d *Deployment) releasedImage(dataplanes []corev1.Pod) (string, error) {
	for _, pod := range dataplanes {
		for _, c := range pod.Spec.Containers {
			if image := echoImageFor(c.Image); image != "" {
				return image, nil
			}
		}
	}
	return "", fmt.Errorf(
		"find the image of the echo peer: no dataplane pod of Gateway %s runs an image stunnerd with a tag: use --echo-image",
		d.Gateway,
	)
}

// echoImageFor returns the image echo in the repository of an image stunnerd, or "" for other images. It drops a
// digest, which belongs to one image only.
func echoImageFor(image string) string {
	image, _, _ = strings.Cut(image, "@")
	i := strings.LastIndexByte(image, '/') + 1
	name, tag, tagged := strings.Cut(image[i:], ":")
	if name != "stunnerd" || !tagged {
		return ""
	}
	return image[:i] + "echo:" + tag
}

// job returns the Job of the echo peer. Its pod meets the Pod Security Standard "restricted".
func (d *Deployment) job(meta metav1.ObjectMeta) *batchv1.Job {
	yes, no, never, deadline := true, false, int32(0), int64((d.Timeout + deletionDelay).Seconds())
	return &batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{
		ActiveDeadlineSeconds: &deadline, TTLSecondsAfterFinished: &never, BackoffLimit: &never,
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: meta.Labels},
			Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: &no, ImagePullSecrets: d.pullSecrets,
				TerminationGracePeriodSeconds: new(int64),
				SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes,
					SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
				Containers: []corev1.Container{{
					Name: "echo", Image: d.Image,
					Args: []string{
						fmt.Sprintf("--http=:%d", signallingPort), fmt.Sprintf("--media=[::]:%d", mediaPort), "--udp=127.0.0.1:0",
					},
					ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
						TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(signallingPort)}}},
					Resources: corev1.ResourceRequirements{
						Requests: corev1.ResourceList{
							corev1.ResourceCPU:    resource.MustParse("10m"),
							corev1.ResourceMemory: resource.MustParse("32Mi"),
						},
						Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")},
					},
					SecurityContext: &corev1.SecurityContext{
						AllowPrivilegeEscalation: &no,
						ReadOnlyRootFilesystem:   &yes,
						Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
					},
				}},
			},
		},
	}}
}

// route returns the UDPRoute. Its second backend is the Service of the Gateway itself, which has the Gateway's name:
// symmetric tests need relayed addresses as peers.
func (d *Deployment) route(meta metav1.ObjectMeta) *unstructured.Unstructured {
	owner := meta.OwnerReferences[0]
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "stunner.l7mp.io/v1", "kind": "UDPRoute",
		"spec": map[string]any{
			"parentRefs": []any{map[string]any{"name": d.Gateway.Name}},
			"rules": []any{map[string]any{"backendRefs": []any{
				map[string]any{"name": d.name, "port": int64(mediaPort)}, map[string]any{"name": d.Gateway.Name},
			}}},
		},
	}}
	u.SetName(d.name)
	u.SetLabels(meta.Labels)
	u.SetOwnerReferences([]metav1.OwnerReference{owner})
	return u
}

// await waits until the pod is ready.
func (d *Deployment) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	state := "it has no pod yet: see the events of the Job"
	for {
		pods, err := d.Client.CoreV1().
			Pods(d.Gateway.Namespace).
			List(ctx, metav1.ListOptions{LabelSelector: d.selector()})
		if err == nil {
			for _, pod := range pods.Items {
				var ready bool
				if ready, state = readiness(pod); ready {
					d.media, err = mediaOf(pod)
					return err
				}
			}
		} else if ctx.Err() == nil {
			return fmt.Errorf("read the pod of the echo peer: %w", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf(
				"the echo peer in Job %s/%s is not ready: %s: %w",
				d.Gateway.Namespace,
				d.name,
				state,
				context.Cause(ctx),
			)
		}
	}
}

// mediaOf returns the addresses of the media of a pod.
func mediaOf(pod corev1.Pod) (media []netip.AddrPort, err error) {
	for _, ip := range pod.Status.PodIPs {
		addr, err := netip.ParseAddr(ip.IP)
		if err != nil {
			return nil, fmt.Errorf("read the address of pod %s: %w", pod.Name, err)
		}
		media = append(media, netip.AddrPortFrom(addr, mediaPort))
	}
	if len(media) == 0 {
		return nil, fmt.Errorf("pod %s is ready and has no address", pod.Name)
	}
	return media, nil
}

// readiness reports whether a pod is ready. If it is not, it returns the reason.
func readiness(pod corev1.Pod) (ready bool, state string) {
	state = "the pod is " + string(pod.Status.Phase)
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return true, ""
		}
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			state = c.Message
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil && w.Message != "" {
			state = w.Reason + ": " + w.Message
		}
	}
	return false, state
}

func (d *Deployment) selector() string { return Label + "=" + d.name }

// Peer returns the echo peer, and the addresses of its media.
func (d *Deployment) Peer() (Peer, []netip.AddrPort) {
	return HTTPPeer{
		URL: fmt.Sprintf("http://echo:%d/", signallingPort),
		Client: &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return d.Dial(ctx, d.Gateway.Namespace, d.selector(), signallingPort)
			},
		}},
	}, d.media
}

// Stop deletes all objects of the run.
func (d *Deployment) Stop(ctx context.Context) error {
	if d.name == "" {
		return nil
	}
	_, err := Cleanup(ctx, d.Client, d.Dynamic, d.Gateway.Namespace, d.selector())
	return err
}

// Cleanup deletes the objects of runs that a selector selects, in one namespace, or in all namespaces if the namespace
// is empty. It returns their number. The UDPRoute is deleted first, so that its peers are denied at once.
func Cleanup(
	ctx context.Context,
	client kubernetes.Interface,
	objects dynamic.Interface,
	namespace, selector string,
) (deleted int, err error) {
	all := metav1.ListOptions{LabelSelector: selector}
	policy := metav1.DeletePropagationBackground
	withPods := metav1.DeleteOptions{PropagationPolicy: &policy}
	var errs []error
	remove := func(kind string, o metav1.Object, err error) {
		if err == nil {
			deleted++
		} else if !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete %s %s/%s: %w", kind, o.GetNamespace(), o.GetName(), err))
		}
	}
	routes, err := objects.Resource(udpRoutes).Namespace(namespace).List(ctx, all)
	if err != nil && !apierrors.IsNotFound(err) {
		errs = append(errs, fmt.Errorf("list UDPRoutes: %w", err))
	}
	if routes != nil {
		for _, o := range routes.Items {
			remove(
				"UDPRoute",
				&o,
				objects.Resource(udpRoutes).
					Namespace(o.GetNamespace()).
					Delete(ctx, o.GetName(), metav1.DeleteOptions{}),
			)
		}
	}
	services, err := client.CoreV1().Services(namespace).List(ctx, all)
	if err != nil {
		errs = append(errs, fmt.Errorf("list Services: %w", err))
	} else {
		for _, o := range services.Items {
			remove("Service", &o, client.CoreV1().Services(o.Namespace).Delete(ctx, o.Name, metav1.DeleteOptions{}))
		}
	}
	jobs, err := client.BatchV1().Jobs(namespace).List(ctx, all)
	if err != nil {
		errs = append(errs, fmt.Errorf("list Jobs: %w", err))
	} else {
		for _, o := range jobs.Items {
			remove("Job", &o, client.BatchV1().Jobs(o.Namespace).Delete(ctx, o.Name, withPods))
		}
	}
	return deleted, errors.Join(errs...)
}
