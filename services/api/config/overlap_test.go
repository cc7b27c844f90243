package config_test

import (
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// an overlap of 0 differs from the default, and an explicit default equals a missing value.
func TestCredentialOverlap(t *testing.T) {
	without := parse(t, `{"version":"v1"}`)
	for text, want := range map[string]float64{
		`{"version":"v1"}`: 600,
		`{"version":"v1","auth":{"credential_overlap":0}}`:   0,
		`{"version":"v1","auth":{"credential_overlap":90}}`:  90,
		`{"version":"v1","auth":{"credential_overlap":600}}`: 600,
	} {
		c := parse(t, text)
		again := parse(t, string(c.Canonical()))
		if got := again.Auth.Overlap().Seconds(); got != want || c.Auth.Overlap() != again.Auth.Overlap() {
			t.Errorf("%s: %v seconds, want %v", text, got, want)
		}
		if same := c.Revision() == without.Revision(); same != (want == 600) {
			t.Errorf("%s: same as the default: %v", text, same)
		}
		if changes := config.Diff(without, c); (len(changes) == 0) != (want == 600) {
			t.Errorf("%s: changes %v", text, changes)
		}
		copied := c.Clone()
		if copied.Auth.CredentialOverlap != nil {
			*copied.Auth.CredentialOverlap = 5
			if c.Auth.Overlap().Seconds() != want {
				t.Errorf("%s: a change of a copy changes the original", text)
			}
		}
	}
	wrong := parse(t, `{"version":"v1","auth":{"credential_overlap":-1,"credentials":{"username":"u","password":"p"}}}`)
	if err := wrong.Validate(); err == nil ||
		!strings.Contains(err.Error(), "auth.credential_overlap: -1 is negative") {
		t.Errorf("negative: %v", err)
	}
}
