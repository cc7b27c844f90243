package meter

import (
	"net/netip"
	"strings"
	"testing"
)

func TestEveryReasonHasANameAndASentence(t *testing.T) {
	for r := range reasonCount {
		text := Entry{Reason: r, Note: Note{Listener: "media/edge/udp"}}.Text("routes: media/sfu")
		if r.String() == "" || len(text) < 10 || strings.ContainsAny(text, "{}") {
			t.Errorf("reason %d: %q, %q", r, r, text)
		}
	}
}

func TestADeniedPeerIsNamedWithTheRoutesThatDoNotAllowIt(t *testing.T) {
	e := Entry{
		Reason: PeerDenied,
		Note:   Note{Listener: "media/edge/udp", Peer: netip.MustParseAddrPort("10.0.0.7:53"), User: "ann"},
	}
	want := "peer 10.0.0.7:53 denied: no route of listener media/edge/udp allows it (routes: media/sfu)"
	if got := e.Text("routes: media/sfu"); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
