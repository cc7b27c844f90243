// Package lint finds the parts of a set of objects that would not be in force after they are applied: missing fields
// and objects, objects that the translation refuses, and input without effect. A finding is a [decode.Problem] with
// file, line and field.
//
// Objects that manifests rarely contain are supplied: the GatewayClass, GatewayConfig and Dataplane that the chart
// installs, and the Secrets of credentials. A finding names the objects that were supplied.
//
// # Files
//
//	lint.go       the check
//	supplied.go   objects that are not in the files
//	status.go     findings from conditions
//	place.go      object and field of a condition
//	rules.go      rules beside the translation: references and input without effect
package lint

import (
	"cmp"
	"runtime"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/stunner-gateway/stunner/services/api/finding"
	"github.com/stunner-gateway/stunner/services/operator/internal/decode"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// Input contains the objects and texts that Check reads.
type Input struct {
	// Files are the texts of the objects by name. Check reads the lines of fields from them.
	Files map[string][]byte
	// Objects are the objects of the files that are valid on their own.
	Objects []decode.Located
	// Options are the options of the translation.
	Options translate.Options
	// Host is the host of the file provider, or nil for a cluster.
	Host *resource.Host
	// SecretsElsewhere means that Secrets which are not in the files exist in the cluster.
	SecretsElsewhere bool
}

// Check returns the objects and fields that would not be in force, and remarks about input without effect, by file and
// line. It does not repeat the problems of single documents, which package decode returns. The result depends only on
// the argument.
func Check(in Input) []decode.Problem {
	c := newChecker(in)
	var gateways []translate.Result
	for _, key := range c.view.Gateways() {
		c.contain(c.view.Gateway(key), func() {
			r := translate.Gateway(c.view, key, in.Options)
			if gateways = append(gateways, r); r.OverBudget != nil {
				c.view.Put(r.OverBudget)
			}
		})
	}
	translated := func(ref translate.ObjectRef) (out translate.Outcome, ok bool) {
		ok = c.contain(ref.Object(c.view), func() { out = ref.Translate(c.view, in.Options) })
		return out, ok
	}
	for _, s := range translate.StatusesBy(c.view, gateways, translated) {
		c.contain(s.Object, func() { c.status(s) })
	}
	for _, r := range gateways {
		c.contain(c.view.Gateway(r.Key), func() { c.gateway(r) })
	}
	c.rules()
	slices.SortStableFunc(c.found, Compare)
	return c.found
}

// contain calls a check of an object, and reports whether it has returned. A panic becomes an error, because one object
// must not end the check of the others.
func (c *checker) contain(o resource.Object, check func()) (ok bool) {
	cause, stack := translate.Recovered(check)
	if cause == nil {
		return true
	}
	text := "a panic" // any other value may quote the document
	if known, is := cause.(runtime.Error); is {
		text = known.Error()
	}
	id := identityOf(o)
	at, located := c.located[id]
	if !located { // the object is supplied: it is an object of the chart
		at = c.Objects[0]
	}
	c.addAt(at, decode.Error, "", finding.Errorf("report this to the developers",
		"%s cannot be checked because of a fault of this program: %s in %s", id, text, faulty(stack)))
	return false
}

// faulty returns the function of the operator that panics in a stack.
func faulty(stack string) string {
	_, after, _ := strings.Cut(stack, "\npanic(")
	for line := range strings.SplitSeq(after, "\n") {
		if name, ours := strings.CutPrefix(line, "github.com/stunner-gateway/stunner/services/operator/"); ours {
			return name[:max(0, strings.LastIndexByte(name, '('))]
		}
	}
	return "an unknown function"
}

// Compare orders problems by file and line.
func Compare(a, b decode.Problem) int {
	return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Field, b.Field))
}

// checker collects findings.
type checker struct {
	Input
	view *resource.View
	// located are the objects of the files. others are objects of kinds that the operator does not read.
	located map[identity]decode.Located
	others  []decode.Located
	found   []decode.Problem
}

// identity names an object.
type identity struct{ apiVersion, kind, namespace, name string }

func identityOf(o resource.Object) identity {
	apiVersion, kind := o.GetObjectKind().GroupVersionKind().ToAPIVersionAndKind()
	return identity{apiVersion, kind, o.GetNamespace(), o.GetName()}
}

// String returns KIND NAMESPACE/NAME.
func (id identity) String() string {
	return id.kind + " " + strings.TrimPrefix(id.namespace+"/"+id.name, "/")
}

func newChecker(in Input) *checker {
	c := &checker{Input: in, located: map[identity]decode.Located{}}
	var known []resource.Object
	for _, o := range in.Objects {
		if _, other := o.Object.(*unstructured.Unstructured); other {
			c.others = append(c.others, o)
			continue
		}
		c.located[identityOf(o.Object)] = o
		known = append(known, o.Object)
	}
	supplied := Supplied(known, in.Options)
	for _, s := range supplied {
		known = append(known, s.Object)
	}
	c.view = resource.NewView(known)
	if in.Host != nil {
		c.view = c.view.WithHost(*in.Host)
	}
	for _, s := range supplied {
		c.add(decode.Info, identityOf(s.For), s.Field, finding.Errorf("add it if yours differs", "%s is not in the files, so the default of an installation is taken", identityOf(s.Object)))
	}
	c.supplySecrets()
	return c
}

// add adds a finding about a field of an object. It ignores objects that are not in the files, and repetitions.
func (c *checker) add(severity decode.Severity, id identity, field string, found error) {
	o, ok := c.located[id]
	if !ok {
		return
	}
	c.addAt(o, severity, field, found)
}

func (c *checker) addAt(o decode.Located, severity decode.Severity, field string, found error) {
	_, remedy := finding.Split(found)
	c.addProblem(o, decode.Problem{Severity: severity, Field: field, Message: found.Error(), Remedy: remedy})
}

// addProblem adds a problem of an object, with the place of its field, unless it was added before: several conditions
// may have the same cause.
func (c *checker) addProblem(o decode.Located, p decode.Problem) {
	id := identityOf(o.Object)
	p.File, p.Kind, p.Namespace, p.Name = o.File, id.kind, id.namespace, id.name
	p.Line, _ = decode.FieldLine(c.Files[o.File], o.Line, p.Field)
	if !slices.Contains(c.found, p) {
		c.found = append(c.found, p)
	}
}

// has reports whether the text of an object contains a field. Defaults are not in the text.
func (c *checker) has(id identity, field string) bool {
	o, ok := c.located[id]
	if !ok {
		return false
	}
	_, found := decode.FieldLine(c.Files[o.File], o.Line, field)
	return found
}
