package main

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// after SIGTERM a process refuses new calls and keeps the existing calls. It ends when the last call has ended.
func TestSIGTERMDrains(t *testing.T) {
	for name, c := range map[string]struct {
		flags []string
		ready int
	}{
		"ready all the while": {nil, http.StatusOK},
		"ready, as told":      {[]string{"--force-ready-status"}, http.StatusOK},
		"unready, as told":    {[]string{"--unready-on-drain"}, http.StatusServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, c.flags...)
			live := p.mustDial("ann")
			p.draining()
			if got := p.code("/ready"); got != c.ready {
				t.Errorf("/ready answers %d, want %d", got, c.ready)
			}
			if got := p.code("/live"); got != http.StatusOK {
				t.Errorf("/live answers %d", got)
			}
			if _, err := p.dial("bob"); err == nil || !strings.Contains(err.Error(), "508") {
				t.Errorf("new call: %v, want 508", err)
			}
			if err := live.echo("still here"); err != nil {
				t.Errorf("the live call is cut: %v", err)
			}
			p.runs()
			if err := live.relay.Close(); err != nil {
				t.Fatal(err)
			}
			p.endsWell()
		})
	}
}

// after SIGTERM a process without sessions ends at once.
func TestSIGTERMWithoutCallsEndsAtOnce(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.terminate()
	p.endsWell()
}

// after a second SIGTERM the process ends, even with a session.
func TestSecondSIGTERMEndsAtOnce(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.mustDial("ann")
	p.draining()
	p.runs()
	p.terminate()
	p.endsWell()
	if !bytes.Contains(p.said(), []byte("second signal, stop draining")) {
		t.Error("the log does not say why it ended")
	}
}

// after the drain timeout the process ends, even with a session.
func TestDrainTimeoutEnds(t *testing.T) {
	t.Parallel()
	const timeout = time.Second
	p := start(t, "--drain-timeout", timeout.String())
	p.mustDial("ann")
	began := time.Now()
	p.terminate()
	p.endsWell()
	if took := time.Since(began); took < timeout {
		t.Errorf("ended after %s with a live call, before the time of %s was over", took, timeout)
	}
	if !bytes.Contains(p.said(), []byte("drain timeout")) {
		t.Error("the log does not say why it ended")
	}
}

// The admin endpoints of a process show the sessions and refusals of a client, as configured by the flags.
func TestSessionsAndRefusalsOfARunningProcess(t *testing.T) {
	t.Parallel()
	p := start(t, "--show-users", "--sessions-from=any")
	live := p.mustDial("ann")
	if err := live.echo("hello"); err != nil {
		t.Fatal(err)
	}
	// the echo may arrive before it is counted
	p.within("the session is listed with what passed both ways", func() bool {
		var list inspection.SessionList
		_, body := p.get("/sessions?user=ann")
		if err := json.Unmarshal(body, &list); err != nil || len(list.Sessions) != 1 {
			t.Fatalf("%v, %s", err, body)
		}
		s := list.Sessions[0]
		if s.Relay != live.relay.LocalAddr().String() || s.Listener != "media/edge/udp" || s.Protocol != "TURN-UDP" {
			t.Fatalf("session %+v", s)
		}
		return s.Stats.Tx.Packets == 1 && s.Stats.Rx.Bytes == uint64(len("hello"))
	})
	live.peer = &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 53}
	if err := live.echo("to nowhere"); err == nil {
		t.Fatal("a peer without a route was reached")
	}
	var refusals inspection.RefusalList
	_, body := p.get("/refusals?user=ann")
	if err := json.Unmarshal(body, &refusals); err != nil || len(refusals.Refusals) == 0 {
		t.Fatalf("%v, %s", err, body)
	}
	want := "peer 10.0.0.1:53 denied: no route of listener media/edge/udp allows it (routes: media/echo)"
	if got := refusals.Refusals[0]; got.Text != want || !got.Answered {
		t.Errorf("refusal %+v, want %q", got, want)
	}
	// Refusals before the gate are shown too.
	p.babble("tcp4", p.turn["tls"], 1, map[string][]byte{"no handshake": []byte("GET / HTTP/1.1\r\n\r\n")})
	p.within("a handshake that failed", func() bool {
		_, body := p.get("/refusals?listener=media/edge/tls")
		var failed inspection.RefusalList
		return json.Unmarshal(body, &failed) == nil && len(failed.Refusals) == 1 &&
			failed.Refusals[0].Reason == "handshake"
	})
}
