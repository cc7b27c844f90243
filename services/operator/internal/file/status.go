package file

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayv1alpha2 "sigs.k8s.io/gateway-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// statusFile is the content of a file in the output folder with the status of an object.
type statusFile struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Metadata   statusMeta `json:"metadata"`
	// Spec has only references, because other fields may be secret. stunnerctl finds the parameters of a Gateway by them.
	Spec   *references `json:"spec,omitempty"`
	Status any         `json:"status"`
}

type statusMeta struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
}

// statusPath returns the path of the output file with the status of an object. A namespace may have UDPRoutes of the
// same name in several API groups and versions, so the folder name for UDPRoutes of the Gateway API contains group and
// version.
func (l *loop) statusPath(o resource.Object) string {
	gvk := o.GetObjectKind().GroupVersionKind()
	kind := strings.ToLower(gvk.Kind)
	if gvk.Kind == string(resource.KindUDPRoute) && gvk.Group != stunnerv1.GroupName {
		kind += "." + gvk.Version + "." + gvk.Group
	}
	return l.out.path("status", kind, strings.TrimPrefix(o.GetNamespace()+"_"+o.GetName(), "_")+".yaml")
}

// withStatus returns a copy of an object with the status that was last written for it. As in a cluster, the translation
// needs this status for the lastTransitionTime of conditions.
func (l *loop) withStatus(o resource.Object) resource.Object {
	data, err := os.ReadFile(l.statusPath(o))
	if err != nil {
		return o // the object has no status yet
	}
	copied := o.DeepCopyObject().(resource.Object)
	file := statusFile{Status: statusOf(copied)}
	if file.Status == nil || yaml.Unmarshal(data, &file) != nil {
		return o
	}
	return copied
}

// statusOf returns a pointer to the status of an object, or nil for a kind whose status the operator does not write.
func statusOf(o resource.Object) any {
	switch o := o.(type) {
	case *gatewayv1.GatewayClass:
		return &o.Status
	case *gatewayv1.Gateway:
		return &o.Status
	case *gatewayv1.UDPRoute:
		return &o.Status
	case *gatewayv1alpha2.UDPRoute:
		return &o.Status
	case *stunnerv1.UDPRoute:
		return &o.Status
	case *stunnerv1.GatewayConfig:
		return &o.Status
	case *stunnerv1.Dataplane:
		return &o.Status
	case *stunnerv1.StaticService:
		return &o.Status
	case *stunnerv1.Revocation:
		return &o.Status
	}
	return nil
}

// references are the fields of a spec that lead from a Gateway to its parameters.
type references struct {
	GatewayClassName gatewayv1.ObjectName           `json:"gatewayClassName,omitempty"`
	Infrastructure   *infrastructure                `json:"infrastructure,omitempty"`
	ControllerName   gatewayv1.GatewayController    `json:"controllerName,omitempty"`
	ParametersRef    *gatewayv1.ParametersReference `json:"parametersRef,omitempty"`
	Dataplane        string                         `json:"dataplane,omitempty"`
}

type infrastructure struct {
	ParametersRef *gatewayv1.LocalParametersReference `json:"parametersRef"`
}

// referencesOf returns the references in the spec of an object. It returns nil for a kind without references.
func referencesOf(o resource.Object) *references {
	switch o := o.(type) {
	case *gatewayv1.Gateway:
		r := &references{GatewayClassName: o.Spec.GatewayClassName}
		if own := o.Spec.Infrastructure; own != nil && own.ParametersRef != nil {
			r.Infrastructure = &infrastructure{own.ParametersRef}
		}
		return r
	case *gatewayv1.GatewayClass:
		return &references{ControllerName: o.Spec.ControllerName, ParametersRef: o.Spec.ParametersRef}
	case *stunnerv1.GatewayConfig:
		return &references{Dataplane: cmp.Or(o.Spec.Dataplane, stunnerv1.DefaultDataplane)}
	}
	return nil
}

// writeStatuses writes the status of every object to the output folder, and adds its conditions to the summary. The
// file of an object whose translation panics stays as it is.
func (l *loop) writeStatuses(t translation) error {
	var errs []error
	failed := func(r translate.Result) bool { return t.failed[gatewayRef(r.Key)] }
	gateways := slices.DeleteFunc(slices.Clone(t.gateways), failed)
	translated := func(ref translate.ObjectRef) (out translate.Outcome, ok bool) {
		ok = l.contain(&t, ref, func() { out = l.translateObject(ref, t.view, t.options) })
		return out, ok
	}
	for _, s := range translate.StatusesBy(t.view, gateways, translated) {
		id := identityOf(s.Object)
		l.summary.conditions[id], l.summary.found[id] = s.Conditions, s.Problems
		apiVersion, kind := s.Object.GetObjectKind().GroupVersionKind().ToAPIVersionAndKind()
		errs = append(errs, l.out.writeYAML(l.statusPath(s.Object), statusFile{
			APIVersion: apiVersion, Kind: kind, Status: s.Status, Spec: referencesOf(s.Object),
			Metadata: statusMeta{Name: s.Object.GetName(), Namespace: s.Object.GetNamespace()},
		}))
	}
	return errors.Join(errs...)
}

// writeObject writes a generated object to the output folder. In a cluster, the operator would apply it.
func (l *loop) writeObject(o resource.Object) error {
	path := l.objectPath(o)
	l.summary.rendered = append(l.summary.rendered, relative(l.Output, path))
	return l.out.writeYAML(path, o)
}

func (l *loop) objectPath(o resource.Object) string {
	namespace := cmp.Or(o.GetNamespace(), "_cluster")
	kind := strings.ToLower(o.GetObjectKind().GroupVersionKind().Kind)
	return l.out.path("objects", namespace, kind+"-"+o.GetName()+".yaml")
}

// removeStale removes the statuses and generated objects that this round did not write from the output folder. It
// removes nothing while the objects of a Gateway must stay unchanged (summary.keepObjects) or objects are missing,
// because some of the files may belong to them.
func (l *loop) removeStale() error {
	if l.summary.keepObjects || len(l.summary.missing) > 0 {
		return nil
	}
	for _, name := range []string{"status", "objects"} {
		if err := l.out.removeStale(name); err != nil {
			return fmt.Errorf("clean output folder: %w", err)
		}
	}
	return nil
}

func relative(base, path string) string {
	if short, err := filepath.Rel(base, path); err == nil {
		return short
	}
	return path
}
