package cluster

import (
	"slices"
	"testing"
	"time"
)

const (
	before  = `{"auditID":"1","verb":"get","requestReceivedTimestamp":"2024-05-06T07:08:08.999999Z"}` + "\n"
	change  = `{"auditID":"2","verb":"patch","requestReceivedTimestamp":"2024-05-06T07:08:09.000001Z"}` + "\n"
	watch   = `{"auditID":"3","stage":"ResponseStarted","verb":"watch","requestReceivedTimestamp":"2024-05-06T07:08:09.000002Z"}` + "\n"
	watched = `{"auditID":"3","stage":"ResponseComplete","verb":"watch","requestReceivedTimestamp":"2024-05-06T07:08:09.000002Z"}` + "\n"
)

// TestEntries: the last line of the log is skipped while it is incomplete. A malformed line is an error.
func TestEntries(t *testing.T) {
	since := time.Date(2024, 5, 6, 7, 8, 9, 1999, time.UTC) // times in the log have microseconds
	got, err := entries([]byte(before+change+watch+watched+change[:30]), since)
	if err != nil {
		t.Fatal(err)
	}
	var verbs []string
	for _, e := range got {
		verbs = append(verbs, e.Verb)
	}
	if want := []string{"patch", "watch"}; !slices.Equal(verbs, want) {
		t.Errorf("entries %v, want %v", verbs, want)
	}
	if _, err := entries([]byte("no event\n"), since); err == nil {
		t.Error("no error for a line that is not an audit event")
	}
}
