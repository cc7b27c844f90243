package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// The URLs in objects of TestDocumentedExamplesWorkAtAPIServer. They are not served.
const (
	renderedDiscovery = "http://stunner-config-discovery.stunner-system.svc.cluster.local:13478"
	renderedScaler    = "stunner-config-discovery.stunner-system.svc.cluster.local:13480"
)

// inputKinds are the kinds that the operator translates. outputKinds are the kinds that it makes.
var (
	inputKinds = slices.Concat(
		kinds(gwapiv1.GroupName, "v1", "GatewayClass", "Gateway", "UDPRoute", "ReferenceGrant"),
		kinds("stunner.l7mp.io", "v1", "GatewayConfig", "Dataplane", "StaticService", "UDPRoute"),
		kinds("", "v1", "Namespace", "Node", "Secret", "Service"), kinds("discovery.k8s.io", "v1", "EndpointSlice"),
	)
	outputKinds = slices.Concat(
		kinds("", "v1", "Service", "ConfigMap"), kinds("apps", "v1", "Deployment", "DaemonSet"),
		kinds("policy", "v1", "PodDisruptionBudget"), kinds("networking.k8s.io", "v1", "NetworkPolicy"),
		kinds("keda.sh", "v1alpha1", "ScaledObject", "TriggerAuthentication"),
	)
)

func kinds(group, version string, names ...string) (all []schema.GroupVersionKind) {
	for _, name := range names {
		all = append(all, schema.GroupVersionKind{Group: group, Version: version, Kind: name})
	}
	return all
}

// equalsRendered waits until the results of the operator equal the results of stunnerctl render for the same objects:
// the generated objects, the configs of Gateways, and the statuses. Without Dataplane default nothing is compared,
// because stunnerctl render then uses the Dataplane of the chart.
func (s server) equalsRendered(program string) {
	s.Helper()
	if s.dataplane() == nil {
		return
	}
	s.await(func(ctx context.Context) error {
		r := &renderer{
			program: program, in: s.TempDir(), out: s.TempDir(),
			args: []string{"--discovery-url", renderedDiscovery, "--show-secrets"},
		}
		for _, kind := range inputKinds {
			list, err := s.all(ctx, kind)
			if err != nil {
				return err
			}
			for _, o := range list {
				o.SetManagedFields(nil)
				if kind.Kind != "Service" && kind.Kind != "Node" { // their addresses are in the status
					unstructured.RemoveNestedField(o.Object, "status")
				}
				r.apply(s.T, o)
			}
		}
		r.run(s.T)
		return errors.Join(s.objectsEqual(ctx, r), s.configsEqual(ctx, r), s.statusesEqual(ctx, r))
	})
}

// all returns the objects of a kind that belong to the documentation, because other tests run in parallel.
func (s server) all(ctx context.Context, kind schema.GroupVersionKind) (all []*unstructured.Unstructured, err error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind)
	if err := s.List(ctx, list); err != nil {
		return nil, err
	}
	namespaces := []string{metav1.NamespaceDefault, metav1.NamespaceSystem, "stunner", "media-plane", "apps", "developers"}
	for i := range list.Items {
		o := &list.Items[i]
		controller, _, _ := unstructured.NestedString(o.Object, "spec", "controllerName")
		switch {
		case kind.Kind == "GatewayClass" && controller != documentedController:
		case kind.Kind == "Dataplane" && o.GetName() != "default":
		case kind.Kind == "Namespace" && !slices.Contains(namespaces, o.GetName()):
		case o.GetNamespace() != "" && !slices.Contains(namespaces, o.GetNamespace()):
		default:
			all = append(all, o)
		}
	}
	return all, nil
}

// objectsEqual compares generated objects. A rendered object equals the live one if applying it by the field manager of
// the operator changes nothing: the API server then adds the same defaults, and removes no field.
func (s server) objectsEqual(ctx context.Context, r *renderer) error {
	wanted := map[string]bool{}
	for _, kind := range outputKinds {
		list, err := s.all(ctx, kind)
		if err != nil {
			return err
		}
		for _, o := range list {
			owned := func(by metav1.OwnerReference) bool { return by.Kind == "Gateway" }
			if slices.ContainsFunc(o.GetOwnerReferences(), owned) {
				wanted[identity(o)] = true
			}
		}
	}
	return r.each("objects", func(o *unstructured.Unstructured) error {
		delete(wanted, identity(o))
		live := &unstructured.Unstructured{}
		live.SetGroupVersionKind(o.GroupVersionKind())
		if err := s.Get(ctx, client.ObjectKeyFromObject(o), live); err != nil {
			return fmt.Errorf("rendered %s: %w", identity(o), err)
		}
		annotations := o.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		for _, name := range []string{
			"stunner.l7mp.io/applied",      // the hash of the object that the operator applied last
			"stunner.l7mp.io/installation", // the namespace of the operator that applied the object
			"stunner.l7mp.io/replicas",     // on a Deployment, the number of replicas in the Dataplane
		} {
			if value, ok := live.GetAnnotations()[name]; ok {
				annotations[name] = value
			}
		}
		o.SetAnnotations(annotations)
		err := s.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("stunner-operator"),
			client.ForceOwnership, client.DryRunAll)
		if err != nil {
			return err
		}
		for _, of := range []*unstructured.Unstructured{o, live} { // a change of any other field changes these fields
			of.SetManagedFields(nil)
			unstructured.RemoveNestedField(of.Object, "metadata", "generation")
		}
		return sameFields(identity(o), live.Object, o.Object)
	}, func() error {
		if len(wanted) > 0 {
			return fmt.Errorf("not rendered: %q", slices.Sorted(maps.Keys(wanted)))
		}
		return nil
	})
}

