package translate_test

import (
	"path/filepath"
	"strings"
	"testing"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// K-09: annotations of the Gateway and of its GatewayConfig that together exceed the limit of an object hold the
// Gateway. The API server accepts the annotations of all objects.
func TestAnnotationsFitWhereTheyAreCopied(t *testing.T) {
	for size, keep := range map[int]bool{10: false, 100 << 10: false, 140 << 10: true} {
		c := load(t, filepath.Join("testdata", "a_gateway_and_a_route_make_a_config.txtar"))
		v := c.view()
		key := v.Gateways()[0]
		long := strings.Repeat("x", size)
		v.Gateway(key).Annotations = map[string]string{"example.net/gateway": long}
		for _, gc := range v.GatewayConfigs() {
			v.GatewayConfig(gc).Spec.LoadBalancerServiceAnnotations = map[string]string{"example.net/class": long}
		}
		r := translate.Gateway(v, key, c.options)
		if held := r.Decision == translate.Held; held != keep {
			t.Errorf("twice %d bytes: %s, want held %t", size, r.Decision, keep)
		}
		for _, o := range r.Objects {
			if errs := apivalidation.ValidateAnnotations(o.GetAnnotations(), nil); len(errs) > 0 {
				t.Errorf("%s: %v", resource.KeyOf(o), errs.ToAggregate())
			}
		}
	}
}

// K-09: labels and annotations of a Gateway cannot change the owner of an object or keep it from being deleted.
func TestCopiedLabelsSetNoOwner(t *testing.T) {
	c := load(t, filepath.Join("testdata", "a_gateway_and_a_route_make_a_config.txtar"))
	v := c.view()
	key := v.Gateways()[0]
	gw := v.Gateway(key)
	gw.Finalizers = []string{"example.net/hold"}
	gw.Labels = map[string]string{
		"stunner.l7mp.io/owned-by": "me", "stunner.l7mp.io/related-gateway-name": "mine",
		"stunner.l7mp.io/related-gateway-namespace": "home",
		"gateway.networking.k8s.io/gateway-name":    "mine", "app.kubernetes.io/managed-by": "me",
	}
	gw.Annotations = map[string]string{
		"stunner.l7mp.io/related-gateway-name": "home/mine", "kubectl.kubernetes.io/last-applied-configuration": "{}",
	}
	for _, o := range translate.Gateway(v, key, c.options).Objects {
		owners := o.GetOwnerReferences()
		if len(o.GetFinalizers()) > 0 || len(owners) != 1 || owners[0].Name != key.Name || owners[0].UID != gw.UID {
			t.Errorf("%s: finalizers %v, owners %v", resource.KeyOf(o), o.GetFinalizers(), owners)
		}
		for where, text := range map[string]map[string]string{
			"labels": o.GetLabels(), "annotations": o.GetAnnotations(),
		} {
			for k, value := range text {
				if value == "me" || value == "mine" || value == "home" || value == "home/mine" || value == "{}" {
					t.Errorf("%s: %s has %s: %s", resource.KeyOf(o), where, k, value)
				}
			}
		}
	}
}
