package listener

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/pion/dtls/v3"
)

// reviewedDTLS is the version of pion/dtls for which setCookie and recordNumber were reviewed: flight0Generate makes
// State.cookie, flight2Generate sends it, and flight2Parse compares it; handleIncomingPacket sets remoteSequenceNumber
// of a record after it was decrypted.
const reviewedDTLS = "v3.1.15"

// setCookie and recordNumber depend on private state of pion/dtls, so every new version must be reviewed.
func TestDTLSVersionIsReviewed(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", "github.com/pion/dtls/v3").Output()
	if err != nil {
		t.Fatal(err)
	}
	if version := strings.TrimSpace(string(out)); version != reviewedDTLS {
		t.Errorf(
			"pion/dtls is %s: check flight0Generate, flight2Generate, flight2Parse and handleIncomingPacket for what setCookie and "+
				"recordNumber rely on, then set reviewedDTLS",
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

// Without the number of authentic records, there is an error and not a panic.
func TestRecordNumberNeedsANumber(t *testing.T) {
	if _, err := recordNumber(new(dtls.Conn)); !errors.Is(err, errRecordNumber) {
		t.Errorf("%v, want %v", err, errRecordNumber)
	}
}
