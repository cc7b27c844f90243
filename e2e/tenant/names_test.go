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

// Labels and annotations of the operator's objects for the first Gateway of others, and a selector of its pods.
const (
	podLabels = `app: stunner, stunner.l7mp.io/related-gateway-name: gateway0, ` +
		`stunner.l7mp.io/related-gateway-namespace: media-1`
	marks = `labels: {` + podLabels + `, stunner.l7mp.io/owned-by: stunner, ` +
		`gateway.networking.k8s.io/gateway-name: gateway0}, annotations: {stunner.l7mp.io/related-gateway-name: media-1/gateway0}`
	podTemplate = `selector: {matchLabels: {` + podLabels + `}}, ` +
		`template: {metadata: {labels: {` + podLabels + `}}, spec: {containers: [{name: c, image: example.net/c}]}}`
)

// marked returns a Gateway with more metadata.
func marked(metadata string) string {
	return strings.Replace(gateway(""), "metadata: {name: door}", "metadata: {name: door, "+metadata+"}", 1)
}

// nameAttempts: a tenant cannot affect objects of others by names, labels and owner references of its objects, and
// others cannot affect objects of the tenant.
func nameAttempts() (attempts []attempt) {
	for kind, spec := range map[string]string{
		"v1, kind: Service":                         `spec: {externalIPs: [192.0.2.222], ports: [{port: 3478, protocol: UDP}]}`,
		"v1, kind: ConfigMap":                       `data: {stunnerd.conf: "{}"}`,
		"v1, kind: Secret":                          `type: stunner.l7mp.io/standby-config, stringData: {stunnerd.conf.gz: mine}`,
		"apps/v1, kind: Deployment":                 `spec: {replicas: 0, ` + podTemplate + `}`,
		"apps/v1, kind: DaemonSet":                  `spec: {` + podTemplate + `}`,
		"networking.k8s.io/v1, kind: NetworkPolicy": `spec: {podSelector: {}}`,
		"policy/v1, kind: PodDisruptionBudget":      `spec: {maxUnavailable: 0, selector: {matchLabels: {` + podLabels + `}}}`,
		"v1, kind: Pod":                             `spec: {containers: [{name: c, image: example.net/c}]}`,
	} {
		name := "gateway0"
		if strings.HasSuffix(kind, "Secret") {
			name = "gateway0-standby"
		}
		text := fmt.Sprintf("{apiVersion: v1, kind: ServiceAccount, metadata: {name: default}}\n---\n"+
			"{apiVersion: %s, metadata: {name: %s, %s}, %s}\n---\n", kind, name, marks, spec)
		attempts = append(attempts, attempt{
			name:  "an object has the labels of a Gateway of others: " + kind,
			apply: text + gateway(""), try: func(n *tenant) { n.ownsItsObjects() },
		})
	}
	// Objects with the names that the operator writes, created before it does.
	for kind, text := range map[string]string{
		"Service":    `{apiVersion: v1, kind: Service, metadata: {name: door}, spec: {ports: [{port: 1, protocol: UDP}]}}`,
		"Deployment": `{apiVersion: apps/v1, kind: Deployment, metadata: {name: door}, spec: {replicas: 0, ` + podTemplate + `}}`,
		"ConfigMap":  `{apiVersion: v1, kind: ConfigMap, metadata: {name: door}, data: {own: words}}`,
		"Secret":     `{apiVersion: v1, kind: Secret, metadata: {name: door-standby}, stringData: {own: words}}`,
	} {
		attempts = append(attempts, attempt{
			name: "a " + kind + " of the tenant has the name of an object that the operator creates", apply: text,
			try: func(n *tenant) {
				o := n.read(text)[0]
				n.must(run.admin.Get(n.Context(), client.ObjectKeyFromObject(o), o))
				n.more(gateway(""))
				now := o.DeepCopy()
				n.must(run.admin.Get(n.Context(), client.ObjectKeyFromObject(o), now))
				if now.GetUID() != o.GetUID() || !reflect.DeepEqual(o.GetLabels(), now.GetLabels()) ||
					!reflect.DeepEqual(o.Object["data"], now.Object["data"]) {
					n.Errorf("the operator has changed %s:\n%v\nbefore\n%v", o.GetName(), now.Object, o.Object)
				}
			},
		})
	}
	long, many := strings.Repeat("n", 60), []string(nil)
	for i := range 64 {
		many = append(many, fmt.Sprintf(`{name: %s-%d, port: %d, protocol: TURN-UDP}`, strings.Repeat("l", 200), i, 10000+i))
	}
	large := func(size int) string {
		return marked(`annotations: {example.net/much: "` + strings.Repeat("x", size) + `"}`)
	}
	for _, c := range []struct{ name, text, object, told string }{
		{"200 kB of annotations", large(200 << 10), "", ""},
		{"250 kB of annotations", large(250 << 10), "gateway/door", "annotations"},
		{"the name of another Gateway's second Service",
			wish("", "") + "---\n" + strings.Replace(gateway(""), "name: door}", "name: door-tcp}", 1), "", ""},
		{"the maximum number of listeners with names of maximum length", `{apiVersion: gateway.networking.k8s.io/v1, ` +
			`kind: Gateway, metadata: {name: door}, spec: {gatewayClassName: calls-1, listeners: [` +
			strings.Join(many, ", ") + `]}}`, "", ""},
	} {
		attempts = append(attempts, attempt{
			name: "a Gateway has " + c.name, apply: c.text, object: c.object, told: c.told,
			try: func(n *tenant) { n.stopsWriting() },
		})
	}
	return append(attempts, []attempt{
		{
			name: "an object has an owner reference to a Gateway of others", apply: gateway(""),
			try: func(n *tenant) {
				theirs := n.object("gateway/gateway0")
				theirs.SetNamespace(others)
				n.must(run.admin.Get(n.Context(), client.ObjectKeyFromObject(theirs), theirs))
				n.must(n.Create(n.Context(), &corev1.Service{
					ObjectMeta: metav1.ObjectMeta{
						Namespace: n.name, Name: "trap", Labels: map[string]string{"stunner.l7mp.io/owned-by": "stunner"},
						Annotations: map[string]string{"stunner.l7mp.io/related-gateway-name": first},
						OwnerReferences: []metav1.OwnerReference{{
							APIVersion: "gateway.networking.k8s.io/v1", Kind: "Gateway", Name: "gateway0",
							UID: theirs.GetUID(), Controller: new(true),
						}},
					},
					Spec: corev1.ServiceSpec{
						ExternalIPs: []string{"192.0.2.222"},
						Ports:       []corev1.ServicePort{{Port: 3478, Protocol: corev1.ProtocolUDP}},
					},
				}))
				n.settle()
			},
		},
		{
			name: "spec.infrastructure has the labels and annotations that the operator identifies its objects by",
			apply: gateway(`, infrastructure: {` + strings.NewReplacer("app: stunner", "app: stunner-operator",
				"owned-by: stunner", "owned-by: nobody", "annotations: {", `annotations: {stunner.l7mp.io/applied: "0", `).
				Replace(marks) + `}`),
			try: func(n *tenant) { n.ownsItsObjects() },
		},
		{
			name:  "a Gateway has the labels and annotations that the operator identifies its objects by",
			apply: marked(strings.Replace(marks, "annotations: {", "annotations: {stunner.l7mp.io/applied: '0', ", 1)),
			try: func(n *tenant) {
				n.ownsItsObjects()
				n.stopsWriting()
			},
		},
		{
			name:  "a Gateway has a name that is too long for a Service",
			apply: strings.Replace(gateway(""), "name: door}", "name: "+long+"}", 1), object: "gateway/" + long,
			told: `Accepted=False`,
		},
		{
			name:   "a Gateway has a name with dots",
			apply:  strings.Replace(gateway(""), "name: door}", "name: media-1.gateway0}", 1),
			object: "gateway/media-1.gateway0", told: `Accepted=False`,
		},
		{
			name: "a Gateway is deleted and re-created", apply: gateway(""),
			try: func(n *tenant) {
				for range 5 {
					n.must(n.Delete(n.Context(), n.read(gateway(""))[0]))
					n.more(gateway(""))
				}
				n.ownsItsObjects()
			},
		},
	}...)
}

