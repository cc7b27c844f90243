package file

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/decode"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// text builds the content of status.txt. It does not contain the time of its creation, so that the file changes only if
// its content does.
type text struct{ strings.Builder }

func (t *text) line(format string, args ...any) { fmt.Fprintf(t, format+"\n", args...) }

func (t *text) section(title string) { t.line("\n%s", title) }

// report writes status.txt and problems.yaml.
func (l *loop) report(translated translation) error {
	l.meters.configs.Set(float64(len(l.published)))
	l.meters.problems.Set(float64(l.summary.documentErrors() + len(l.summary.classless) + l.summary.objectsWithProblems()))
	found := l.summary.inspected()
	l.problems.Store(&found)
	l.storeHost() // the inspection API returns the same state as status.txt
	faults := l.faults(time.Now())
	var t text
	l.reportTotals(&t)
	if len(faults) > 0 {
		t.section("HOST")
	}
	for _, f := range faults {
		t.line("  %s %s: %s: %s: %s", strings.ToUpper(string(f.Severity)), f.Object, f.Field, f.Problem, f.Remedy)
	}
	l.reportProblems(&t)
	t.section("GATEWAYS")
	for _, key := range l.gatewaysToReport(translated.gateways) {
		l.reportGateway(&t, translated.view, key)
	}
	l.reportObjects(&t)
	l.reportHistory(&t)
	l.logProblems()
	problems := append([]decode.Problem{}, l.summary.problems...)
	for _, f := range faults {
		problems = append(problems, problemOf(f))
	}
	return errors.Join(
		replaceFile(l.out.path("status.txt"), []byte(t.String()), 0o644),
		l.out.writeYAML(l.out.path("problems.yaml"), problems))
}

// logProblems logs each error in a document that the previous round did not have.
func (l *loop) logProblems() {
	logged := map[string]bool{}
	for _, p := range l.summary.problems {
		if p.Severity != decode.Error {
			continue
		}
		logged[p.String()] = true
		if !l.logged[p.String()] {
			l.Log.Warn("document is invalid", "problem", p.String())
		}
	}
	l.logged = logged
}

func (l *loop) reportTotals(t *text) {
	errs := l.summary.documentErrors()
	remarks := len(l.summary.problems) - errs
	t.line("%d objects in force, %d errors, %d remarks, %d configs published",
		len(l.summary.objects), errs+len(l.summary.classless), remarks, len(l.published))
}

func (l *loop) reportProblems(t *text) {
	for _, list := range []struct {
		title    string
		severity decode.Severity
	}{{"NOT IN FORCE", decode.Error}, {"WARNINGS", decode.Warning}, {"REMARKS", decode.Info}} {
		first := true
		for _, p := range slices.Concat(l.summary.problems, l.summary.classless) {
			if p.Severity != list.severity {
				continue
			}
			if first {
				t.section(list.title)
				first = false
			}
			t.line("  %s", p)
		}
	}
	if len(l.summary.kept)+len(l.summary.missing) > 0 {
		t.section("KEPT")
	}
	for _, k := range l.summary.kept {
		t.line("  %s: %s", identityOf(k.Object), k.why)
	}
	for _, id := range l.summary.missing {
		t.line("  %s: was in force before the operator started and cannot be read; "+
			"nothing that it was part of is taken away", id)
	}
}

// gatewaysToReport returns the Gateways whose class belongs to this operator or does not exist, and all other Gateways
// that have a dataplane process.
func (l *loop) gatewaysToReport(translated []translate.Result) []types.NamespacedName {
	keys := l.dataplanes.Gateways()
	for _, r := range translated {
		if !r.Decision.Ends() {
			keys = append(keys, r.Key)
		}
	}
	slices.SortFunc(keys, func(a, b types.NamespacedName) int { return cmp.Compare(a.String(), b.String()) })
	return slices.Compact(keys)
}

