package kube

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// The loop acts on the decision of the translation alone: for every cause it publishes, keeps or withdraws the config,
// and sets the desired objects and status, as the decision requires. Package file has the same table for its folder.
func TestTheLoopActsOnTheDecision(t *testing.T) {
	// effects are the effects of a decision: on a Gateway with a published config, and on a Gateway that an earlier
	// operator process has served.
	type effects struct {
		published, restartPublished bool
		objects, restartObjects     bool // objects are desired, or an absence of objects in the case of handedOver
		status                      bool
		handedOver                  bool
		missing                     bool // the Gateway counts as missing after the restart
	}
	want := map[translate.Decision]effects{
		translate.Served:    {published: true, restartPublished: true, objects: true, restartObjects: true, status: true},
		translate.Held:      {published: true, objects: true, status: true, missing: true},
		translate.Classless: {published: true, missing: true},
		translate.Foreign:   {handedOver: true},
		translate.Gone:      {},
	}
	type change func(objects []resource.Object) []resource.Object
	for name, row := range map[string]struct {
		change
		decision translate.Decision
	}{
		"nothing":               {func(all []resource.Object) []resource.Object { return all }, translate.Served},
		"the Gateway is gone":   {withoutKind[*gwapiv1.Gateway], translate.Gone},
		"the class is gone":     {withoutKind[*gwapiv1.GatewayClass], translate.Classless},
		"the config is gone":    {withoutKind[*stunnerv1.GatewayConfig], translate.Held},
		"the Dataplane is gone": {withoutKind[*stunnerv1.Dataplane], translate.Held},
		"the class is misspelt": {edited(func(g *gwapiv1.Gateway) { g.Spec.GatewayClassName = "x" }), translate.Classless},
		"the class is that of another controller": {edited(func(c *gwapiv1.GatewayClass) {
			c.Spec.ControllerName = "example.net/other"
		}), translate.Foreign},
		"the parameters of the class are of another kind": {edited(func(c *gwapiv1.GatewayClass) {
			c.Spec.ParametersRef.Kind = "ConfigMap"
		}), translate.Held},
		"the config of the Gateway is missing": {edited(func(g *gwapiv1.Gateway) {
			g.Spec.Infrastructure = &gwapiv1.GatewayInfrastructure{ParametersRef: &gwapiv1.LocalParametersReference{
				Group: stunnerv1.GroupName, Kind: "GatewayConfig", Name: "absent",
			}}
		}), translate.Held},
	} {
		ref := translate.ObjectRef{Kind: translate.KindGateway, NamespacedName: gatewayKey}
		check := func(when string, l *loop, published, objects, handedOver, missing bool) {
			t.Helper()
			now := l.writer.desired[ref]
			if got := translate.Gateway(l.view, gatewayKey, l.options).Decision; got != row.decision {
				t.Fatalf("%s, %s: %s, want %s", name, when, got, row.decision)
			}
			if got := l.published.current(gatewayKey) != nil; got != published {
				t.Errorf("%s, %s: published %t, want %t", name, when, got, published)
			}
			if got := now.hasObjects(ref) && len(now.objects) > 0; got != objects {
				t.Errorf("%s, %s: objects %v, want some %t", name, when, now.objects, objects)
			}
			if got := now.status != nil && now.ours; got != want[row.decision].status {
				t.Errorf("%s, %s: status %v, want one %t", name, when, now.status, want[row.decision].status)
			}
			if now.handedOver() != handedOver {
				t.Errorf("%s, %s: handed over %t, want %t", name, when, now.handedOver(), handedOver)
			}
			if got := len(l.published.missing) > 0; got != missing {
				t.Errorf("%s, %s: missing %t, want %t", name, when, got, missing)
			}
			if got := len(l.published.unpublished) > 0; got != missing {
				t.Errorf("%s, %s: unpublished %t, want %t", name, when, got, missing)
			}
		}
		effect := want[row.decision]

		before := withUID(collision())
		l := startWith(t, before...)
		published := l.published.current(gatewayKey)
		if published == nil {
			t.Fatal("no config is published before the change")
		}
		after := row.change(withUID(collision()))
		var changes []objectChange
		for _, o := range before {
			if !slices.ContainsFunc(after, func(other resource.Object) bool { return idOf(other) == idOf(o) }) {
				changes = append(changes, objectChange{object: o, deleted: true})
			}
		}
		for _, o := range after {
			changes = append(changes, objectChange{object: o})
		}
		l.applyAll(changes, &task{})
		check("running", l, effect.published, effect.objects, effect.handedOver, false)

		l = startWith(t)
		l.published.previous = func(types.NamespacedName) []string { return []string{gatewayKey.String() + "/udp"} }
		changes = nil
		for _, o := range after {
			changes = append(changes, objectChange{object: o})
		}
		l.applyAll(changes, &task{})
		check("restarted", l, effect.restartPublished, effect.restartObjects, false, effect.missing)

		l = startWith(t)
		l.standbyOf(t, standbySecret(t, *published))
		l.applyAll(changes, &task{})
		l.fetchSecrets(t)
		check("restarted with a standby Secret", l, effect.published, effect.restartObjects, false, false)
		if now := l.published.current(gatewayKey); now != nil && now.Revision() != published.Revision() {
			t.Errorf("%s: restored %+v, want %+v", name, now, published)
		}
	}
}

