package telemetry_test

import (
	"regexp"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

func TestVersionNamesProgramAndGo(t *testing.T) {
	if got := telemetry.Version("relay"); !regexp.MustCompile(`^relay \S+ go1\.\S+( [0-9a-f]+)?$`).MatchString(got) {
		t.Errorf("version %q", got)
	}
}
