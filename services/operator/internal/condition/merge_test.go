package condition_test

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
)

var (
	yesterday = metav1.NewTime(time.Date(2030, 6, 7, 8, 9, 10, 0, time.UTC))
	today     = metav1.NewTime(yesterday.AddDate(0, 0, 1))
)

func TestMergeMovesTheTransitionTimeOnlyOnATransition(t *testing.T) {
	have := []metav1.Condition{
		{Type: condition.Accepted, Status: metav1.ConditionTrue, Reason: "Accepted", LastTransitionTime: yesterday, ObservedGeneration: 1},
		{Type: condition.Programmed, Status: metav1.ConditionTrue, Reason: "Programmed", LastTransitionTime: yesterday, ObservedGeneration: 1},
	}
	got := condition.Merge(have, 2, today,
		condition.True(condition.Accepted, condition.SomeListenersInvalid([]string{"tls"})),
		condition.False(condition.Programmed, condition.NoAddress([]string{"udp"})),
		condition.True(condition.ResolvedRefs, condition.Finding{Reason: condition.ReasonResolved}),
	).Conditions
	want := map[string]metav1.Time{
		condition.Accepted: yesterday, condition.Programmed: today, condition.ResolvedRefs: today,
	}
	for _, c := range got {
		if !c.LastTransitionTime.Equal(new(want[c.Type])) {
			t.Errorf("%s changed at %s, want %s", c.Type, c.LastTransitionTime, want[c.Type])
		}
		if c.ObservedGeneration != 2 {
			t.Errorf("%s has seen generation %d, want 2", c.Type, c.ObservedGeneration)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %d conditions, want %d", len(got), len(want))
	}
}

func TestMergeSetsAMissingTransitionTime(t *testing.T) {
	have := []metav1.Condition{{Type: condition.Accepted, Status: metav1.ConditionTrue}}
	got := condition.Merge(
		have, 1, today, condition.Holds(condition.Accepted, condition.ReasonAccepted, condition.Finding{}),
	).Conditions
	if !got[0].LastTransitionTime.Equal(&today) {
		t.Errorf("transition time is %s, want %s", got[0].LastTransitionTime, today)
	}
}

func TestMergeKeepsWhatOthersWriteAndDropsWarningsThatAreOver(t *testing.T) {
	foreign := metav1.Condition{
		Type: "example.org/Audited", Status: metav1.ConditionTrue, Reason: "Passed", LastTransitionTime: yesterday,
	}
	have := []metav1.Condition{
		{Type: condition.RealmNotDNSName, Status: metav1.ConditionTrue, Reason: "Warning"}, foreign,
	}
	got := condition.Merge(
		have, 1, today, condition.Holds(condition.Accepted, condition.ReasonAccepted, condition.Finding{}),
	).Conditions
	want := []metav1.Condition{
		{Type: condition.Accepted, Status: metav1.ConditionTrue, Reason: "Accepted", ObservedGeneration: 1, LastTransitionTime: today},
		foreign,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMessagesAreBounded(t *testing.T) {
	for _, letter := range []string{"x", "é", "…"} {
		c := condition.False(
			condition.Accepted, condition.NameInvalid(strings.Repeat(letter, 40_000)),
		)
		if len(c.Message) > 32768 || !utf8.ValidString(c.Message) || !strings.HasSuffix(c.Message, "…") {
			t.Errorf("message of %q has %d bytes, valid %t", letter, len(c.Message), utf8.ValidString(c.Message))
		}
	}
}

func TestJoinTakesTheReasonOfTheFirstAndTheMessagesOfAll(t *testing.T) {
	got := condition.Join([]condition.Finding{
		{}, condition.BackendMissing(condition.Place{Text: "a/b"}, "Service"), condition.BackendKind(condition.Place{Text: "a/c"}, "batch", "Job"),
	})
	if got.Reason != condition.ReasonBackendNotFound || !strings.Contains(got.Message(), "a/b") ||
		!strings.Contains(got.Message(), "a/c") {
		t.Errorf("got %+v", got)
	}
	if !condition.Join(nil).OK() {
		t.Error("nothing joined is something")
	}
}
