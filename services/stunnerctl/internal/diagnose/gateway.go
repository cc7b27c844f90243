package diagnose

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/inspection"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// Labels of generated objects.
const (
	labelGateway          = "stunner.l7mp.io/related-gateway-name"
	labelGatewayNamespace = "stunner.l7mp.io/related-gateway-namespace"
	labelOwned            = "stunner.l7mp.io/owned-by"
)

// Annotations of Gateways that decide which resources a Gateway has.
const (
	annotationUnmanaged    = "stunner.l7mp.io/disable-managed-dataplane"
	annotationServiceType  = "stunner.l7mp.io/service-type"
	annotationMixed        = "stunner.l7mp.io/enable-mixed-protocol-lb"
	annotationHideHealth   = "stunner.l7mp.io/disable-health-check-expose"
	annotationTrafficLocal = "stunner.l7mp.io/external-traffic-policy"
	annotationNoAffinity   = "stunner.l7mp.io/disable-session-affinity"
)

// Gateway is a Gateway with the objects and answers that belong to it.
type Gateway struct {
	*gwapiv1.Gateway
	Class *gwapiv1.GatewayClass
	// Config and Dataplane are nil if they do not exist or cannot be read.
	Config    *stunnerv1.GatewayConfig
	Dataplane *stunnerv1.Dataplane
	Services  []*corev1.Service
	Slices    []*discoveryv1.EndpointSlice
	// Pods are the dataplane pods that have not ended.
	Pods        []*corev1.Pod
	Deployments []*appsv1.Deployment
	DaemonSets  []*appsv1.DaemonSet
	Routes      []*Route
	Live        Live
	// Statuses are the statuses of those dataplanes that answered.
	Statuses []*inspection.Status
	// Refusals are the recent refusals of all dataplanes, the newest first.
	Refusals []Refusal
}

// Refusal is a refusal by a pod.
type Refusal struct {
	inspection.Refusal
	Pod string
}

// Route is a UDPRoute with a parentRef to the Gateway.
type Route struct {
	*stunnerv1.UDPRoute
	// Parents are those entries of the status that refer to the Gateway.
	Parents []gwapiv1.RouteParentStatus
}

// gateways returns the Gateways of a namespace, or of all namespaces if it is empty: the Gateways of a class of this
// product, and the Gateways whose class does not exist. others are the names of the Gateways of other controllers.
func (s *Snapshot) gateways(namespace string) (all []*Gateway, others []string) {
	for _, gw := range list[gwapiv1.Gateway](s, "Gateway") {
		class := find[gwapiv1.GatewayClass](s, "GatewayClass", "", string(gw.Spec.GatewayClassName))
		switch {
		case namespace != "" && gw.Namespace != namespace:
		case class != nil && s.foreign(class) && !s.Folder:
			others = append(others, fmt.Sprintf("%s/%s (%s)", gw.Namespace, gw.Name, class.Spec.ControllerName))
		default:
			all = append(all, s.view(gw))
		}
	}
	return all, others
}

