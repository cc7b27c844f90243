package file

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/decode"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

var (
	doorKey = types.NamespacedName{Namespace: "calls", Name: "door"}
	sideKey = types.NamespacedName{Namespace: "calls", Name: "side"}
)

const sideYAML = `apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: side, namespace: calls}
spec:
  gatewayClassName: turn
  listeners:
    - {name: udp, port: 17600, protocol: TURN-UDP}
`

const revocationYAML = `apiVersion: stunner.l7mp.io/v1
kind: Revocation
metadata: {name: ada, namespace: calls}
spec: {user: ada, issuedBefore: "2126-01-01T00:00:00Z"}
`

// panicking returns a loop in which the translation of an object panics if `is` selects the object and faulty returns
// true. panics is the number of panics.
func panicking(t *testing.T, s *site, faulty func() bool, is func(translate.ObjectRef) bool) (l *loop, panics *int) {
	t.Helper()
	l, err := newLoop(s.provider, discovery.NewServer(discovery.ServerOptions{Log: s.provider.Log}), "")
	if err != nil {
		t.Fatal(err)
	}
	panics = new(int)
	l.translateObject = func(ref translate.ObjectRef, v *resource.View, o translate.Options) translate.Outcome {
		if faulty() && is(ref) {
			*panics++
			panic("a fault of the translation")
		}
		return ref.Translate(v, o)
	}
	return l, panics
}

func isDoor(ref translate.ObjectRef) bool { return ref == gatewayRef(doorKey) }

// A Gateway whose translation panics keeps config, objects, status and ports, and other Gateways change as before. The
// document is reported as a problem, so the metric and the alert about problems show it.
func TestPanicOfATranslationIsContained(t *testing.T) {
	for name, inSockets := range map[string]bool{"in the translation": false, "in the search for ports": true} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			s, faulty := newSite(t), false
			s.provider.Log = slog.New(slog.NewTextHandler(&log, nil))
			s.write("side.yaml", sideYAML)
			if err := s.provider.prepare(); err != nil {
				t.Fatal(err)
			}
			l, panics := panicking(t, s, func() bool { return faulty && !inSockets }, isDoor)
			l.sockets = func(
				v *resource.View, key types.NamespacedName, o translate.Options,
			) ([]translate.Socket, translate.Decision) {
				if faulty && inSockets && key == doorKey {
					*panics++
					panic("a fault of the translation")
				}
				return translate.Sockets(v, key, o)
			}
			round := func() {
				t.Helper()
				if err := l.round(); err != nil {
					t.Fatal(err)
				}
			}
			port := func(key types.NamespacedName) int { return l.current(key).Listeners[0].Port }
			round()
			door, side := *l.current(doorKey), port(sideKey)
			assigned := l.ports.chosen["calls/door/udp"]
			files := []string{"objects/calls/deployment-door.yaml", "status/gateway/calls_door.yaml"}
			var before []string
			for _, name := range files {
				before = append(before, s.output(name))
			}
			faulty = true
			s.write("gateway.yaml", strings.Replace(gatewayYAML, "17478", "17500", 1))
			s.write("side.yaml", strings.Replace(sideYAML, "17600", "17700", 1))
			round()
			round()
			if *panics != 2 {
				t.Fatalf("TEST NOT VALID: %d panics in two rounds", *panics)
			}
			if l.current(doorKey).Revision() != door.Revision() || port(sideKey) != side+100 {
				t.Errorf("ports %d and %d, want %d and %d", port(doorKey), port(sideKey), door.Listeners[0].Port, side+100)
			}
			if got := l.ports.chosen["calls/door/udp"]; got != assigned {
				t.Errorf("port of the Gateway is %v, was %v", got, assigned)
			}
			for i, name := range files {
				if got := s.output(name); got == "" || got != before[i] {
					t.Errorf("%s has changed:\n%s", name, got)
				}
			}
			if text := s.output("status.txt"); !strings.Contains(text, "its translation failed") ||
				!strings.Contains(text, "gateway.yaml:1: Gateway calls/door") {
				t.Errorf("status.txt says\n%s", text)
			}
			if text := log.String(); !strings.Contains(text, "calls/door") || !strings.Contains(text, "a fault of the translation") {
				t.Errorf("log %s", text)
			}
			s.write("revocation.yaml", revocationYAML)
			round()
			if got := l.current(doorKey).Auth.Revocations; len(got) != 1 {
				t.Errorf("after a revocation %v is published", got)
			}
			faulty = false
			round()
			if got := port(doorKey); got != 17500 || len(l.summary.problems) != 0 {
				t.Errorf("after the fault: port %d, problems %v", got, l.summary.problems)
			}
		})
	}
}

// After a restart, a Gateway whose translation panics has the config of the previous run.
func TestPanicAfterARestart(t *testing.T) {
	s := newSite(t)
	if err := s.provider.prepare(); err != nil {
		t.Fatal(err)
	}
	var before *config.Config
	for _, faulty := range []bool{false, true} {
		l, panics := panicking(t, s, func() bool { return faulty }, isDoor)
		if err := l.round(); err != nil {
			t.Fatal(err)
		}
		got := l.current(doorKey)
		if !faulty {
			before = got
			continue
		}
		if *panics == 0 || got == nil || got.Revision() != before.Revision() {
			t.Errorf("%d panics, config %+v, want that of the previous run", *panics, got)
		}
		s.write("revocation.yaml", revocationYAML)
		if err := l.round(); err != nil {
			t.Fatal(err)
		}
		if got := l.current(doorKey); len(got.Auth.Revocations) != 1 {
			t.Errorf("after a revocation %v is published", got.Auth.Revocations)
		}
	}
}

// A status whose translation panics stays as it is, and the others are written.
func TestPanicOfATranslatedStatusIsContained(t *testing.T) {
	s, faulty := newSite(t), false
	if err := s.provider.prepare(); err != nil {
		t.Fatal(err)
	}
	l, panics := panicking(t, s, func() bool { return faulty },
		func(ref translate.ObjectRef) bool { return ref.Kind == translate.KindRoute })
	if err := l.round(); err != nil {
		t.Fatal(err)
	}
	route := s.output("status/udproute/calls_media.yaml")
	if err := os.Remove(filepath.Join(s.provider.Output, "status/gatewayclass/turn.yaml")); err != nil {
		t.Fatal(err)
	}
	faulty = true
	if err := l.round(); err != nil {
		t.Fatal(err)
	}
	if got := s.output("status/udproute/calls_media.yaml"); *panics != 1 || got == "" || got != route {
		t.Errorf("%d panics, status of the route\n%s\nwant\n%s", *panics, got, route)
	}
	if s.output("status/gatewayclass/turn.yaml") == "" {
		t.Error("the status of the class is not written")
	}
	if len(l.summary.problems) != 1 || l.summary.problems[0].Severity != decode.Error {
		t.Errorf("problems %v", l.summary.problems)
	}
}
