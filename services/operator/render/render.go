// Package render translates YAML as the operator in a cluster does, without a cluster. It contacts no API server and
// runs no dataplane.
package render

import (
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/decode"
	"github.com/stunner-gateway/stunner/services/operator/internal/lint"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// Options are the settings of the operator that affect the result. DefaultOptions returns those of the chart.
type Options struct {
	translate.Options
	// SecretsElsewhere means that Secrets which are not in the files exist in the cluster.
	SecretsElsewhere bool
}

// Problem is an error in a document, or a remark about it. It contains no values of the document.
type Problem = decode.Problem

// Severity is how serious a Problem is.
type Severity = decode.Severity

// Span is a part of a line of a file.
type Span = decode.Span

// The severities of a Problem. With an Error, an object or a part of it would not be in force.
const (
	Info    = decode.Info
	Warning = decode.Warning
	Error   = decode.Error
)

// Object is a Kubernetes object.
type Object = resource.Object

// Status is the status that the operator writes for an object.
type Status = translate.ObjectStatus

// Result is the translation of all objects of the files.
type Result struct {
	// Configs are the dataplane configs, by Gateway. They contain secrets.
	Configs []config.Config
	// Objects are the generated Kubernetes objects, by Gateway, kind and name. They contain no secrets.
	Objects []Object
	// Statuses are the statuses of the objects in the files.
	Statuses []Status
	// Problems are the problems of the files, by file and line: problems of single documents, and problems that package
	// lint finds.
	Problems []Problem
}

// DefaultOptions returns the settings of an operator that the chart installed into the namespace stunner-system.
func DefaultOptions() Options {
	o := Options{Options: translate.DefaultOptions()}
	o.DiscoveryAddress = strings.Replace(o.DiscoveryAddress, "http:", "https:", 1)
	o.DiscoverySecured = true
	return o
}

// Files translates the objects in the files, which are YAML by name, as if they were applied to a cluster with the
// chart. The GatewayClass, the GatewayConfig and the Dataplane of the chart are added if the files refer to them and do
// not contain them. The result depends only on the arguments.
func Files(files map[string][]byte, opt Options) Result {
	var located []decode.Located
	var result Result
	for _, name := range slices.Sorted(maps.Keys(files)) {
		objects, problems := decode.File(name, files[name])
		located = append(located, objects...)
		result.Problems = append(result.Problems, problems...)
	}
	located, duplicates := decode.Unique(located)
	result.Problems = append(result.Problems, duplicates...)
	for i, p := range result.Problems {
		if p.Unquoted != nil { // the operator reads such a scalar in a folder, and an API server does not
			result.Problems[i].Severity = Error
		}
	}
	result.Problems = append(result.Problems, lint.Check(lint.Input{
		Files: files, Objects: located, Options: opt.Options, SecretsElsewhere: opt.SecretsElsewhere,
	})...)
	slices.SortStableFunc(result.Problems, lint.Compare)
	var known []resource.Object
	for _, o := range located {
		if _, other := o.Object.(*unstructured.Unstructured); !other {
			known = append(known, o.Object)
		}
	}
	for _, o := range lint.Supplied(known, opt.Options) {
		known = append(known, o.Object)
	}
	result.translate(resource.NewView(known), opt.Options)
	return result
}

// translate adds the translation of all objects in the view. It leaves out an object whose translation panics. The
// problems already contain the panic.
func (r *Result) translate(v *resource.View, opt translate.Options) {
	returns := func(f func()) bool {
		cause, _ := translate.Recovered(f)
		return cause == nil
	}
	var gateways []translate.Result
	for _, key := range v.Gateways() {
		var g translate.Result
		if !returns(func() { g = translate.Gateway(v, key, opt) }) {
			continue
		}
		if gateways = append(gateways, g); g.OverBudget != nil {
			v.Put(g.OverBudget)
		}
		if g.Config != nil {
			r.Configs = append(r.Configs, *g.Config)
		}
		for _, o := range g.ObjectsWith(g.Config) {
			r.Objects = append(r.Objects, withoutUnknownOwners(o))
		}
	}
	r.Statuses = translate.StatusesBy(v, gateways, func(ref translate.ObjectRef) (out translate.Outcome, ok bool) {
		ok = returns(func() { out = ref.Translate(v, opt) })
		return out, ok
	})
}

// withoutUnknownOwners removes owner references without a UID, which an API server rejects. Gateways in a file usually
// have no UID.
func withoutUnknownOwners(o Object) Object {
	o.SetOwnerReferences(slices.DeleteFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool {
		return r.UID == ""
	}))
	return o
}

// Place is where an object begins in a YAML file.
type Place = decode.Place

// Places returns the objects in a YAML file that have a kind.
func Places(data []byte) []Place { return decode.Places(data) }

// FieldLine returns the line of a field of the object that begins at a line of a YAML file. If the field is absent, it
// returns the line of its nearest parent.
func FieldLine(data []byte, object int, field string) int {
	line, _ := decode.FieldLine(data, object, field)
	return line
}