func (s *Snapshot) gateway(namespace, name string) *Gateway {
	if gw := find[gwapiv1.Gateway](s, "Gateway", namespace, name); gw != nil {
		return s.view(gw)
	}
	if s.Remote {
		return s.view(&gwapiv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	}
	return nil
}

// controllerPrefix starts the controller names of this product, unless the Snapshot has another name.
const controllerPrefix = "stunner.l7mp.io/"

// foreign reports whether a GatewayClass belongs to another controller.
func (s *Snapshot) foreign(class *gwapiv1.GatewayClass) bool {
	return !s.ours(class.Spec.ControllerName)
}

// ours reports whether the diagnosed operator has a controller name.
func (s *Snapshot) ours(controller gwapiv1.GatewayController) bool {
	if s.ControllerName != "" {
		return string(controller) == s.ControllerName
	}
	return strings.HasPrefix(string(controller), controllerPrefix)
}

func (s *Snapshot) view(gw *gwapiv1.Gateway) *Gateway {
	g := &Gateway{Gateway: gw}
	g.Class = find[gwapiv1.GatewayClass](s, "GatewayClass", "", string(gw.Spec.GatewayClassName))
	if namespace, name := g.configKey(); name != "" {
		g.Config = find[stunnerv1.GatewayConfig](s, "GatewayConfig", namespace, name)
	}
	if g.Config != nil {
		g.Dataplane = find[stunnerv1.Dataplane](s, "Dataplane", "", cmp.Or(g.Config.Spec.Dataplane, "default"))
	}
	for _, svc := range list[corev1.Service](s, "Service") {
		if g.owns(svc) {
			g.Services = append(g.Services, svc)
		}
	}
	for _, slice := range list[discoveryv1.EndpointSlice](s, "EndpointSlice") {
		service := slice.Labels[discoveryv1.LabelServiceName]
		if slice.Namespace == g.Namespace && slices.ContainsFunc(
			g.Services, func(svc *corev1.Service) bool { return svc.Name == service },
		) {
			g.Slices = append(g.Slices, slice)
		}
	}
	for _, pod := range list[corev1.Pod](s, "Pod") {
		ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if pod.Namespace == g.Namespace && pod.Labels[labelGateway] == g.Name && !ended {
			g.Pods = append(g.Pods, pod)
		}
	}
	for _, d := range list[appsv1.Deployment](s, "Deployment") {
		if g.owns(d) {
			g.Deployments = append(g.Deployments, d)
		}
	}
	for _, d := range list[appsv1.DaemonSet](s, "DaemonSet") {
		if g.owns(d) {
			g.DaemonSets = append(g.DaemonSets, d)
		}
	}
	g.Routes = s.routesOf(g)
	if live := s.Live[g.Namespace+"/"+g.Name]; live != nil {
		g.Live = *live
	}
	for _, status := range decoded[inspection.Status](g.Live.Status) {
		status.Body.Pod = cmp.Or(status.Body.Pod, status.Pod)
		g.Statuses = append(g.Statuses, status.Body)
	}
	for _, answer := range decoded[inspection.RefusalList](g.Live.Refusals) {
		for _, r := range answer.Body.Refusals {
			g.Refusals = append(g.Refusals, Refusal{r, answer.Pod})
		}
	}
	slices.SortStableFunc(g.Refusals, func(a, b Refusal) int { return b.Last.Compare(a.Last) })
	return g
}

// configKey returns namespace and name of the GatewayConfig of the Gateway or of its class, or empty strings.
func (g *Gateway) configKey() (namespace, name string) {
	if infra := g.Spec.Infrastructure; infra != nil && infra.ParametersRef != nil {
		return g.Namespace, infra.ParametersRef.Name
	}
	if g.Class == nil || g.Class.Spec.ParametersRef == nil || g.Class.Spec.ParametersRef.Namespace == nil {
		return "", ""
	}
	return string(*g.Class.Spec.ParametersRef.Namespace), g.Class.Spec.ParametersRef.Name
}

// labelled is an object with labels.
type labelled interface {
	named
	GetLabels() map[string]string
}

// owns reports whether an object was generated for the Gateway.
func (g *Gateway) owns(o labelled) bool {
	labels := o.GetLabels()
	return o.GetNamespace() == g.Namespace && labels[labelGateway] == g.Name && labels[labelOwned] != ""
}

// annotation returns an annotation of the Gateway, or its default from the GatewayConfig.
func (g *Gateway) annotation(name string) string {
	if value, ok := g.Annotations[name]; ok {
		return value
	}
	if g.Config != nil {
		return g.Config.Spec.LoadBalancerServiceAnnotations[name]
	}
	return ""
}

// truth reports whether the value of an annotation is true.
func (g *Gateway) truth(name string) bool {
	return slices.Contains([]string{"true", "1", "yes"}, strings.ToLower(strings.TrimSpace(g.annotation(name))))
}

// managed reports whether the operator creates the pods of the Gateway.
func (g *Gateway) managed() bool { return !g.truth(annotationUnmanaged) }

// workloads returns the Deployments and DaemonSets of the Gateway as objects for references.
func (g *Gateway) workloads() (all []string) {
	for _, d := range g.Deployments {
		all = append(all, ref("Deployment", d))
	}
	for _, d := range g.DaemonSets {
		all = append(all, ref("DaemonSet", d))
	}
	return all
}

// routesOf returns the routes with a parentRef to the Gateway.
func (s *Snapshot) routesOf(g *Gateway) (routes []*Route) {
	is := func(route *stunnerv1.UDPRoute, p gwapiv1.ParentReference) bool {
		namespace := route.Namespace
		if p.Namespace != nil {
			namespace = string(*p.Namespace)
		}
		kind := p.Kind == nil || *p.Kind == "Gateway"
		return kind && namespace == g.Namespace && string(p.Name) == g.Name
	}
	for _, route := range list[stunnerv1.UDPRoute](s, "UDPRoute") {
		names := func(p gwapiv1.ParentReference) bool { return is(route, p) }
		r := &Route{UDPRoute: route}
		for _, parent := range route.Status.Parents {
			if names(parent.ParentRef) && s.ours(parent.ControllerName) {
				r.Parents = append(r.Parents, parent)
			}
		}
		// Routes of a folder have no spec.
		if slices.ContainsFunc(route.Spec.ParentRefs, names) || len(r.Parents) > 0 {
			routes = append(routes, r)
		}
	}
	return routes
}

// answer is the decoded answer of one pod.
type answer[T any] struct {
	Pod  string
	Body *T
}

// decoded returns the answers of those pods that answered.
func decoded[T any](l *inspection.List) (all []answer[T]) {
	if l == nil {
		return nil
	}
	for _, item := range l.Items {
		body := new(T)
		if item.Error == "" && item.Status == http.StatusOK && json.Unmarshal(item.Body, body) == nil {
			all = append(all, answer[T]{item.Pod, body})
		}
	}
	return all
}

// silent returns, by pod, why the pod has not answered a request for a list.
func silent(l *inspection.List) (all []answer[string]) {
	if l == nil {
		return nil
	}
	for _, item := range l.Items {
		var e inspection.Error
		text := item.Error
		if text == "" && item.Status != http.StatusOK {
			if json.Unmarshal(item.Body, &e) == nil {
				text = e.Message
			}
			text = cmp.Or(text, http.StatusText(item.Status), "no answer")
		}
		if text != "" {
			all = append(all, answer[string]{item.Pod, &text})
		}
	}
	for _, line := range l.Incomplete {
		pod, text, ok := strings.Cut(line, ": ")
		if !ok {
			pod, text = line, "no answer"
		}
		all = append(all, answer[string]{pod, &text})
	}
	return all
}
