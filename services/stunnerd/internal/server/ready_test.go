package server

import (
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testport"
)

// occupied is a socket on a port of a listener of the config.
func occupied(t *testing.T, l config.Listener) (free func()) {
	t.Helper()
	at := ":" + strconv.Itoa(l.Port)
	if l.Protocol.Network() == "tcp" {
		socket, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = socket.Close() })
		return func() { _ = socket.Close() }
	}
	socket, err := net.ListenPacket("udp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	return func() { _ = socket.Close() }
}

// ready checks that the server is ready, or is not ready for the given reason.
func (b *fixture) ready(when string, words ...string) {
	b.t.Helper()
	err := b.Ready()
	if want := len(words) == 0; want != (err == nil) || want != (b.Status().Status == inspection.Ready) {
		b.t.Errorf("%s: %v, status %s", when, err, b.Status().Status)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			b.t.Errorf("%s: %q does not say %q", when, err, w)
		}
	}
}

// A server is ready if every listener of its first config is open. Otherwise the error of Ready names the listeners
// that are not open. A server that was ready with a listener stays ready.
func TestReadyWhenAllListenersAreOpen(t *testing.T) {
	b := newEmptyFixture(t)
	b.ready("without a config", "no config")
	for i := range b.config.Listeners {
		l := b.config.Listeners[i]
		t.Run(string(l.Protocol), func(t *testing.T) {
			b := newEmptyFixture(t)
			free := occupied(t, b.config.Listeners[i])
			if _, err := b.Apply(b.config); err == nil {
				t.Fatal("a listener opens on a port that is taken")
			}
			b.ready("a listener is not open", l.Name, "address already in use")
			if b.Status().Failures[l.Name] == "" {
				t.Error("the status does not name the failure")
			}
			free()
			b.apply(b.config)
			b.ready("all listeners are open")

			later := b.config.Clone()
			extra := config.Listener{
				Name: "test/gateway/extra", Protocol: l.Protocol, Port: testport.Free(t), Address: "127.0.0.1",
				Cert: l.Cert, Key: l.Key,
			}
			later.Listeners = append(later.Listeners, extra)
			occupied(t, extra)
			if _, err := b.Apply(later); err == nil {
				t.Fatal("a listener opens on a port that is taken")
			}
			b.ready("a listener of a later config is not open")
			if b.Status().Failures[extra.Name] == "" {
				t.Error("the status does not name the failure of the later config")
			}
		})
	}
}

// A config without listeners is ready, but does not count as the first ready config: if a later listener cannot be
// opened, the server becomes unready, which interrupts no call, because there is none.
func TestReadyWithoutListeners(t *testing.T) {
	b := newEmptyFixture(t)
	empty := b.config.Clone()
	empty.Listeners = nil
	b.apply(empty)
	b.ready("no listeners")
	occupied(t, b.config.Listeners[0])
	if _, err := b.Apply(b.config); err == nil {
		t.Fatal("a listener opens on a port that is taken")
	}
	b.ready("the first listener is not open", b.config.Listeners[0].Name)
	b.config.Listeners = b.config.Listeners[1:]
	b.apply(b.config)
	b.ready("the listener is given up")
}

// A STUN-only server is ready if its listeners are open.
func TestReadyWithSTUNOnly(t *testing.T) {
	b := newEmptyFixture(t)
	b.config.Auth = config.Auth{Type: config.AuthNone, Realm: "test.example"}
	free := occupied(t, b.config.Listeners[0])
	if _, err := b.Apply(b.config); err == nil {
		t.Fatal("a listener opens on a port that is taken")
	}
	b.ready("a listener is not open", b.config.Listeners[0].Name)
	free()
	b.apply(b.config)
	b.ready("all listeners are open")
}

// The reason stays short if many listeners are not open.
func TestReadyNamesFewListeners(t *testing.T) {
	b := newEmptyFixture(t)
	for _, l := range b.config.Listeners {
		occupied(t, l)
	}
	if _, err := b.Apply(b.config); err == nil {
		t.Fatal("listeners open on ports that are taken")
	}
	b.ready("no listener is open", b.config.Listeners[0].Name, "and 1 more")
}

// If an offload engine cannot be used, there is a warning, and nothing changes.
func TestOffloadEngineIsWarnedOf(t *testing.T) {
	b := newFixture(t)
	b.config.Admin.OffloadInterfaces = []string{"missing0"}
	for _, engine := range []string{"XDP", "TC", "Auto", "None"} {
		b.config.Admin.OffloadEngine = engine
		b.apply(b.config)
		st := b.Status()
		if st.Admin.Offload != "None" || st.Offload.Engine != engine || st.Offload.Mechanism != "None" {
			t.Errorf("%s: the status says %s, %+v", engine, st.Admin.Offload, st.Offload)
		}
		warned := len(st.Warnings) == 1 && strings.Contains(st.Warnings[0], "admin.offload_engine: "+engine+": ")
		if warned != (engine != "None") || len(st.Failures) > 0 || st.Status != inspection.Ready {
			t.Errorf("%s: warnings %q, failures %v, status %s", engine, st.Warnings, st.Failures, st.Status)
		}
	}
}
