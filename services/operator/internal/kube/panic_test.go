package kube

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// An object whose translation panics keeps its config, and other Gateways change as before. It is translated again when
// something that it depends on changes.
func TestPanicOfATranslationIsContained(t *testing.T) {
	var log bytes.Buffer
	l, ts := pacedLoop("bad", "good"), &tasks{}
	defer l.secrets.queue.ShutDown()
	l.log = slog.New(slog.NewTextHandler(&log, nil))
	l.since = func(translate.ObjectRef, time.Time) time.Duration { return 0 } // no translation is delayed
	faulty := false
	l.translateObject = func(ref translate.ObjectRef, v *resource.View, o translate.Options) translate.Outcome {
		out := ref.Translate(v, o)
		if faulty && ref.Kind == translate.KindGateway && ref.Name == "bad" {
			panic("a fault of the translation")
		}
		return out
	}
	apply := func(changes ...objectChange) {
		t.Helper()
		ts.do("translation", func(t *task) { l.applyAll(append(l.inbox.drain(), changes...), t) })
	}
	// port returns the port of the first listener in the published config.
	port := func(gateway string) int {
		c := l.published.current(types.NamespacedName{Namespace: "media", Name: gateway})
		if c == nil {
			t.Fatalf("Gateway %s has no config", gateway)
		}
		return c.Listeners[0].Port
	}
	moveTo := func(gateway string, to gwapiv1.PortNumber) objectChange {
		gw := l.view.Gateway(types.NamespacedName{Namespace: "media", Name: gateway}).DeepCopy()
		gw.Spec.Listeners[0].Port = to
		return objectChange{object: gw}
	}
	expect := func(when string, bad, good int) {
		t.Helper()
		if b, g := port("bad"), port("good"); b != bad || g != good {
			t.Errorf("%s: ports %d and %d, want %d and %d", when, b, g, bad, good)
		}
	}
	apply()
	expect("at first", 3478, 3478)
	faulty = true
	apply(moveTo("bad", 5000), moveTo("good", 5001))
	expect("after the panic", 3478, 5001)
	if text := log.String(); strings.Count(text, "translation failed") != 1 || !strings.Contains(text, "media/bad") ||
		!strings.Contains(text, "a fault of the translation") {
		t.Errorf("log %s", text)
	}
	apply(objectChange{object: revocationOf("media")})
	key := types.NamespacedName{Namespace: "media", Name: "bad"}
	stored := l.writer.desired[translate.ObjectRef{Kind: translate.KindGateway, NamespacedName: key}].standby
	if c := l.published.current(key); len(c.Auth.Revocations) != 1 || stored == nil || stored.Revision() != c.Revision() {
		t.Errorf("after a revocation %v is published, %v is stored", c.Auth.Revocations, stored)
	}
	faulty = false
	apply(moved("bad", 1))
	expect("after a change of endpoints", 5000, 5001)
}

// revocationOf returns a Revocation of a user at all Gateways of a namespace.
func revocationOf(namespace string) *stunnerv1.Revocation {
	return &stunnerv1.Revocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "ada", CreationTimestamp: metav1.Now()},
		Spec:       stunnerv1.RevocationSpec{User: "ada"},
	}
}

// After a restart, a Gateway whose translation panics has the config of its standby Secret, whether the translation
// panics at once or only with this config.
func TestPanicAfterARestart(t *testing.T) {
	good := startWith(t, withUID(collision())...).published.current(gatewayKey)
	for name, always := range map[string]bool{"at once": true, "with the restored config": false} {
		l := startWith(t)
		l.published.log = slog.New(slog.DiscardHandler)
		l.since = func(translate.ObjectRef, time.Time) time.Duration { return 0 } // no translation is delayed
		l.standbyOf(t, manifest.Standby(gatewayKey, "edge", *good, testKey))
		panics := 0
		l.translateObject = func(ref translate.ObjectRef, v *resource.View, o translate.Options) translate.Outcome {
			if ref.Kind == translate.KindGateway && (always || o.Published != nil) {
				panics++
				panic("a fault of the translation")
			}
			return ref.Translate(v, o)
		}
		objects := withUID(collision())
		if !always { // the translation needs the published config
			objects = withoutKind[*stunnerv1.GatewayConfig](objects)
		}
		var changes []objectChange
		for _, o := range objects {
			changes = append(changes, objectChange{object: o})
		}
		l.applyAll(changes, &task{})
		l.fetchSecrets(t)
		switch got := l.published.current(gatewayKey); {
		case panics == 0:
			t.Errorf("%s: TEST NOT VALID: no panic", name)
		case got == nil || got.Revision() != good.Revision():
			t.Errorf("%s: config %+v, want that of the standby Secret", name, got)
		}
		l.applyAll([]objectChange{{object: revocationOf(gatewayKey.Namespace)}}, &task{})
		if got := l.published.current(gatewayKey); got == nil || len(got.Auth.Revocations) != 1 {
			t.Errorf("%s: after a revocation the config is %+v", name, got)
		}
	}
}

// A panic of the translation that replaces only endpoints is contained. The whole translation takes its place.
func TestPanicOfATranslationOfEndpointsIsContained(t *testing.T) {
	var log bytes.Buffer
	l, ts := pacedLoop("edge"), &tasks{}
	defer l.secrets.queue.ShutDown()
	l.log = slog.New(slog.NewTextHandler(&log, nil))
	l.since = func(translate.ObjectRef, time.Time) time.Duration { return 0 } // no translation is delayed
	whole := 0
	fault := types.NamespacedName{Namespace: "media", Name: "fault"}
	l.translateObject = func(ref translate.ObjectRef, v *resource.View, o translate.Options) translate.Outcome {
		if ref.Kind == translate.KindGateway {
			delete(l.ledger.at["media"], fault)
			whole++
		}
		return ref.Translate(v, o)
	}
	for turn, faulty := range []bool{false, false, true, false} {
		whole = 0
		if faulty {
			l.ledger.at["media"][fault] = nil // Room.Elsewhere panics
		}
		changes := l.inbox.drain()
		if turn > 0 {
			changes = append(changes, moved("edge", turn))
		}
		ts.do("translation", func(t *task) { l.applyAll(changes, t) })
		if (whole > 0) != (turn == 0 || faulty) {
			t.Errorf("TEST NOT VALID: turn %d: %d whole translations", turn, whole)
		}
		c := l.published.current(types.NamespacedName{Namespace: "media", Name: "edge"})
		want := fmt.Sprintf("10.0.0.%d:<7000-7000>", turn)
		if c == nil || turn > 0 && !slices.Contains(c.Clusters[0].Endpoints, want) {
			t.Fatalf("turn %d: config %+v, want endpoint %s", turn, c, want)
		}
		if failed := strings.Contains(log.String(), "translation failed"); failed != (turn >= 2) {
			t.Errorf("turn %d: log %s", turn, log.String())
		}
	}
}
