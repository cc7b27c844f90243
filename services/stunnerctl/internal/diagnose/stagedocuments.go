package diagnose

import (
	"cmp"
	"regexp"
	"strings"
)

// documentsStage checks the input folder of a file provider.
var documentsStage = Stage{
	Name: "documents", Fact: documentsFact, Rules: documentsRules, If: func(s *Snapshot) bool { return s.Folder },
}

// inFile matches the object of a problem of a document: FILE:LINE. No name of a Kubernetes object contains a colon.
var inFile = regexp.MustCompile(`:\d+$`)

// documentsRules report the documents that are not in force. The statuses of their objects are of earlier documents.
var documentsRules = []Rule{
	{"documents are in force", func(s *Snapshot, _ *Gateway) (found []Finding) {
		if s.Operator == nil {
			return nil
		}
		for _, p := range s.Operator.Problems {
			if !inFile.MatchString(p.Object) {
				continue // a condition, which the rules of its object report
			}
			for _, f := range p.Findings {
				found = append(found, Finding{
					Severity: f.Severity, Object: f.Object, Field: f.Field, Problem: f.Problem,
					Remedy: cmp.Or(f.Remedy, "correct the document; what was in force before stays in force"),
				})
			}
		}
		if n := s.Operator.Omitted; n > 0 {
			found = append(found, Finding{
				Severity: Error, Object: "operator", Problem: "reports " + count(n, "further problem"),
				Remedy: "see status.txt in the output folder",
			})
		}
		return found
	}},
}

func documentsFact(s *Snapshot, _ *Gateway) string {
	if s.Operator == nil {
		return notChecked + ": the operator was not asked"
	}
	n := 0
	for _, p := range s.Operator.Problems {
		if inFile.MatchString(p.Object) {
			n++
		}
	}
	if n > 0 {
		return count(n, "error")
	}
	return "all in force"
}

// inTermsOfProvider returns a text with the terms of the provider: a file provider runs processes instead of pods.
func (s *Snapshot) inTermsOfProvider(text string) string {
	if !s.Folder {
		return text
	}
	return strings.NewReplacer(folderWords...).Replace(text)
}

// restart is the remedy for a process that does not recover.
const restart = "if it does not recover, end the process: the operator starts it again"

// folderWords are phrases of findings and facts, each with its replacement.
var folderWords = []string{
	"its pods are not readable, and it was not asked", "it was not asked",
	"see its log, its CPU limit and the events of its liveness probe; ", "see its log in the folder logs; ",
	"if it does not recover, delete the pod", restart,
	"its log says why it has no connection; if the pod runs an older release, replace it when it has no calls",
	"its log in the folder logs says why it has no connection",
	"let the pod reach TCP port 13478 of Service stunner-config-discovery: NetworkPolicies, DNS, its CA and token",
	"see its log in the folder logs; " + restart,
	"the pod runs an older release: replace it when it has no calls",
	"the process runs an older release: end it when it has no calls",
	"update spec.image of the Dataplane to the release of the operator",
	"start the operator with the program of its own release in --stunnerd",
	"update spec.image of the Dataplane", "start the operator with the program of its own release in --stunnerd",
	"add pods, or raise the memory limit in spec.resources of the Dataplane", "give the host more memory",
	"see the connection of the pods to the operator", "see the logs of the dataplanes in the folder logs",
	"the log of the pod", "its log in the folder logs",
	"spec.containers[0].image", "--stunnerd",
	"status of the pods", "status of the dataplane",
	"the running pods", "the running dataplanes",
	"the pods that answered", "the dataplanes that answered",
	"the pods were not asked", "the dataplanes were not asked",
	"why these pods do not answer", "why these dataplanes do not answer",
	"the other pods", "the other dataplanes",
	"no pod ", "no dataplane ",
}
