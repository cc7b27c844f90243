package command

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// An operator that cannot be reached is a finding. There are no findings about its pods, whose state is unknown.
func TestWhyWithoutOperator(t *testing.T) {
	w := newProvider(t)
	w.write(t, "discovery.url", "http://127.0.0.1:1") // no process listens there
	for _, args := range [][]string{
		{"why", "media/berlin"}, {"why", "media/berlin", "--user", "ada"}, {"why", "media/berlin", "--peer", "10.0.0.9:20000"},
		{"doctor", "-n", "media"},
	} {
		out, errs, code := w.run(t, args...)
		if code != exitFailed || errs != "" || !strings.Contains(out, "ERROR  operator") ||
			strings.Contains(out, "has not reached the Gateway") || strings.Contains(out, "is not allowed") {
			t.Errorf("%q: exit code %d\n%s%s", args, code, out, errs)
		}
	}
}

// A namespace without a Gateway is reported as a finding. The command does not fail.
func TestDoctorWithoutGateway(t *testing.T) {
	out, errs, code := newProvider(t).run(t, "doctor", "-n", "nowhere")
	if code != 0 || errs != "" || !strings.Contains(out, "there is no Gateway of STUNner") || !strings.Contains(out, "use -A") ||
		strings.Contains(out, "kubectl") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
}

// A clock that is a fraction of a second behind is not shown as -0s.
func TestClockOfStatus(t *testing.T) {
	status := podStatusOf(answer[inspection.Status]{value: inspection.Status{Now: at.Add(-300 * time.Millisecond)}}, "", at)
	if text := fmt.Sprintf("%+.0f", status.ClockSkewSeconds); text != "+0" {
		t.Error(text)
	}
}