// ownsItsObjects checks that the objects of the tenant's Gateway are owned by it, and select only its pods.
func (n *tenant) ownsItsObjects() {
	n.Helper()
	svc, d := n.service("door"), &appsv1.Deployment{}
	err := run.admin.Get(n.Context(), types.NamespacedName{Namespace: n.name, Name: "door"}, d)
	if err != nil || svc == nil {
		return // there may be none
	}
	own := labels.SelectorFromSet(map[string]string{
		"stunner.l7mp.io/related-gateway-name": "door", "stunner.l7mp.io/related-gateway-namespace": n.name,
	})
	for _, o := range []client.Object{svc, d} {
		if !own.Matches(labels.Set(o.GetLabels())) || o.GetLabels()["stunner.l7mp.io/owned-by"] != "stunner" ||
			o.GetAnnotations()["stunner.l7mp.io/related-gateway-name"] != n.name+"/door" {
			n.Errorf("%T has the labels of another Gateway: %v %v", o, o.GetLabels(), o.GetAnnotations())
		}
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	n.must(err)
	theirs := labels.Set(labelsOf(others, "gateway0"))
	if selector.Matches(theirs) || !selector.Matches(labels.Set(d.Spec.Template.Labels)) {
		n.Errorf("the Deployment selects pods by %v", selector)
	}
	for what, selects := range map[string]map[string]string{
		"the Service": svc.Spec.Selector, "the template": d.Spec.Template.Labels,
	} {
		if !own.Matches(labels.Set(selects)) || selects["app"] != "stunner" {
			n.Errorf("%s selects pods by %v", what, selects)
		}
	}
}

// stopsWriting checks that the operator does not write endlessly in the tenant's namespace: there are few writes
// between two changes.
func (n *tenant) stopsWriting() {
	n.Helper()
	n.settle()
	begun := time.Now()
	n.settle()
	n.settle()
	if list := writes(n.T, n.name, begun); len(list) > 4 { // up to four writes may be pending from earlier changes
		n.Errorf("the operator made %d unneeded writes: %v", len(list), list)
	}
}
