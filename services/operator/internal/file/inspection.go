package file

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/operator/internal/decode"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// state returns the state of the operator for the inspection API.
func (l *loop) state() inspection.Operator {
	name, _ := os.Hostname() // the name is only shown
	state := inspection.Operator{Replica: name, Leader: name}
	if found := l.problems.Load(); found != nil {
		state.Problems = *found
	}
	return state
}

// storeRunning stores the state of the dataplanes for the inspection API.
func (l *loop) storeRunning() {
	all := map[string]bool{}
	for key, runs := range l.dataplanes.Running() {
		all[key.String()] = runs
	}
	l.running.Store(&all)
}

// inspectedDataplanes implements inspect.Options.Running. A Gateway has one dataplane, whose name is that of the host.
func (l *loop) inspectedDataplanes(gateway string) (map[string]string, error) {
	running := l.running.Load()
	if running == nil {
		return nil, errors.New("the dataplanes are not known: the operator has not read the input folder yet")
	}
	runs, ok := (*running)[gateway]
	if !ok {
		return nil, nil
	}
	reason := inspection.NotConnected
	if !runs {
		reason = "its process does not run: see status.txt in the output folder"
	}
	name, err := os.Hostname()
	return map[string]string{name: reason}, err
}

// inspected returns the errors in documents and the conditions that report a problem.
func (s *summary) inspected() (all []inspection.Problem) {
	for _, p := range slices.Concat(s.problems, s.classless) {
		if p.Severity == decode.Error {
			all = append(all, inspection.Problem{
				Object: fmt.Sprintf("%s:%d", p.File, p.Line), Field: p.Field, Condition: "Accepted", Status: "False",
				Reason: "Invalid", Message: p.String(),
			})
		}
	}
	for id, conditions := range s.conditions {
		for _, c := range translate.Problems(conditions) {
			field, kind := "", c.Type
			if i := strings.LastIndexByte(c.Type, ' '); i >= 0 {
				field, kind = c.Type[:i], c.Type[i+1:]
			}
			all = append(all, inspection.Problem{
				Object: id.Kind + " " + strings.TrimPrefix(id.Namespace+"/"+id.Name, "/"), Field: field, Condition: kind,
				Status: string(c.Status), Reason: c.Reason, Message: c.Message,
			})
		}
	}
	return all
}
