package kube

import (
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// The published config of a Gateway stays while an object that it needs is deleted, has another name, or is created
// again with a mistake, also after a restart of the operator at each of these steps. When the object is correct again,
// the config is that from before.
func TestMistakesKeepThePublishedConfig(t *testing.T) {
	class, gc, d, gw, secret := onHosts(gatewayKey.Name, time.Unix(1_900_000_000, 0), gwapiv1.Listener{Name: "udp", Port: 3478, Protocol: "TURN-UDP"})
	secret.Namespace = "keys"
	gc.Spec.AuthRef.Namespace = new(gwapiv1.Namespace("keys"))
	grant := &gwapiv1.ReferenceGrant{ObjectMeta: metav1.ObjectMeta{Namespace: "keys", Name: "lent"}, Spec: gwapiv1.ReferenceGrantSpec{
		From: []gwapiv1.ReferenceGrantFrom{{Group: stunnerv1.GroupName, Kind: "GatewayConfig", Namespace: gwapiv1.Namespace(gw.Namespace)}},
		To:   []gwapiv1.ReferenceGrantTo{{Kind: "Secret"}},
	}}
	objects := []resource.Object{class, gc, d, secret, grant, gw}
	for name, row := range map[string]struct {
		object  resource.Object
		mistake func(resource.Object)
	}{
		"GatewayClass":  {class, func(o resource.Object) { o.(*gwapiv1.GatewayClass).Spec.ParametersRef = nil }},
		"GatewayConfig": {gc, func(o resource.Object) { o.(*stunnerv1.GatewayConfig).Spec.AuthRef.Name = "absent" }},
		"Dataplane": {d, func(o resource.Object) {
			o.(*stunnerv1.Dataplane).Spec.PodTemplatePatch = &runtime.RawExtension{Raw: []byte(`{"spec": {"containers": 5}}`)}
		}},
		"Secret":         {secret, func(o resource.Object) { o.(*corev1.Secret).Data = nil }},
		"ReferenceGrant": {grant, func(o resource.Object) { o.(*gwapiv1.ReferenceGrant).Spec.To = nil }},
		"Gateway":        {nil, func(o resource.Object) { o.(*gwapiv1.Gateway).Spec.Listeners[0].Protocol = "TURN-UPD" }},
	} {
		if row.object == nil {
			row.object = gw
		}
		existing := map[objectID]resource.Object{}
		for _, o := range objects {
			existing[idOf(o)] = o
		}
		put := func(l *loop, objects ...resource.Object) {
			var changes []objectChange
			for _, o := range objects {
				if s, is := o.(*corev1.Secret); is {
					key := resource.KeyOf(s)
					l.secrets.existing[key], l.secrets.fetched[key] = s.ResourceVersion, s.ResourceVersion
				}
				changes = append(changes, objectChange{object: o})
			}
			l.applyAll(changes, &task{})
		}
		start := func() *loop {
			l := startWith(t)
			l.since = func(translate.ObjectRef, time.Time) time.Duration { return 0 } // no translation is delayed
			return l
		}
		running := start()
		put(running, objects...)
		good := running.published.current(gatewayKey)
		if good == nil {
			t.Fatal("TEST NOT VALID: nothing is published")
		}
		expect := func(step string) {
			t.Helper()
			if d := translate.Gateway(running.view, gatewayKey, running.options).Decision; (d == translate.Served) != (step == "is correct again") {
				t.Fatalf("TEST NOT VALID: %s %s: %s", name, step, d)
			}
			restarted := start()
			standby := manifest.Standby(gatewayKey, gw.UID, *good, testKey)
			standby.ResourceVersion = "7"
			restarted.standbyOf(t, standby)
			put(restarted, slices.Collect(maps.Values(existing))...)
			restarted.fetchSecrets(t)
			for when, l := range map[string]*loop{"running": running, "restarted": restarted} {
				if now := l.published.current(gatewayKey); now == nil || now.Revision() != good.Revision() {
					t.Errorf("%s %s, %s: %+v is published, want %+v", name, step, when, now, good)
				}
			}
		}
		again := func(change func(resource.Object)) {
			o := row.object.DeepCopyObject().(resource.Object)
			if o.SetResourceVersion("2"); row.object != resource.Object(gw) {
				o.SetUID(types.UID("again"))
			}
			change(o)
			existing[idOf(o)] = o
			put(running, o)
		}
		if row.object != resource.Object(gw) { // the deletion of the Gateway itself would end its config
			delete(existing, idOf(row.object))
			gone := row.object
			if s, is := gone.(*corev1.Secret); is {
				gone = &metav1.PartialObjectMetadata{ObjectMeta: s.ObjectMeta}
			}
			running.applyAll([]objectChange{{object: gone, deleted: true}}, &task{})
			expect("is deleted")
			if row.object != resource.Object(grant) { // the name of a ReferenceGrant has no effect
				again(func(o resource.Object) { o.SetName("renamed") })
				expect("has another name")
			}
		}
		again(row.mistake)
		expect("is created again with a mistake")
		again(func(resource.Object) {})
		expect("is correct again")
	}
}
