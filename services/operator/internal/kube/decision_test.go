package kube

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// The loop acts on the decision of the translation alone: for every cause it publishes, keeps or withdraws the config,
// and desires the objects and the status, as the decision says. Package file has the same table for its folder.
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
