package diagnose

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// Findings do not depend on the text of a condition: if each word of a message and of its problem is replaced, the
// finding still has the object, the field and the remedy of the operator.
func TestFindingsDoNotDependOnTheWordsOfConditions(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	words := 0
	for _, file := range files {
		a, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range a.Files {
			var problems []inspection.Problem
			if f.Name != "problems" {
				continue
			}
			if err := yaml.UnmarshalStrict(f.Data, &problems); err != nil {
				t.Fatal(file, err)
			}
			for _, p := range problems {
				words += checkWords(t, p)
			}
		}
	}
	if words < 300 {
		t.Errorf("only %d words", words)
	}
}

// checkWords replaces each word of a problem, and returns the number of words.
func checkWords(t *testing.T, p inspection.Problem) int {
	words := strings.Fields(p.Message)
	for _, word := range words {
		changed := p
		changed.Message = strings.ReplaceAll(p.Message, word, "xyzzy")
		changed.Findings = nil
		for _, f := range p.Findings {
			f.Problem = strings.ReplaceAll(f.Problem, word, "xyzzy")
			changed.Findings = append(changed.Findings, f)
		}
		s := &Snapshot{Operator: &Operator{Problems: []inspection.Problem{changed}}}
		c := metav1.Condition{Type: p.Condition, Message: changed.Message}
		got := s.fromCondition(p.Object, p.Field, c, "")
		if len(got) != len(p.Findings) {
			t.Fatalf("%q: %d findings", changed.Message, len(got))
		}
		for i, want := range changed.Findings {
			if g := got[i]; g.Object != want.Object || want.Field != "" && g.Field != want.Field || g.Problem != want.Problem || g.Remedy != want.Remedy {
				t.Errorf("%q: %+v, want %+v", changed.Message, g, want)
			}
		}
	}
	return len(words)
}

// Without an answer of the operator, the message with its remedy is the problem.
func TestConditionsWithoutTheOperator(t *testing.T) {
	c := metav1.Condition{Type: "DeprecatedInput", Message: "protocol UDP is read as TURN-UDP: write protocol: TURN-UDP"}
	got := (&Snapshot{}).fromCondition("Gateway a/b", "spec.listeners[udp]", c, "")
	if len(got) != 1 || got[0].Severity != Warning || got[0].Problem != c.Message || got[0].Remedy == "" ||
		got[0].Field != "spec.listeners[udp].status.conditions[DeprecatedInput]" {
		t.Errorf("%+v", got)
	}
}