func (s server) configsEqual(ctx context.Context, r *renderer) error {
	list, err := s.all(ctx, schema.GroupVersionKind{Group: gwapiv1.GroupName, Version: "v1", Kind: "Gateway"})
	if err != nil {
		return err
	}
	for _, gateway := range list {
		got, err := r.config(ctx, gateway)
		if err != nil {
			return err
		}
		want, err := readConfig(ctx, http.DefaultClient, s.discovery, gateway)
		if err != nil {
			return err
		}
		var fields [2]map[string]any
		for i, c := range []config.Config{want, got} {
			if err := json.Unmarshal(c.Canonical(), &fields[i]); err != nil {
				return err
			}
		}
		if err := sameFields("config of "+gateway.GetName(), fields[0], fields[1]); err != nil {
			return err
		}
	}
	return nil
}

func (s server) statusesEqual(ctx context.Context, r *renderer) error {
	return r.each("statuses", func(o *unstructured.Unstructured) error {
		live := o.DeepCopy()
		if err := s.Get(ctx, client.ObjectKeyFromObject(o), live); err != nil {
			return err
		}
		var fields [2]map[string]any
		for i, of := range []*unstructured.Unstructured{live, o} {
			status, _, _ := unstructured.NestedMap(of.Object, "status")
			fields[i], _ = timeless(status).(map[string]any)
		}
		return sameFields("status of "+identity(o), fields[0], fields[1])
	}, func() error { return nil })
}

// controllerConflict is the condition of a GatewayClass that names the installation of the operator. Without a cluster
// there is no installation.
const controllerConflict = "ControllerConflict"

// timeless returns a value of JSON without the times of conditions, and without condition ControllerConflict.
func timeless(value any) any {
	switch value := value.(type) {
	case map[string]any:
		delete(value, "lastTransitionTime")
		for name, field := range value {
			if list, isList := field.([]any); isList {
				value[name] = slices.DeleteFunc(list, func(element any) bool {
					condition, _ := element.(map[string]any)
					return condition["type"] == controllerConflict
				})
			}
			timeless(field)
		}
	case []any:
		for _, element := range value {
			timeless(element)
		}
	}
	return value
}

func identity(o *unstructured.Unstructured) string {
	return o.GroupVersionKind().GroupKind().String() + " " + o.GetNamespace() + "/" + o.GetName()
}

// sameFields returns the first line in which two objects differ.
func sameFields(name string, want, got map[string]any) error {
	if reflect.DeepEqual(want, got) {
		return nil
	}
	wanted, err := yaml.Marshal(want)
	gotten, e := yaml.Marshal(got)
	return errors.Join(err, e, differ("rendered "+name, string(wanted), string(gotten)))
}

// each calls compare for each file of a part of the output, and then rest.
func (r *renderer) each(part string, compare func(*unstructured.Unstructured) error, rest func() error) error {
	err := filepath.WalkDir(filepath.Join(r.out, part), func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || entry.IsDir() {
			return err
		}
		o := &unstructured.Unstructured{}
		data, err := os.ReadFile(path)
		if err := errors.Join(err, yaml.Unmarshal(data, &o.Object)); err != nil {
			return err
		}
		return compare(o)
	})
	if err != nil {
		return err
	}
	return rest()
}

// renderer is the input and the output of stunnerctl render.
type renderer struct {
	program, in, out string
	args             []string
}

// apply adds objects to the input, or replaces them. As at an API server, Gateways have a UID, so that the rendered
// Services have an owner.
func (r *renderer) apply(t *testing.T, list ...*unstructured.Unstructured) {
	t.Helper()
	for _, o := range list {
		version := strings.ReplaceAll(o.GetAPIVersion(), "/", "_")
		name := strings.ToLower(strings.Join([]string{o.GetKind(), version, o.GetNamespace(), o.GetName()}, "_"))
		if o = o.DeepCopy(); o.GetKind() == "Gateway" && o.GetUID() == "" {
			o.SetUID(types.UID(o.GetNamespace() + "/" + o.GetName()))
		}
		data, err := yaml.Marshal(o.Object)
		if err == nil {
			err = os.WriteFile(filepath.Join(r.in, name+".yaml"), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (r *renderer) run(t *testing.T) {
	t.Helper()
	var errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), r.program, append([]string{"render", r.in, "--to", r.out}, r.args...)...)
	cmd.Stderr = &errs
	exit := (*exec.ExitError)(nil)
	if err := cmd.Run(); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		t.Fatalf("render: %v\n%s", err, errs.String())
	} // code 1 means that something is not in force; the statuses show what
}

func (r *renderer) config(_ context.Context, gateway *unstructured.Unstructured) (c config.Config, err error) {
	data, err := os.ReadFile(r.path("configs", gateway, ""))
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	return c, errors.Join(err, yaml.Unmarshal(data, &c))
}

func (r *renderer) path(part string, o *unstructured.Unstructured, prefix string) string {
	return filepath.Join(r.out, part, o.GetNamespace(), prefix+o.GetName()+".yaml")
}
