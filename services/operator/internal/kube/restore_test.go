package kube

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

var testKey = []byte("key of standby Secrets")

// standbySecret returns the standby Secret of the Gateway of withUID, as the API server has it.
func standbySecret(t *testing.T, c config.Config) *corev1.Secret {
	t.Helper()
	s := manifest.Standby(gatewayKey, "edge", c, testKey)
	s.ResourceVersion = "7"
	return s
}

// standbyOf makes a loop find a standby Secret in its cache and at the API server. It returns the number of reads of
// the Secret at the API server.
func (l *loop) standbyOf(t *testing.T, s *corev1.Secret) (reads *int) {
	t.Helper()
	return l.standbyAt(t, s, s)
}

func (l *loop) standbyAt(t *testing.T, cached, live *corev1.Secret) (reads *int) {
	t.Helper()
	reads = new(int)
	l.secrets.reader = fake.NewClientBuilder().WithObjects(live).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			*reads++
			return c.Get(ctx, key, o, opts...)
		},
	}).Build()
	l.secrets.observe(resource.KeyOf(live), live.ResourceVersion)
	inCache := asCached(cached).(*corev1.Secret)
	l.published.standby = func(types.NamespacedName) *corev1.Secret { return inCache }
	l.writer.setStandbyKeys([][]byte{[]byte("key of the CA that signs now"), testKey})
	return reads
}

// fetchSecrets fetches the queued Secrets, and translates the objects that wait for them.
func (l *loop) fetchSecrets(t *testing.T) {
	t.Helper()
	for l.secrets.queue.Len() > 0 {
		key, _ := l.secrets.queue.Get()
		l.secrets.fetch(t.Context(), key)
		l.secrets.queue.Done(key)
		l.applyAll(l.inbox.drain(), &task{})
	}
}

// afterAMistake starts a loop over the objects of a Gateway whose GatewayConfig is missing.
func afterAMistake(t *testing.T, log *bytes.Buffer, prepare func(*loop)) *loop {
	t.Helper()
	l := startWith(t)
	l.published.log = slog.New(slog.NewTextHandler(log, nil))
	prepare(l)
	var changes []objectChange
	for _, o := range withoutKind[*stunnerv1.GatewayConfig](withUID(collision())) {
		changes = append(changes, objectChange{object: o})
	}
	l.applyAll(changes, &task{})
	l.fetchSecrets(t)
	return l
}

