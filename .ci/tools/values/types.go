package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// structs are the supported Kubernetes types by name.
var structs = map[string]reflect.Type{}

func init() {
	for _, zero := range []any{
		corev1.Affinity{}, corev1.Container{}, corev1.EnvVar{}, corev1.HostAlias{}, corev1.LocalObjectReference{},
		corev1.PodDNSConfig{}, corev1.PodSecurityContext{},
		corev1.Probe{}, corev1.ResourceRequirements{}, corev1.SecurityContext{}, corev1.Toleration{},
		corev1.TopologySpreadConstraint{}, corev1.Volume{},
		corev1.VolumeMount{}, appsv1.DeploymentStrategy{}, networkingv1.IngressTLS{}, networkingv1.NetworkPolicyPeer{},
		rbacv1.Subject{},
	} {
		t := reflect.TypeOf(zero)
		structs[t.Name()] = t
	}
}

// specs are the specs of our kinds, with the plural names of their CRDs.
var specs = map[string]string{"DataplaneSpec": "dataplanes", "GatewayConfigSpec": "gatewayconfigs"}

// definitions are the schemas of the used structs by name.
type definitions map[string]object

// shape returns the schema of a type, and adds the definitions that it refers to.
func (d definitions) shape(kind string) (object, error) {
	if shape, known := shapes[kind]; known {
		return maps.Clone(shape), nil
	}
	name, list := strings.CutPrefix(kind, "[]")
	var shape object
	if t, known := structs[name]; known {
		shape = d.of(t)
	} else if crd, known := specs[name]; known {
		spec, err := specOf(crd)
		if err != nil {
			return nil, err
		}
		shape = spec
	} else {
		return nil, fmt.Errorf("unknown type (%s)", kind)
	}
	if list {
		shape = object{"type": "array", "items": shape}
	}
	return shape, nil
}

// opaque are the types with a JSON form that differs from their fields.
var opaque = map[reflect.Type]object{
	reflect.TypeFor[resource.Quantity]():  {"type": []string{"string", "number"}},
	reflect.TypeFor[intstr.IntOrString](): {"type": []string{"string", "integer"}},
	reflect.TypeFor[metav1.ObjectMeta]():  {"type": "object"},
}

// of returns the schema of the JSON form of a Go type. Unknown fields are rejected.
func (d definitions) of(t reflect.Type) object {
	if shape, known := opaque[t]; known {
		return maps.Clone(shape)
	}
	switch t.Kind() {
	case reflect.Pointer:
		return d.of(t.Elem())
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Slice:
		return object{"type": "array", "items": d.of(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": d.of(t.Elem())}
	case reflect.Struct:
		if _, noted := d[t.Name()]; !noted {
			s := closed()
			d[t.Name()] = s
			d.fields(t, s["properties"].(object))
		}
		return object{"$ref": "#/$defs/" + t.Name()}
	}
	return object{"type": "integer"}
}

func (d definitions) fields(t reflect.Type, into object) {
	for f := range t.Fields() {
		switch name, _, _ := strings.Cut(f.Tag.Get("json"), ","); {
		case name != "":
			into[name] = d.of(f.Type)
		case f.Anonymous:
			d.fields(f.Type, into)
		}
	}
}

// crds is the folder of the CRDs, relative to this program.
const crds = "../../kustomize/base/crds"

// specOf returns the schema of the spec in a CRD.
func specOf(plural string) (object, error) {
	text, err := os.ReadFile(filepath.Join(crds, "stunner.l7mp.io_"+plural+".yaml"))
	if err != nil {
		return nil, err
	}
	var crd struct {
		Spec struct {
			Versions []struct {
				Storage bool
				Schema  struct{ OpenAPIV3Schema object } `yaml:"schema"`
			}
		}
	}
	if err := yaml.Unmarshal(
		[]byte(strings.ReplaceAll(string(text), "openAPIV3Schema:", "openapiv3schema:")), &crd,
	); err != nil {
		return nil, err
	}
	for _, v := range crd.Spec.Versions {
		if v.Storage {
			spec := strict(v.Schema.OpenAPIV3Schema["properties"].(object)["spec"]).(object)
			if properties := spec["properties"].(object); plural == "dataplanes" {
				properties["image"] = image
				for _, field := range properties {
					optional(field.(object))
				}
			}
			return spec, nil
		}
	}
	return nil, fmt.Errorf("CRD of %s has no version that is stored", plural)
}

// optional lets a field be null, because a key without a value in YAML, such as one whose entries are commented out, is
// null. The chart omits it.
func optional(field object) {
	if kind, single := field["type"].(string); single && field["enum"] == nil {
		field["type"] = []string{kind, "null"}
	}
}

// image of a Dataplane can be an object in the values of the chart.
var image = object{"type": []string{"string", "object"}, "additionalProperties": false, "properties": object{
	"name": object{"type": "string"}, "tag": object{"type": []string{"string", "number"}},
	"digest": object{"type": "string"}, "pullPolicy": object{"type": "string"},
}}

// strict returns the schema of a CRD as a JSON schema: without extensions, descriptions and defaults, and with unknown
// fields rejected.
func strict(schema any) any {
	switch schema := schema.(type) {
	case []any:
		for i := range schema {
			schema[i] = strict(schema[i])
		}
	case object:
		_, free := schema["x-kubernetes-preserve-unknown-fields"]
		for name, value := range schema {
			_, text := value.(string)
			if strings.HasPrefix(name, "x-kubernetes-") || name == "description" && text || name == "default" ||
				name == "format" && text {
				delete(schema, name)
				continue
			}
			schema[name] = strict(value)
		}
		if _, properties := schema["properties"].(object); properties && schema["type"] == "object" && !free {
			schema["additionalProperties"] = false
		}
	}
	return schema
}
