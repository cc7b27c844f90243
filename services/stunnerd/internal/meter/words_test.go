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
		if general := r.Text(); len(general) < 10 || strings.ContainsAny(general, "{}") || strings.Contains(general, "  ") {
			t.Errorf("reason %s in general: %q", r, general)
		}
	}
}

func TestNoTwoReasonsHaveTheSameNameOrText(t *testing.T) {
	names, texts := map[string]Reason{}, map[string]Reason{}
	for _, r := range All() {
		if other, taken := names[r.String()]; taken {
			t.Errorf("reasons %d and %d are called %s", r, other, r)
		}
		if other, taken := texts[r.Text()]; taken {
			t.Errorf("%s and %s have the same text", r, other)
		}
		names[r.String()], texts[r.Text()] = r, r
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
