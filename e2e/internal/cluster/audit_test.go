package cluster

import (
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	before  = `{"auditID":"1","verb":"get","requestReceivedTimestamp":"2024-05-06T07:08:08.999999Z"}` + "\n"
	change  = `{"auditID":"2","verb":"patch","requestReceivedTimestamp":"2024-05-06T07:08:09.000001Z"}` + "\n"
	watch   = `{"auditID":"3","stage":"ResponseStarted","verb":"watch","requestReceivedTimestamp":"2024-05-06T07:08:09.000002Z"}` + "\n"
	watched = `{"auditID":"3","stage":"ResponseComplete","verb":"watch","requestReceivedTimestamp":"2024-05-06T07:08:09.000002Z"}` + "\n"
)

// TestAuditLog: the last line of the log is skipped while it is incomplete, and read later. A malformed line is an
// error.
func TestAuditLog(t *testing.T) {
	since := time.Date(2024, 5, 6, 7, 8, 9, 1999, time.UTC) // times in the log have microseconds
	var log auditLog
	for _, c := range []struct {
		text string
		want []string
	}{
		{before + change[:30], nil},
		{before + change + watch[:30], []string{"patch"}},
		{before + change + watch + watched, []string{"patch", "watch"}},
	} {
		got, err := log.read(strings.NewReader(c.text), since)
		if err != nil {
			t.Fatal(err)
		}
		var verbs []string
		for _, e := range got {
			verbs = append(verbs, e.Verb)
		}
		if !slices.Equal(verbs, c.want) {
			t.Errorf("entries %v, want %v", verbs, c.want)
		}
	}
	if _, err := new(auditLog).read(strings.NewReader("no event\n"), since); err == nil {
		t.Error("no error for a line that is not an audit event")
	}
}
