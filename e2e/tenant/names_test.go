package tenant

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// marks are labels and annotations of the operator's objects for the victim's Gateway.
const marks = `labels: {app: stunner, stunner.l7mp.io/owned-by: stunner, stunner.l7mp.io/related-gateway-name: front-door, stunner.l7mp.io/related-gateway-namespace: victim,
    gateway.networking.k8s.io/gateway-name: front-door}, annotations: {stunner.l7mp.io/related-gateway-name: victim/front-door}`

const podTemplate = `replicas: 0, selector: {matchLabels: {app: stunner, stunner.l7mp.io/related-gateway-name: front-door, stunner.l7mp.io/related-gateway-namespace: victim}},
  template: {metadata: {labels: {app: stunner, stunner.l7mp.io/related-gateway-name: front-door, stunner.l7mp.io/related-gateway-namespace: victim}}, spec: {containers: [{name: c, image: example.net/c}]}}`

// nameAttempts: names, labels and owner references of a tenant's objects give others no effect on them, and the tenant
// none on those of others.
func nameAttempts() []attempt {
	var attempts []attempt
	for kind, text := range map[string]string{
		"Service":       `{apiVersion: v1, kind: Service, metadata: {name: front-door, ` + marks + `}, spec: {externalIPs: [192.0.2.222], ports: [{port: 3478, protocol: UDP}]}}`,
		"ConfigMap":     `{apiVersion: v1, kind: ConfigMap, metadata: {name: front-door, ` + marks + `}, data: {stunnerd.conf: "{}"}}`,
		"Secret":        `{apiVersion: v1, kind: Secret, type: stunner.l7mp.io/standby-config, metadata: {name: front-door-standby, ` + marks + `}, stringData: {stunnerd.conf.gz: mine}}`,
		"Deployment":    `{apiVersion: apps/v1, kind: Deployment, metadata: {name: front-door, ` + marks + `}, spec: {` + podTemplate + `}}`,
		"DaemonSet":     `{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: front-door, ` + marks + `}, spec: {` + strings.TrimPrefix(podTemplate, "replicas: 0, ") + `}}`,
		"NetworkPolicy": `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: front-door, ` + marks + `}, spec: {podSelector: {}}}`,
		"PodDisruptionBudget": `{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: front-door, ` + marks +
			`}, spec: {maxUnavailable: 0, selector: {matchLabels: {stunner.l7mp.io/related-gateway-name: front-door}}}}`,
		"Pod": `{apiVersion: v1, kind: Pod, metadata: {name: front-door, ` + marks + `}, spec: {containers: [{name: c, image: example.net/c}]}}`,
	} {
		attempts = append(attempts, attempt{
			name:  "a " + kind + " has the labels of the victim's Gateway",
			apply: `{apiVersion: v1, kind: ServiceAccount, metadata: {name: default}}` + "\n---\n" + text + "\n---\n" + gateway(""),
			try:   func(n *tenant) { n.ownsItsObjects("door") },
		})
	}
	// Objects with the names that the operator writes, created before it does.
	for kind, text := range map[string]string{
		"Service":    `{apiVersion: v1, kind: Service, metadata: {name: door}, spec: {ports: [{port: 1, protocol: UDP}]}}`,
		"Deployment": `{apiVersion: apps/v1, kind: Deployment, metadata: {name: door}, spec: {` + podTemplate + `}}`,
		"ConfigMap":  `{apiVersion: v1, kind: ConfigMap, metadata: {name: door}, data: {own: words}}`,
		"Secret":     `{apiVersion: v1, kind: Secret, metadata: {name: door-standby}, stringData: {own: words}}`,
	} {
		attempts = append(attempts, attempt{
			name:  "a " + kind + " of the tenant has the name of an object that the operator creates",
			apply: text,
			try: func(n *tenant) {
				o := n.read(text)[0]
				n.must(house.Get(n.Context(), client.ObjectKeyFromObject(o), o))
				n.more(gateway(""))
				now := o.DeepCopy()
				n.must(house.Get(n.Context(), client.ObjectKeyFromObject(o), now))
				if now.GetUID() != o.GetUID() || !reflect.DeepEqual(o.GetLabels(), now.GetLabels()) ||
					!reflect.DeepEqual(o.Object["data"], now.Object["data"]) {
					n.Errorf("the operator has changed %s:\n%v\nbefore\n%v", o.GetName(), now.Object, o.Object)
				}
			},
		})
	}
	long := strings.Repeat("n", 60)
	return append(attempts, []attempt{
		{
			name:  "an object has an owner reference to the victim's Gateway",
			apply: gateway(""),
			try: func(n *tenant) {
				gw := n.read(gateway(""))[0]
				n.must(house.Get(n.Context(), house.victim.doors["victim/front-door"].ObjectKey, gw))
				yes := true
				n.must(n.Create(n.Context(), &corev1.Service{
					ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: "trap", Annotations: map[string]string{
						"stunner.l7mp.io/related-gateway-name": "victim/front-door",
					},
						Labels: map[string]string{"stunner.l7mp.io/owned-by": "stunner"},
						OwnerReferences: []metav1.OwnerReference{{
							APIVersion: "gateway.networking.k8s.io/v1", Kind: "Gateway", Name: "front-door",
							UID: gw.GetUID(), Controller: &yes,
						}}},
					Spec: corev1.ServiceSpec{
						ExternalIPs: []string{"192.0.2.222"},
						Ports:       []corev1.ServicePort{{Port: 3478, Protocol: corev1.ProtocolUDP}},
					},
				}))
				n.settles()
			},
		},
		{
			name: "spec.infrastructure has the labels and annotations that the operator identifies its objects by",
			apply: gateway(`, infrastructure: {labels: {app: stunner-operator, stunner.l7mp.io/owned-by: nobody, stunner.l7mp.io/related-gateway-name: front-door, stunner.l7mp.io/related-gateway-namespace: victim,
    gateway.networking.k8s.io/gateway-name: front-door}, annotations: {stunner.l7mp.io/related-gateway-name: victim/front-door, stunner.l7mp.io/applied: "0"}}`),
			try: func(n *tenant) { n.ownsItsObjects("door") },
		},
		{
			name: "a Gateway has the labels and annotations that the operator identifies its objects by",
			apply: strings.Replace(gateway(""), "metadata: {name: door}", "metadata: {name: door, "+strings.Replace(
				marks, "annotations: {", "annotations: {stunner.l7mp.io/applied: '0', ", 1,
			)+"}", 1),
			try: func(n *tenant) {
				n.ownsItsObjects("door")
				n.stopsWriting()
			},
		},
		{
			name: "a Gateway has annotations of 200 kB",
			apply: strings.Replace(
				gateway(""), "metadata: {name: door}",
				`metadata: {name: door, annotations: {example.net/much: "`+strings.Repeat("x", 200<<10)+`"}}`, 1,
			),
			try: func(n *tenant) { n.stopsWriting() },
		},
		{
			name: "a Gateway has annotations of 250 kB",
			apply: strings.Replace(
				gateway(""), "metadata: {name: door}",
				`metadata: {name: door, annotations: {example.net/much: "`+strings.Repeat("x", 250<<10)+`"}}`, 1,
			),
			told: map[string]string{"gateway/door": `annotations`},
			try:  func(n *tenant) { n.stopsWriting() },
		},
		{
			name:  "a Gateway has a name that is too long for a Service",
			apply: strings.ReplaceAll(gateway(""), "name: door}", "name: "+long+"}"),
			told:  map[string]string{"gateway/" + long: `Accepted=False`},
		},
		{
			name:  "a Gateway has a name with dots",
			apply: strings.ReplaceAll(gateway(""), "name: door}", "name: victim.front-door}"),
			told:  map[string]string{"gateway/victim.front-door": `Accepted=False`},
		},
		{
			name:  "a Gateway has the name of another Gateway's second Service",
			apply: wish("", "") + "\n---\n" + strings.ReplaceAll(gateway(""), "name: door}", "name: door-tcp}"),
			try:   func(n *tenant) { n.stopsWriting() },
		},
		{
			name:  "a Gateway has the maximum number of listeners with names of maximum length",
			apply: `{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: door}, spec: {gatewayClassName: stunner, listeners: [` + listenersOf(64) + `]}}`,
			try:   func(n *tenant) { n.stopsWriting() },
		},
		{
			name:  "a Gateway is deleted and re-created",
			apply: gateway(""),
			try: func(n *tenant) {
				for range 5 {
					n.must(n.Delete(n.Context(), n.read(gateway(""))[0]))
					n.more(gateway(""))
				}
				n.ownsItsObjects("door")
			},
		},
	}...)
}