// A Gateway that is deleted and created again inherits nothing from the former Gateway of its name, also if the watch
// delivers both as one change.
func TestGatewayCreatedAgainInheritsNothing(t *testing.T) {
	again := edited(func(g *gwapiv1.Gateway) { g.UID, g.ResourceVersion = "again", "2" })
	for name, change := range map[string]func(objects []resource.Object) []resource.Object{
		"as it was": again,
		"the config is missing": func(all []resource.Object) []resource.Object {
			return withoutKind[*stunnerv1.GatewayConfig](again(all))
		},
		"its listener is invalid": func(all []resource.Object) []resource.Object {
			return edited(func(g *gwapiv1.Gateway) { g.Spec.Listeners[0].Protocol = "TURN-UPD" })(again(all))
		},
		"it is too large": func(all []resource.Object) []resource.Object {
			return edited(func(g *gwapiv1.Gateway) {
				g.Annotations = map[string]string{resource.UnreadAnnotation: "a", resource.EmptyAnnotation: "a"}
				g.Spec = gwapiv1.GatewaySpec{}
			})(again(all))
		},
	} {
		l, fresh := startWith(t, withUID(collision())...), startWith(t)
		for _, o := range withUID(collision()) {
			if kept := func(other resource.Object) bool { return idOf(other) == idOf(o) }; !slices.ContainsFunc(change(collision()), kept) {
				l.applyAll([]objectChange{{object: o, deleted: true}}, &task{})
			}
		}
		var changes []objectChange
		for _, o := range change(collision()) {
			changes = append(changes, objectChange{object: o})
		}
		l.applyAll(changes, &task{})
		fresh.applyAll(changes, &task{})
		got, want := l.published.current(gatewayKey), fresh.published.current(gatewayKey)
		if (got == nil) != (want == nil) || got != nil && got.Revision() != want.Revision() {
			t.Errorf("%s: %v is published, want %v", name, got, want)
		}
		ref := translate.ObjectRef{Kind: translate.KindGateway, NamespacedName: gatewayKey}
		if now, first := l.writer.desired[ref], fresh.writer.desired[ref]; now.uid != first.uid || now.complete != first.complete {
			t.Errorf("%s: objects %t for %q, want %t for %q", name, now.complete, now.uid, first.complete, first.uid)
		}
	}
}

// The listeners that an earlier operator process has published are those of the Gateway, and not of a former one of its
// name.
func TestPreviousListenersAreOfTheGateway(t *testing.T) {
	gw := withUID(collision())[3].(*gwapiv1.Gateway)
	published := *startWith(t, withUID(collision())...).published.current(gatewayKey)
	shown := manifest.ConfigMap(manifest.OwnerOf(gw, nil), published, "")
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: gw.Namespace, Name: gw.Name, OwnerReferences: shown.OwnerReferences,
	}}
	service.Spec.Ports = []corev1.ServicePort{{Name: "former"}}
	for name, objects := range map[string][]client.Object{"ConfigMap": {shown}, "Service": {service}} {
		cached := fake.NewClientBuilder().WithObjects(objects...).Build()
		again := gw.DeepCopy()
		again.UID = "again"
		if of, former := previousListeners(t.Context(), cached, gw), previousListeners(t.Context(), cached, again); len(of) != 1 || len(former) > 0 {
			t.Errorf("%s: %q of its Gateway, %q of another", name, of, former)
		}
	}
}

// withUID sets the UIDs of Gateways, as an API server does.
func withUID(objects []resource.Object) []resource.Object {
	return edited(func(g *gwapiv1.Gateway) { g.UID = "edge" })(objects)
}

func withoutKind[T resource.Object](objects []resource.Object) []resource.Object {
	return slices.DeleteFunc(slices.Clone(objects), func(o resource.Object) bool { _, is := o.(T); return is })
}

func edited[T resource.Object](edit func(T)) func([]resource.Object) []resource.Object {
	return func(objects []resource.Object) []resource.Object {
		for _, o := range objects {
			if o, is := o.(T); is {
				edit(o)
			}
		}
		return objects
	}
}
