package kube

import (
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// A Secret that was not found but is listed by the watch is fetched again: it was recreated, or the watch will deliver
// its deletion.
func TestSecretIsFetchedAgainIfNotFoundButListed(t *testing.T) {
	key := types.NamespacedName{Namespace: "media", Name: "credentials"}
	missing := objectChange{
		object: &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}, deleted: true,
	}
	l := newLoop(
		translate.DefaultOptions(), discovery.NewServer(discovery.ServerOptions{}), newMeters(), &tasks{},
		slog.New(slog.DiscardHandler),
	)
	l.secrets = newSecretFetcher(nil, l.inbox, l.intake, slog.New(slog.DiscardHandler))
	defer l.secrets.queue.ShutDown()
	l.observeSecretVersion(key, "1", false)
	if l.secrets.ensure(key) {
		t.Fatal("the Secret counts as fetched")
	}
	l.observeSecretVersion(key, "1", true)
	l.observeSecretVersion(key, "2", false)
	l.observe(missing, map[translate.ObjectRef]struct{}{})
	if l.secrets.ensure(key) {
		t.Error("an existing Secret counts as missing")
	}
	l.observeSecretVersion(key, "2", true)
	l.observe(missing, map[translate.ObjectRef]struct{}{})
	if !l.secrets.ensure(key) {
		t.Error("a deleted Secret is waited for")
	}
}
