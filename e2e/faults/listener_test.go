package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// realm, port and protocol change during calls, and no session is lost.
func TestR13Restarts(t *testing.T) {
	t.Run("realm", func(t *testing.T) {
		b := newBench(t)
		b.run()
		live := b.calls(1)
		b.apply(b.changed(func(c *config.Config) { c.Auth.Realm = "other.example.org" }))
		if got := b.realm(); got != "other.example.org" {
			t.Errorf("new clients get the realm %q", got)
		}
		b.renew(live) // with the previous realm
		b.unharmed(live, silence)
		b.await("all sessions have ended by their Refresh requests", b.sessions(0))
	})
	for name, change := range map[string]func(port int, l *config.Listener){
		"port":     func(port int, l *config.Listener) { l.Port = port },
		"protocol": func(_ int, l *config.Listener) { l.Protocol = config.TURNTCP },
		"both":     func(port int, l *config.Listener) { l.Port, l.Protocol = port, config.TURNTCP },
	} {
		t.Run(name, func(t *testing.T) { replacesUDP(t, change) })
	}
}

// replacesUDP changes the socket of the UDP listener: the new one serves, the old one drains.
func replacesUDP(t *testing.T, change func(port int, l *config.Listener)) {
	b := newBench(t)
	// Without the TCP listener, which would conflict when the UDP listener changes to TCP on the same port.
	b.config.Listeners = slices.DeleteFunc(
		b.config.Listeners, func(l config.Listener) bool { return l.Protocol != config.TURNUDP },
	)
	b.run()
	before, live := b.options(call.UDP), b.calls(3, call.UDP)
	change(freePorts(t, 1)[0], &b.config.Listeners[0])
	b.apply(b.config)

	after := b.options(call.UDP)
	after.Network = call.Network(strings.ToLower(strings.TrimPrefix(string(b.config.Listeners[0].Protocol), "TURN-")))
	if lost, _ := (calls{b.call(after)}).end(); lost > 0 {
		t.Errorf("call through the new listener: %d datagrams lost", lost)
	}
	if c, err := call.Start(t.Context(), before); !errors.Is(err, call.ErrRefused) {
		t.Errorf("the old listener accepts a new call: %v", err)
		if err == nil {
			c.End(0)
		}
	}
	b.renew(live)
	b.unharmed(live, silence)
	b.await("the old listener is closed with its last session", func(context.Context) error {
		socket, err := net.ListenUDP("udp", &net.UDPAddr{Port: int(before.Gateway.Port())})
		if err != nil {
			return err
		}
		return socket.Close()
	})
}

// renew makes each call send an authenticated request.
func (b *bench) renew(all calls) {
	b.t.Helper()
	for _, c := range all {
		if err := c.Renew(); err != nil {
			b.t.Errorf("live session is refused: %v", err)
		}
	}
}

// realm returns the realm in a 401 response.
func (b *bench) realm() string {
	b.t.Helper()
	conn, err := net.Dial("udp", b.at(call.UDP).String())
	if err != nil {
		b.t.Fatal(err)
	}
	defer conn.Close()
	request := stun.MustBuild(stun.TransactionID, stun.NewType(stun.MethodAllocate, stun.ClassRequest),
		stun.RawAttribute{Type: stun.AttrRequestedTransport, Value: []byte{17, 0, 0, 0}})
	client, err := stun.NewClient(conn)
	if err != nil {
		b.t.Fatal(err)
	}
	defer client.Close()
	var realm stun.Realm
	err = client.Do(request, func(e stun.Event) {
		if err = e.Error; err == nil {
			err = realm.GetFrom(e.Message)
		}
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return realm.String()
}

// if another process uses a port of the first config, the dataplane is not ready, and reports the listener and
// the error. It becomes ready when the port is free. A port conflict in a later config does not make it unready,
// because that would end its calls.
func TestR10TakenPortAtStart(t *testing.T) {
	other, b := newBench(t), newBench(t)
	other.run()
	b.config.Listeners[0].Port = other.config.Listeners[0].Port
	b.file = filepath.Join(t.TempDir(), "config.json")
	b.write(b.config)
	b.start(b.file)
	b.await("/ready reports the listener and the error", func(ctx context.Context) error {
		code, body, err := bed.Get(ctx, b.health()+"/ready")
		for _, words := range []string{
			`"message":"stunnerd not ready: `, listenerName(call.UDP), "address already in use",
		} {
			if err == nil && (code != http.StatusServiceUnavailable || !strings.Contains(string(body), words)) {
				err = fmt.Errorf("/ready: status %d %s, want it to contain %q", code, body, words)
			}
		}
		return err
	})
	if st := b.status(); st.Status != "NOT-READY" || st.Failures[listenerName(call.UDP)] == "" {
		t.Errorf("status %s, failures %v", st.Status, st.Failures)
	}
	if err := other.process.Kill(); err != nil {
		t.Fatal(err)
	}
	b.within(patience, "ready when the port is free", bed.Answers(b.health()+"/ready", http.StatusOK))
	live := b.calls(1)
	taken, err := net.ListenUDP("udp", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	b.write(b.changed(func(c *config.Config) { c.Listeners[0].Port = taken.LocalAddr().(*net.UDPAddr).Port }))
	b.await("the status names the listener", func(ctx context.Context) error {
		st, err := b.look(ctx)
		if err == nil && (st.Failures[listenerName(call.UDP)] == "" || st.Status != "READY") {
			err = fmt.Errorf("status %s, failures %v", st.Status, st.Failures)
		}
		return err
	})
	b.probe()
	b.unharmed(live, silence)
}

// a port that another process uses affects only its listener.
func TestR10TakenPort(t *testing.T) {
	b := newBench(t)
	b.run()
	live := b.calls(1)
	taken, err := net.ListenUDP("udp", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	former := b.options(call.UDP)
	next := b.changed(func(c *config.Config) {
		c.Listeners[0].Port = taken.LocalAddr().(*net.UDPAddr).Port
		c.Listeners[1].Port = freePorts(t, 1)[0]
		c.Auth.Credentials[config.KeyPassword] = "another-password"
	})
	b.apply(next)
	st := b.status()
	if failed := slices.Collect(maps.Keys(st.Failures)); len(failed) != 1 || failed[0] != listenerName(call.UDP) {
		t.Errorf("failures %v, want one of %s", st.Failures, listenerName(call.UDP))
	}
	if got := st.Listeners[0].Port; got != int(former.Gateway.Port()) {
		t.Errorf("the status shows the failed listener at port %d", got)
	}
	b.config.Listeners[1].Port = next.Listeners[1].Port
	// the first listener at its previous port, the others at their new ports
	for _, network := range []call.Network{call.UDP, call.TCP, call.TLS, call.DTLS} {
		o := b.options(network)
		o.Password = "another-password"
		if lost, _ := (calls{b.call(o)}).end(); lost > 0 {
			t.Errorf("%s: %d datagrams lost", network, lost)
		}
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	b.await("the listener moves when the port is free", func(ctx context.Context) error {
		st, err := b.look(ctx)
		if err == nil && (len(st.Failures) > 0 || st.Problem != "") {
			err = fmt.Errorf("failures %v, problem %q", st.Failures, st.Problem)
		}
		return err
	})
	b.config.Listeners[0].Port = next.Listeners[0].Port
	o := b.options(call.UDP)
	o.Password = "another-password"
	b.await("the listener serves at its new port", b.admits(o))
	b.unharmed(live, silence)
}