// A config is restored only from a Secret that the operator wrote for this Gateway. Others are reported once, and a
// Secret that does not look authentic in the cache is not even read.
func TestOnlyAuthenticStandbySecretsAreRestored(t *testing.T) {
	good := startWith(t, withUID(collision())...).published.current(gatewayKey)
	other := *good
	other.Admin.Name = "other/gateway"
	forged := good.Clone()
	forged.Auth.Credentials[config.KeyPassword] = "chosen by a tenant"
	invalid := good.Clone()
	invalid.Listeners[0].Port = -1
	for name, row := range map[string]struct {
		change func(*corev1.Secret) *corev1.Secret
		says   string // the log, or nothing if the config is restored
		reads  int
	}{
		"unchanged": {func(s *corev1.Secret) *corev1.Secret { return s }, "", 1},
		"written with a key of an older CA": {func(*corev1.Secret) *corev1.Secret {
			return manifest.Standby(gatewayKey, "edge", *good, testKey)
		}, "", 1},
		"another config": {func(s *corev1.Secret) *corev1.Secret {
			s.Data[manifest.StandbyDataKey] = forged.Pack()
			return s
		}, "does not match the content", 0},
		"signed with another key": {func(*corev1.Secret) *corev1.Secret {
			return manifest.Standby(gatewayKey, "edge", forged, []byte("a guess"))
		}, "does not match the content", 0},
		"signed without a key": {func(*corev1.Secret) *corev1.Secret {
			return manifest.Standby(gatewayKey, "edge", forged, nil)
		}, "does not match the content", 0},
		"of an older release": {func(s *corev1.Secret) *corev1.Secret {
			delete(s.Annotations, manifest.StandbyMACAnnotation)
			return s
		}, "does not match the content", 0},
		"of a Gateway of the same name from before": {func(*corev1.Secret) *corev1.Secret {
			return manifest.Standby(gatewayKey, "former", *good, testKey)
		}, "the Gateway is not in metadata.ownerReferences", 0},
		"of a Gateway of the same name from before, with another owner": {func(*corev1.Secret) *corev1.Secret {
			s := manifest.Standby(gatewayKey, "former", *good, testKey)
			s.OwnerReferences[0].UID = "edge"
			return s
		}, "does not match the content", 0},
		"of another Gateway": {func(s *corev1.Secret) *corev1.Secret {
			o := manifest.Standby(types.NamespacedName{Namespace: gatewayKey.Namespace, Name: "other"}, "edge", *good, testKey)
			s.Annotations = o.Annotations
			return s
		}, "does not match the content", 0},
		"with the config of another Gateway": {func(*corev1.Secret) *corev1.Secret {
			return manifest.Standby(gatewayKey, "edge", other, testKey)
		}, `is the config of \"other/gateway\"`, 1},
		"with a config that dataplanes reject": {func(*corev1.Secret) *corev1.Secret {
			return manifest.Standby(gatewayKey, "edge", invalid, testKey)
		}, "read stunnerd.conf.gz", 1},
		"of another type": {func(s *corev1.Secret) *corev1.Secret {
			s.Type = corev1.SecretTypeOpaque
			return s
		}, `type is \"Opaque\"`, 0},
		"without content": {func(s *corev1.Secret) *corev1.Secret {
			s.Data = nil
			return s
		}, "does not match the content", 0},
	} {
		var log bytes.Buffer
		var reads *int
		secret := row.change(standbySecret(t, *good))
		secret.ResourceVersion = "7"
		l := afterAMistake(t, &log, func(l *loop) { reads = l.standbyOf(t, secret) })
		l.applyAll([]objectChange{{object: edited(func(g *gwapiv1.Gateway) { g.Generation++ })(withUID(collision()))[3]}}, &task{})
		l.fetchSecrets(t)
		now := l.published.current(gatewayKey)
		if restored := row.says == ""; (now != nil) != restored || restored && now.Revision() != good.Revision() {
			t.Errorf("%s: published is %+v, want the config from before %t", name, now, restored)
		}
		if *reads != row.reads {
			t.Errorf("%s: the Secret was read %d times, want %d", name, *reads, row.reads)
		}
		warnings := strings.Count(log.String(), "level=WARN")
		if !strings.Contains(log.String(), row.says) || (warnings != 1) != (row.says == "") || warnings > 1 {
			t.Errorf("%s: the log has %d warnings, want %q once:\n%s", name, warnings, row.says, &log)
		}
		if l.view.Secret(manifest.StandbyKey(gatewayKey)) != nil {
			t.Errorf("%s: the content of the Secret stays in memory", name)
		}
	}
}

// The content is checked too: the Secret may have changed since it entered the cache.
func TestStandbySecretThatChangesWhileItIsRead(t *testing.T) {
	good := startWith(t, withUID(collision())...).published.current(gatewayKey)
	forged := good.Clone()
	forged.Auth.Credentials[config.KeyPassword] = "chosen by a tenant"
	live := standbySecret(t, *good)
	live.Data = map[string][]byte{manifest.StandbyDataKey: forged.Pack()}
	var log bytes.Buffer
	l := afterAMistake(t, &log, func(l *loop) { l.standbyAt(t, standbySecret(t, *good), live) })
	if now := l.published.current(gatewayKey); now != nil {
		t.Errorf("published is %+v", now)
	}
	if !strings.Contains(log.String(), "does not match the content") {
		t.Errorf("the log is %s", &log)
	}
}

// Without a mistake the standby Secret is not read: a start over many Gateways needs no request for each.
func TestServedGatewayNeedsNoStandbySecret(t *testing.T) {
	objects := withUID(collision())
	good := startWith(t, objects...).published.current(gatewayKey)
	l := startWith(t)
	reads := l.standbyOf(t, standbySecret(t, *good))
	var changes []objectChange
	for _, o := range objects {
		changes = append(changes, objectChange{object: o})
	}
	l.applyAll(changes, &task{})
	l.fetchSecrets(t)
	if l.published.current(gatewayKey) == nil || *reads != 0 {
		t.Errorf("published %t after %d reads", l.published.current(gatewayKey) != nil, *reads)
	}
}

