package listener

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/pion/dtls/v3"
)

// reviewedDTLS is the version of pion/dtls for which setCookie was reviewed: flight0Generate makes State.cookie,
// flight2Generate sends it, and flight2Parse compares it.
const reviewedDTLS = "v3.1.15"

// setCookie depends on private state of pion/dtls, so every new version must be reviewed.
func TestDTLSVersionIsReviewed(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", "github.com/pion/dtls/v3").Output()
	if err != nil {
		t.Fatal(err)
	}
	if version := strings.TrimSpace(string(out)); version != reviewedDTLS {
		t.Errorf(
			"pion/dtls is %s: check flight0Generate, flight2Generate and flight2Parse for what setCookie relies on, then set reviewedDTLS",
			version,
		)
	}
}

// Without a cookie to overwrite, the handshake fails with an error and not with a panic.
func TestSetCookieNeedsACookie(t *testing.T) {
	if err := setCookie(new(dtls.Conn), [cookieSize]byte{}); !errors.Is(err, errCookie) {
		t.Errorf("%v, want %v", err, errCookie)
	}
}
