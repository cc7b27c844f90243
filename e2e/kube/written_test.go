package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// The URLs in objects of TestDocumented_OnAnAPIServer. They are not served.
const (
	renderedDiscovery = "http://stunner-config-discovery.stunner-system.svc.cluster.local:13478"
	renderedScaler    = "stunner-config-discovery.stunner-system.svc.cluster.local:13480"
)

// inputKinds are the kinds that the operator translates, and outputKinds those that it makes.
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

// equalsRendered waits until what the operator has written equals what stunnerctl render makes of the same objects: the
// generated objects, the configs of Gateways, and the statuses.
func (s server) equalsRendered(program string) {
	s.Helper()
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

// all returns the objects of a kind in all namespaces.
func (s server) all(ctx context.Context, kind schema.GroupVersionKind) (all []*unstructured.Unstructured, err error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind)
	if err := s.List(ctx, list); err != nil {
		return nil, err
	}
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all, nil
}

// objectsEqual compares generated objects. A rendered object equals the live one if applying it by the field manager of
// the operator changes nothing: the API server then adds the same defaults, and removes no field.
func (s server) objectsEqual(ctx context.Context, r *renderer) error {
	gateways, err := s.documented(ctx)
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, kind := range outputKinds {
		list, err := s.all(ctx, kind)
		if err != nil {
			return err
		}
		for _, o := range list {
			owned := func(by metav1.OwnerReference) bool { return gateways[by.UID] }
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
		const hash = "stunner.l7mp.io/applied" // of the object that the operator applied last
		annotations := o.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[hash] = live.GetAnnotations()[hash]
		o.SetAnnotations(annotations)
		err := s.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("stunner-operator"),
			client.ForceOwnership, client.DryRunAll)
		if err != nil {
			return err
		}
		for _, of := range []*unstructured.Unstructured{o, live} { // these change with any other field
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

// documented returns the Gateways of the documentation: those of the operator of the test. Other tests leave Gateways of
// other operators.
func (s server) documented(ctx context.Context) (uids map[types.UID]bool, err error) {
	var classes gwapiv1.GatewayClassList
	var gateways gwapiv1.GatewayList
	if err := errors.Join(s.List(ctx, &classes), s.List(ctx, &gateways)); err != nil {
		return nil, err
	}
	uids = map[types.UID]bool{}
	for _, gateway := range gateways.Items {
		for _, class := range classes.Items {
			if class.Name == string(gateway.Spec.GatewayClassName) && class.Spec.ControllerName == documentedController {
				uids[gateway.UID] = true
			}
		}
	}
	return uids, nil
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
		want, err := readConfig(ctx, http.DefaultClient, s.stage.discovery, gateway)
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

// timeless returns a value of JSON without the times of conditions.
func timeless(value any) any {
	switch value := value.(type) {
	case map[string]any:
		delete(value, "lastTransitionTime")
		for _, field := range value {
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

// buildStunnerctl builds stunnerctl and returns its path.
func buildStunnerctl(s *stage) string {
	s.Helper()
	root, err := bed.Root()
	s.must(err)
	programs := s.TempDir()
	s.must(bed.Build(s.Context(), root, programs, bed.Stunnerctl))
	return filepath.Join(programs, filepath.Base(bed.Stunnerctl))
}
