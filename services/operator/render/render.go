// Package render translates YAML as the operator in a cluster does, without a cluster. It contacts no API server and
// runs no dataplane.
package render

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/decode"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// Options are the settings of the operator that affect the result. DefaultOptions returns those of the chart.
type Options = translate.Options

// Problem is an error in a document, or a remark about it. It contains no values of the document.
type Problem = decode.Problem

// Span is a part of a line of a file.
type Span = decode.Span

// The severities of a Problem. A document with an Error is left out.
const (
	Info  = decode.Info
	Error = decode.Error
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
	// Problems are the problems of the files, by file and line.
	Problems []Problem
	// Notes are warnings without a condition, by Gateway as NAMESPACE/NAME.
	Notes map[string][]string
	// Ignored is the number of objects of kinds that the operator does not read.
	Ignored int
}

// DefaultOptions returns the settings of an operator that the chart installed into the namespace stunner-system.
func DefaultOptions() Options {
	o := translate.DefaultOptions()
	o.DiscoveryAddress = strings.Replace(o.DiscoveryAddress, "http:", "https:", 1)
	o.DiscoverySecured = true
	return o
}

// Files translates the objects in the files, which are YAML by name. Objects that a cluster would contain besides, such
// as Services of media servers and Secrets, must be in the files too. The result depends only on the arguments.
func Files(files map[string][]byte, opt Options) Result {
	var located []decode.Located
	result := Result{Notes: map[string][]string{}}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		objects, problems := decode.File(name, files[name])
		located = append(located, objects...)
		result.Problems = append(result.Problems, problems...)
	}
	located, duplicates := decode.Unique(located)
	result.Problems = append(result.Problems, duplicates...)
	slices.SortStableFunc(result.Problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	var known []resource.Object
	for _, o := range located {
		if _, other := o.Object.(*unstructured.Unstructured); other {
			result.Ignored++
			continue
		}
		known = append(known, o.Object)
	}
	result.translate(resource.NewView(known), opt)
	return result
}

// translate adds the translation of all objects in the view.
func (r *Result) translate(v *resource.View, opt Options) {
	var gateways []translate.Result
	for _, key := range v.Gateways() {
		g := translate.Gateway(v, key, opt)
		if gateways = append(gateways, g); g.OverBudget != nil {
			v.Put(g.OverBudget)
		}
		if g.Config != nil {
			r.Configs = append(r.Configs, *g.Config)
		}
		for _, o := range g.ObjectsWith(g.Config) {
			r.Objects = append(r.Objects, withoutUnknownOwners(o))
		}
		if len(g.Notes) > 0 {
			r.Notes[key.String()] = g.Notes
		}
	}
	r.Statuses = translate.Statuses(v, gateways, opt)
}

// withoutUnknownOwners removes owner references without a UID, which an API server rejects. Gateways in a file usually
// have no UID.
func withoutUnknownOwners(o Object) Object {
	o.SetOwnerReferences(slices.DeleteFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool {
		return r.UID == ""
	}))
	return o
}

// Warnings returns the conditions of a status that only warn. They do not depend on objects outside of the files.
func Warnings(s Status) []metav1.Condition {
	return slices.DeleteFunc(translate.Problems(s.Conditions), func(c metav1.Condition) bool {
		return c.Reason != condition.ReasonWarning
	})
}
