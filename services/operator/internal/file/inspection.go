package file

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/finding"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/operator/internal/decode"
)

// state returns the state of the operator for the inspection API.
func (l *loop) state() inspection.Operator {
	name, _ := os.Hostname() // the name is only shown
	state := inspection.Operator{Replica: name, Leader: name, Output: l.Output, Faults: l.faults(time.Now())}
	if found := l.problems.Load(); found != nil {
		state.Problems = *found
	}
	return state
}

// inspectedDataplanes implements inspect.Options.Running. A Gateway has one dataplane, which has the name of the host.
func (l *loop) inspectedDataplanes(gateway string) (map[string]string, error) {
	state := l.host.Load()
	if state == nil {
		return nil, errors.New("the dataplanes are not known: the operator has not read the input folder yet")
	}
	namespace, name, _ := strings.Cut(gateway, "/")
	process, ok := state.processes[types.NamespacedName{Namespace: namespace, Name: name}]
	if !ok {
		return nil, nil
	}
	reason := inspection.NotConnected
	if !process.Runs() {
		reason = "its process does not run: see status.txt in the output folder"
	}
	pod, err := os.Hostname()
	return map[string]string{pod: reason}, err
}

// inspected returns the errors in documents and the conditions that report a problem.
func (s *summary) inspected() (all []inspection.Problem) {
	for _, p := range slices.Concat(s.problems, s.classless) {
		if p.Severity == decode.Error {
			place := fmt.Sprintf("%s:%d", p.File, p.Line)
			all = append(all, inspection.Problem{
				Object: place, Field: p.Field, Condition: "Accepted", Status: "False", Reason: "Invalid", Message: p.String(),
				Findings: []finding.Finding{p.Finding()},
			})
		}
	}
	for id, found := range s.found {
		for _, p := range found {
			all = append(all, p.Inspected(id.Kind+" "+strings.TrimPrefix(id.Namespace+"/"+id.Name, "/")))
		}
	}
	return all
}
