package follower

import (
	"net"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testport"
)

// block occupies a UDP port.
func block(t *testing.T, port int) {
	t.Helper()
	socket, err := net.ListenUDP("udp", &net.UDPAddr{Port: port})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
}

// A config with a placeholder of an unset variable is rejected with an error that names field and variable. The
// previous config stays in force.
func TestConfigWithAnUnsetPlaceholderIsRejected(t *testing.T) {
	f, h := follow(t, "")
	good := configWith(t, func(c *config.Config) { c.Auth.Realm = "calls.${STUNNER_ADDR}" })
	h.events <- discovery.Event{ID: id, Config: good, Revision: good.Revision()}
	h.reported(t, func(r discovery.Report) bool { return r.Revision == good.Revision() && r.Accepted })
	if got := f.Status().Auth.Realm; got != "calls.192.0.2.9" {
		t.Errorf("realm %q", got)
	}
	bad := configWith(t, func(c *config.Config) { c.Auth.Realm = "$STUNNER_REALM" })
	bad.Listeners[0].Port = testport.Free(t)
	h.events <- discovery.Event{ID: id, Config: bad, Revision: bad.Revision()}
	r := h.reported(t, func(r discovery.Report) bool { return !r.Accepted })
	if !strings.Contains(r.Error, `auth.realm: "STUNNER_REALM" is not set`) || r.Revision != good.Revision() {
		t.Errorf("report %+v", r)
	}
}

// The readiness error names the listener that is not open.
func TestNotReadyNamesTheListener(t *testing.T) {
	f, h := follow(t, "")
	if err := f.Ready(); err == nil || err.Error() != "stunnerd not ready: no config is in force yet" {
		t.Errorf("without a config: %v", err)
	}
	taken := testport.Free(t)
	block(t, taken)
	c := configWith(t, func(c *config.Config) { c.Listeners[0].Port = taken })
	h.events <- discovery.Event{ID: id, Config: c, Revision: c.Revision()}
	h.reported(t, func(r discovery.Report) bool { return r.Revision == c.Revision() && !r.Accepted })
	err := f.Ready()
	if err == nil || !strings.HasPrefix(err.Error(), "stunnerd not ready: open listener "+id+"/udp: ") ||
		!strings.Contains(err.Error(), "address already in use") {
		t.Errorf("beside another process: %v", err)
	}
}
