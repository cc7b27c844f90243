package lint

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/finding"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/decode"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// chart are the objects that the chart installs by default, and the objects of the overlay openova. A test compares
// them with kustomize/components/defaults.
const chart = `apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata:
  name: stunner
spec:
  controllerName: stunner.l7mp.io/gateway-operator
  parametersRef:
    group: stunner.l7mp.io
    kind: GatewayConfig
    name: stunner
    namespace: stunner-system
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata:
  name: stunner-gatewayclass
spec:
  controllerName: stunner.l7mp.io/gateway-operator
  parametersRef:
    group: stunner.l7mp.io
    kind: GatewayConfig
    name: stunner-config
    namespace: stunner
---
apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata:
  name: stunner
  namespace: stunner-system
spec:
  realm: stunner.l7mp.io
  requireReferenceGrants: true
  authRef:
    name: stunner-turn-credentials
---
apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata:
  name: stunner-config
  namespace: stunner
spec:
  authRef:
    name: stunner-turn-credentials
---
apiVersion: stunner.l7mp.io/v1
kind: Dataplane
metadata:
  name: default
spec:
  enableMetricsEndpoint: true
  terminationGracePeriodSeconds: 3600
  resources:
    requests:
      cpu: 500m
      memory: 128Mi
    limits:
      memory: 512Mi
`

// Object is an object of the chart that files refer to and do not contain.
type Object struct {
	resource.Object
	// For is the object that refers to the supplied object, in Field.
	For   resource.Object
	Field string
}

// Supplied returns the GatewayClasses, GatewayConfigs and Dataplanes of the chart that the objects refer to and do not
// contain. If the Secret of the operator's credentials is among the objects, they include the objects that use this
// Secret.
func Supplied(objects []resource.Object, opt translate.Options) (supplied []Object) {
	defaults, _ := decode.File("chart", []byte(chart))
	all := slices.Clone(objects)
	exists := func(id identity) bool {
		return slices.ContainsFunc(all, func(o resource.Object) bool { return identityOf(o) == id })
	}
	supply := func(user resource.Object, field string, id identity) {
		if exists(id) {
			return
		}
		for _, d := range defaults {
			if identityOf(d.Object) == id {
				if class, ok := d.Object.(*gwapiv1.GatewayClass); ok {
					class.Spec.ControllerName = gwapiv1.GatewayController(opt.ControllerName)
				}
				supplied = append(supplied, Object{d.Object, user, field})
				all = append(all, d.Object)
			}
		}
	}
	for i := 0; i < len(all); i++ { // supplied objects may refer to further objects
		switch o := all[i].(type) {
		case *gwapiv1.Gateway:
			supply(o, "spec.gatewayClassName", classID(string(o.Spec.GatewayClassName)))
		case *gwapiv1.GatewayClass:
			if p := o.Spec.ParametersRef; p != nil && string(o.Spec.ControllerName) == opt.ControllerName {
				supply(o, "spec.parametersRef.name", configID(string(ptr.Deref(p.Namespace, "")), p.Name))
			}
		case *stunnerv1.GatewayConfig:
			supply(o, "spec.dataplane", dataplaneID(cmp.Or(o.Spec.Dataplane, stunnerv1.DefaultDataplane)))
		}
	}
	return supplied
}

func classID(name string) identity {
	return identity{gwapiv1.GroupVersion.String(), "GatewayClass", "", name}
}

func configID(namespace, name string) identity {
	return identity{stunnerv1.GroupVersion.String(), resource.KindGatewayConfig, namespace, name}
}

func dataplaneID(name string) identity {
	return identity{stunnerv1.GroupVersion.String(), "Dataplane", "", name}
}

// chartCredentials is the Secret that the operator creates.
var chartCredentials = types.NamespacedName{Namespace: "stunner-system", Name: "stunner-turn-credentials"}

// supplySecrets puts a Secret into the view for each reference of a GatewayConfig to a Secret that is not in the files.
// Credentials are rarely kept with manifests. The rest of the Gateways is then checked as if the Secret were there.
func (c *checker) supplySecrets() {
	missing := map[types.NamespacedName]*corev1.Secret{}
	for _, key := range c.view.GatewayConfigs() {
		gc := c.view.GatewayConfig(key)
		for _, ref := range secretRefs(gc) {
			if c.view.Secret(ref.key) != nil {
				continue
			}
			s := missing[ref.key]
			if s == nil {
				s = &corev1.Secret{Data: map[string][]byte{}}
				s.Namespace, s.Name = ref.key.Namespace, ref.key.Name
				missing[ref.key] = s
			}
			for _, k := range ref.keys {
				s.Data[k] = []byte("supplied in the place of a Secret that is not in the files")
			}
			if _, ok := s.Data["type"]; ok {
				s.Data["type"] = []byte("ephemeral")
			}
			if ref.key != chartCredentials {
				c.add(decode.Info, identityOf(gc), ref.field, finding.Errorf("create it before the Gateways", "Secret %s is not in the files, so its content is not checked", ref.key))
			}
		}
	}
	for _, s := range missing {
		c.view.Put(s)
	}
}

// secretRef is a reference of a GatewayConfig to keys of a Secret.
type secretRef struct {
	field string
	key   types.NamespacedName
	keys  []string
}

func secretRefs(gc *stunnerv1.GatewayConfig) (refs []secretRef) {
	if ref := gc.Spec.AuthRef; ref != nil {
		namespace := cmp.Or(string(ptr.Deref(ref.Namespace, "")), gc.Namespace)
		return []secretRef{{
			"spec.authRef.name", types.NamespacedName{Namespace: namespace, Name: string(ref.Name)},
			[]string{"type", "username", "password", "secret"},
		}}
	}
	for _, f := range []struct {
		name  string
		value *stunnerv1.SecretValue
	}{{"userName", gc.Spec.UserName}, {"password", gc.Spec.Password}, {"sharedSecret", gc.Spec.SharedSecret}} {
		if ref, ok := f.value.Ref(f.name); ok {
			key := types.NamespacedName{Namespace: cmp.Or(ref.Namespace, gc.Namespace), Name: ref.Name}
			refs = append(refs, secretRef{"spec." + f.name + ".name", key, []string{ref.Key}})
		}
	}
	return refs
}