// A listener that was changed to something invalid while the operator was away is served as before, as by an operator
// that has seen the change.
func TestHeldListenerSurvivesARestart(t *testing.T) {
	objects := func(protocol gwapiv1.ProtocolType) []resource.Object {
		return edited(func(g *gwapiv1.Gateway) {
			g.Spec.Listeners = append(slices.Clone(g.Spec.Listeners[:1]), gwapiv1.Listener{Name: "more", Port: 3479, Protocol: protocol})
		})(withUID(collision()))
	}
	l := startWith(t, objects("TURN-TCP")...)
	good := l.published.current(gatewayKey)
	running := startWith(t, objects("TURN-TCP")...)
	var changes []objectChange
	for _, o := range objects("TURN-TPC") {
		changes = append(changes, objectChange{object: o})
	}
	running.applyAll(changes, &task{})
	l = startWith(t)
	l.standbyOf(t, standbySecret(t, *good))
	l.applyAll(changes, &task{})
	l.fetchSecrets(t)
	want, now := running.published.current(gatewayKey), l.published.current(gatewayKey)
	if now == nil || now.Revision() != want.Revision() || len(now.Listeners) != 2 {
		t.Errorf("published is %+v, want %+v", now, want)
	}
	for name, l := range map[string]*loop{"running": running, "restarted": l} {
		if got := l.view.Gateway(gatewayKey); got == nil || len(l.published.missing) > 0 {
			t.Errorf("%s: missing %v", name, l.published.missing)
		}
	}
}

// A revocation that arrives while a mistake keeps the published config in force is also in the standby Secret, from
// which the next operator and new pods take the config.
func TestRevocationAtAHeldGatewayIsStored(t *testing.T) {
	objects := withUID(collision())
	good := startWith(t, objects...).published.current(gatewayKey)
	running := startWith(t, objects...)
	running.applyAll([]objectChange{{object: objects[1], deleted: true}}, &task{})
	restarted := afterAMistake(t, &bytes.Buffer{}, func(l *loop) { l.standbyOf(t, standbySecret(t, *good)) })
	for name, l := range map[string]*loop{"running": running, "restarted": restarted} {
		l.applyAll([]objectChange{{object: revocationOf(gatewayKey.Namespace)}}, &task{})
		published := l.published.current(gatewayKey)
		stored := l.writer.desired[translate.ObjectRef{Kind: translate.KindGateway, NamespacedName: gatewayKey}].standby
		if len(published.Auth.Revocations) != 1 || stored == nil || stored.Revision() != published.Revision() {
			t.Errorf("%s: %v is published, %v is stored", name, published, stored)
		}
	}
}

// The Secret is awaited like any Secret that a translation needs: until it arrives, nothing is published or written.
func TestRestoreAwaitsTheSecret(t *testing.T) {
	good := startWith(t, withUID(collision())...).published.current(gatewayKey)
	l := startWith(t)
	l.standbyOf(t, standbySecret(t, *good))
	var changes []objectChange
	for _, o := range withoutKind[*stunnerv1.GatewayConfig](withUID(collision())) {
		changes = append(changes, objectChange{object: o})
	}
	l.applyAll(changes, &task{})
	if l.initialPublished() {
		t.Error("the operator is ready before the standby Secret is read")
	}
	l.fetchSecrets(t)
	if !l.initialPublished() || l.published.current(gatewayKey) == nil {
		t.Errorf("ready %t, published %v", l.initialPublished(), l.published.current(gatewayKey))
	}
	// The deletion of the Secret and of the Gateway leave nothing behind.
	l.observeSecretVersion(manifest.StandbyKey(gatewayKey), "", true)
	l.applyAll([]objectChange{{object: &gwapiv1.Gateway{ObjectMeta: metav1.ObjectMeta{
		Namespace: gatewayKey.Namespace, Name: gatewayKey.Name,
	}}, deleted: true}}, &task{})
	if l.published.current(gatewayKey) != nil || len(l.unusable) > 0 || len(l.secrets.fetched) > 0 {
		t.Errorf("published %v, unusable %v, fetched %v", l.published.configs, l.unusable, l.secrets.fetched)
	}
}
