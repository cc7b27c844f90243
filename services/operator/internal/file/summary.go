package file

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/decode"
	"github.com/stunner-gateway/stunner/services/operator/internal/lint"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// summary collects the results of a round for the report.
type summary struct {
	reading
	conditions  map[identity][]metav1.Condition
	found       map[identity][]condition.Problem // the conditions that report a problem
	notes       map[types.NamespacedName][]string
	rendered    []string // files of the output folder
	keepObjects bool     // the generated objects of a Gateway must stay unchanged
	// classless are the Gateways whose class does not exist. They have no conditions, because no controller manages
	// them.
	classless []decode.Problem
}

func newSummary(r reading) summary {
	return summary{reading: r, conditions: map[identity][]metav1.Condition{}, found: map[identity][]condition.Problem{},
		notes: map[types.NamespacedName][]string{}}
}

func (s *summary) note(key types.NamespacedName, notes ...string) {
	s.notes[key] = append(s.notes[key], notes...)
}

// findClassless finds the Gateways whose class does not exist. In a cluster, such a Gateway may wait for another
// controller. In a folder it is a mistake.
func (s *summary) findClassless(t translation) {
	own, classless := t.view.Classes(), map[types.NamespacedName]bool{}
	own = slices.DeleteFunc(own, func(name string) bool {
		return string(t.view.Class(name).Spec.ControllerName) != t.options.ControllerName
	})
	for _, r := range t.gateways {
		classless[r.Key] = r.Decision == translate.Classless
	}
	remedy := strings.Join(append([]string{"create it"}, own[:min(len(own), maxClasses)]...), ", or use ")
	for _, o := range s.objects {
		if g, ok := o.Object.(*gatewayv1.Gateway); ok && classless[resource.KeyOf(g)] {
			s.classless = append(s.classless, decode.Problem{
				File: o.File, Line: o.Line, Severity: decode.Error,
				Kind: string(resource.KindGateway), Namespace: g.Namespace, Name: g.Name, Field: "spec.gatewayClassName",
				Message: fmt.Sprintf("GatewayClass %s does not exist: %s", g.Spec.GatewayClassName, remedy), Remedy: remedy,
			})
		}
	}
}

// addFailed adds the problem of an object whose translation panics. Its files in the output folder stay.
func (s *summary) addFailed(ref translate.ObjectRef) {
	const remedy = "report the panic in the log to the developers"
	s.keepObjects = true
	for _, o := range s.objects {
		if of, translated := translate.RefOf(o.Object); translated && of == ref {
			s.problems = append(s.problems, decode.Problem{
				File: o.File, Line: o.Line, Severity: decode.Error, Kind: ref.Kind, Namespace: ref.Namespace, Name: ref.Name,
				Message: "its translation failed because of a fault of the operator; what was in force before stays in force: " + remedy,
				Remedy:  remedy,
			})
		}
	}
}

// maxClasses is the maximum number of classes in a remedy.
const maxClasses = 4

// check adds the findings of package lint, for example about Gateways without a class.
func (s *summary) check(c contents, t translation) {
	s.problems = append(s.problems, lint.Check(lint.Input{
		Files: c.files, Objects: s.objects, Options: t.options, Host: t.view.Host(),
	})...)
	slices.SortStableFunc(s.problems, lint.Compare)
}

func (s *summary) documentErrors() (n int) {
	for _, p := range s.problems {
		if p.Severity == decode.Error {
			n++
		}
	}
	return n
}

// history holds the latest events for the report.
type history struct{ events []event }

type event struct {
	at   time.Time
	key  types.NamespacedName
	text string
}

// maxEvents is the maximum length of the history.
const maxEvents = 30

func (h *history) add(key types.NamespacedName, text string) {
	h.events = append(h.events, event{at: time.Now(), key: key, text: text})
	if len(h.events) > maxEvents {
		h.events = h.events[len(h.events)-maxEvents:]
	}
}

const (
	// maxTail is how many bytes at the end of a log file are searched for warnings.
	maxTail = 16 << 10
	// maxWarnings is how many warnings of a log are shown.
	maxWarnings = 3
)

// warnings returns the last warnings and errors in the log of a dataplane.
func warnings(path string) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(0, size-maxTail), io.SeekStart)
	}
	data, _ := io.ReadAll(io.LimitReader(f, maxTail))
	var found []string
	for _, line := range bytes.Split(data, []byte("\n")) {
		if bytes.Contains(line, []byte("level=WARN")) || bytes.Contains(line, []byte("level=ERROR")) ||
			bytes.HasPrefix(line, []byte("panic:")) {
			found = append(found, string(line))
		}
	}
	return found[max(0, len(found)-maxWarnings):]
}