func (l *loop) reportGateway(t *text, v *resource.View, key types.NamespacedName) {
	t.line("  %s", key)
	if g := v.Gateway(key); g != nil {
		reportConditions(t, "    ", l.summary.conditions[identityOf(g)])
	}
	if c := l.current(key); c != nil {
		for _, listener := range c.Listeners {
			reportListener(t, listener)
		}
		t.line("    config %s is published", c.Revision())
	} else {
		t.line("    no config is published")
	}
	for _, note := range l.summary.notes[key] {
		t.line("    note: %s", note)
	}
	for _, r := range l.server.Reports() {
		if r.ID == key.String() {
			t.line("    dataplane %s", reportOf(r))
		}
	}
	if health := l.dataplanes.Health(key); health != "" {
		t.line("    process %s", health)
	}
	for _, warning := range warnings(l.dataplanes.LogFile(key)) {
		t.line("    log: %s", warning)
	}
}

func reportListener(t *text, listener config.Listener) {
	var uris []string
	for _, uri := range listener.URIs() {
		uris = append(uris, uri.String())
	}
	address := cmp.Or(strings.Join(uris, " and "), "no public address")
	routes := "no routes: clients reach nothing"
	if len(listener.Routes) > 0 {
		routes = "routes " + strings.Join(listener.Routes, ", ")
	}
	name := listener.Name[strings.LastIndexByte(listener.Name, '/')+1:]
	protocol := string(listener.Protocol)
	if listener.ClientProtocol() != listener.Protocol {
		protocol += " behind a load balancer that ends TLS"
	}
	t.line("    listener %s: %s at %s, %s", name, protocol, address, routes)
}

// reportOf describes the report of a dataplane in status.txt. It omits the number of allocations, because the file
// would change with every call.
func reportOf(r discovery.Report) string {
	said := "has accepted " + r.Revision
	if !r.Accepted {
		said = fmt.Sprintf("has rejected %s: %s", r.Revision, r.Error)
	}
	if r.Draining {
		said += ", draining"
	}
	if r.Offload != "" {
		said += ", does not forward media in the kernel as requested: " + r.Offload
	}
	return strings.TrimSpace(r.Pod + " " + said)
}

func (l *loop) reportObjects(t *text) {
	t.section("OBJECTS IN FORCE")
	for _, o := range slices.SortedStableFunc(slices.Values(l.summary.objects), byPlace) {
		said := ""
		if _, passed := o.Object.(*unstructured.Unstructured); passed {
			said = " passed through"
		}
		t.line("  %s:%d %s%s", o.File, o.Line, identityOf(o.Object), said)
		if o.GetObjectKind().GroupVersionKind().Kind != "Gateway" {
			reportConditions(t, "    ", l.summary.conditions[identityOf(o.Object)])
		}
	}
	if len(l.summary.rendered) > 0 {
		t.section("OBJECTS FOR A CLUSTER")
		for _, path := range l.summary.rendered {
			t.line("  %s", path)
		}
	}
}

// reportConditions writes the conditions that report a problem, or one line if no condition does.
func reportConditions(t *text, indent string, conditions []metav1.Condition) {
	bad := translate.Problems(conditions)
	for _, c := range bad {
		t.line("%s%s=%s %s: %s", indent, c.Type, c.Status, c.Reason, c.Message)
	}
	if len(bad) == 0 && len(conditions) > 0 {
		t.line("%sall %d conditions are as they should be", indent, len(conditions))
	}
}

func (l *loop) reportHistory(t *text) {
	if len(l.history.events) == 0 {
		return
	}
	t.section("WHAT HAPPENED")
	for _, e := range l.history.events {
		t.line("  %s %s: %s", e.at.Format(time.DateTime), e.key, e.text)
	}
}

// objectsWithProblems returns the number of objects with a condition that reports a problem.
func (s *summary) objectsWithProblems() (n int) {
	for _, problems := range s.found {
		if len(problems) > 0 {
			n++
		}
	}
	return n
}