func listenersOf(count int) string {
	var list []string
	for i := range count {
		list = append(
			list, fmt.Sprintf(`{name: %s-%d, port: %d, protocol: TURN-UDP}`, strings.Repeat("l", 200), i, 10000+i),
		)
	}
	return strings.Join(list, ", ")
}

// ownsItsObjects checks that the objects of a Gateway of the tenant are owned by it, and select only its pods.
func (n *tenant) ownsItsObjects(gateway string) {
	n.Helper()
	svc, d := n.service(gateway), &appsv1.Deployment{}
	err := house.Get(n.Context(), types.NamespacedName{Namespace: n.name, Name: gateway}, d)
	if err != nil || svc == nil {
		return // there may be none
	}
	for _, o := range []client.Object{svc, d} {
		marked := o.GetLabels()
		if marked["stunner.l7mp.io/related-gateway-name"] != gateway ||
			marked["stunner.l7mp.io/related-gateway-namespace"] != n.name ||
			marked["stunner.l7mp.io/owned-by"] != "stunner" ||
			o.GetAnnotations()["stunner.l7mp.io/related-gateway-name"] != n.name+"/"+gateway {
			n.Errorf("%T %s has the labels of another Gateway: %v %v", o, o.GetName(), marked, o.GetAnnotations())
		}
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	n.must(err)
	if selector.Matches(labels.Set(victims)) || !selector.Matches(labels.Set(d.Spec.Template.Labels)) {
		n.Errorf("the Deployment of Gateway %s selects pods by %v", gateway, selector)
	}
	for what, selects := range map[string]map[string]string{
		"the Service": svc.Spec.Selector, "the template": d.Spec.Template.Labels,
	} {
		if selects["stunner.l7mp.io/related-gateway-name"] != gateway ||
			selects["stunner.l7mp.io/related-gateway-namespace"] != n.name || selects["app"] != "stunner" {
			n.Errorf("%s selects pods of Gateway %s by %v", what, gateway, selects)
		}
	}
}

// stopsWriting checks that the operator does not write endlessly in the tenant's namespace: there are few writes
// between two changes of the tenant.
func (n *tenant) stopsWriting() {
	n.Helper()
	n.settles()
	begun := time.Now()
	n.settles()
	n.settles()
	// two objects with a status each, and pending writes for earlier ones
	if writes := n.writes(begun); len(writes) > 12 {
		n.Errorf("the operator made %d unneeded writes: %v", len(writes), writes)
	}
}

// writes returns the writes of the operator in the tenant's namespace since.
func (n *tenant) writes(since time.Time) (list []string) {
	n.Helper()
	all, err := control.Audit(since)
	n.must(err)
	for _, e := range all {
		if e.Write() && e.Namespace == n.name && e.User == "system:serviceaccount:"+system+":stunner-operator" &&
			e.Resource != "events" {
			list = append(list, fmt.Sprintf("%s %s/%s %s: %d", e.Verb, e.Resource, e.Subresource, e.Name, e.Code))
		}
	}
	return list
}
