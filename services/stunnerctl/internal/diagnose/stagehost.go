package diagnose

import (
	"strings"

	"github.com/stunner-gateway/stunner/services/api/finding"
)

// hostStage shows the faults that the operator of a file provider finds on its host.
var hostStage = Stage{Name: "host", Fact: hostFact, If: func(s *Snapshot) bool { return s.Folder }, Rules: []Rule{
	{"host has no faults", func(s *Snapshot, g *Gateway) (found []Finding) {
		for _, f := range s.faults(g) {
			found = append(found, Finding{
				Severity: f.Severity, Object: f.Object, Field: f.Field, Problem: f.Problem, Remedy: f.Remedy,
			})
		}
		return found
	}},
}}

// faults returns the faults of a Gateway, or the faults that belong to no Gateway.
func (s *Snapshot) faults(g *Gateway) (all []finding.Finding) {
	if s.Operator == nil {
		return nil
	}
	for _, f := range s.Operator.Faults {
		of, isGateway := strings.CutPrefix(f.Object, "Gateway ")
		if g == nil && !isGateway || g != nil && of == g.Namespace+"/"+g.Name {
			all = append(all, f)
		}
	}
	return all
}

func hostFact(s *Snapshot, g *Gateway) string {
	switch {
	case s.Operator == nil:
		return notChecked + ": the operator was not asked"
	case s.Operator.Output == "":
		return notChecked + ": the operator is of an older release"
	case len(s.faults(g)) > 0:
		return count(len(s.faults(g)), "fault")
	}
	return "no fault"
}
