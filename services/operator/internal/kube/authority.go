package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/trust"
)

// AuthorityName is the name of a Secret and of a ConfigMap in the operator's namespace. The Secret holds the CA of
// config discovery, see package trust for its keys. The ConfigMap publishes the CA certificates to clients other than
// dataplanes.
const AuthorityName = "stunner-discovery-ca"

// authority maintains the CA of config discovery. The leader creates and renews the CA. Every replica watches the CA's
// Secret and issues its own server certificate from the CA.
//
// The Secret is authoritative. If it is deleted or becomes unreadable, the last CA that was read from it stays in use,
// and the leader writes that CA to the Secret again. A new CA is used only after it was read back from the Secret, so
// that all replicas switch to it at about the same time.
type authority struct {
	selfManaged
	identity *trust.Identity
	inbox    *inbox

	// changed is called with every valid CA that was read from the Secret, also if it has not changed.
	changed func(trust.Authority)

	// stored is the last valid CA that was read from the Secret. Only the goroutine that calls step uses it.
	stored trust.Authority
	// sent is the bundle of CA certificates that was last sent to the translation loop. Only the goroutine that calls
	// step uses it.
	sent string
	// firstSent is closed when the first bundle was sent.
	firstSent chan struct{}
}

func newAuthority(
	namespace string, c client.Client, id *trust.Identity, in *inbox, m *meters, log *slog.Logger,
) *authority {
	name := types.NamespacedName{Namespace: namespace, Name: AuthorityName}
	return &authority{
		selfManaged: newSelfManaged(name, c, m, log), identity: id, inbox: in, firstSent: make(chan struct{}),
		changed: func(trust.Authority) {},
	}
}

func (a *authority) manage(ctx context.Context, group *errgroup.Group, o selfManagedOptions) error {
	return a.start(ctx, group, o, a.step, &corev1.Secret{}, &corev1.ConfigMap{})
}

// await returns when the CA certificates that generated pods need are known. Until then, notReadyReason names the
// missing Secret. For a nil authority, await returns at once.
func (a *authority) await(ctx context.Context, notReadyReason *atomic.Pointer[string]) error {
	if a == nil {
		return nil
	}
	const format = "there is no Secret %s/%s with the CA of config discovery: the leader creates it, see its log"
	notReadyReason.Store(new(fmt.Sprintf(format, a.name.Namespace, a.name.Name)))
	select {
	case <-a.firstSent:
		notReadyReason.Store(nil)
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// step reads the Secret and renews the certificate of this replica. On the leader, it also writes the Secret and the
// ConfigMap if they are outdated.
func (a *authority) step(ctx context.Context) error {
	now, secret := a.now(), a.emptySecret()
	if err := a.client.Get(ctx, client.ObjectKeyFromObject(secret), secret); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read Secret: %w", err)
	}
	parsed, invalid := trust.Parse(secret.Data)
	if invalid == nil && parsed.Usable(now) {
		a.stored = parsed
	}
	best := parsed // the part that could be read, if the Secret is invalid
	var errs []error
	if a.stored.Usable(now) {
		best = a.stored
		errs = append(errs, a.identity.Renew(a.stored, now))
		a.changed(a.stored) // before the translation starts, which needs the keys of standby Secrets
		a.send(a.stored.Bundle())
	}
	if a.leading.Load() {
		next, err := best.Next(now)
		if err == nil && !(reflect.DeepEqual(next.Encode(), secret.Data) && a.hasOwner(secret)) {
			err = a.writeSecret(ctx, next, secret, invalid)
		}
		errs = append(errs, err, a.writeConfigMap(ctx))
	}
	return errors.Join(errs...)
}

// send passes the CA certificates that dataplanes must trust to the translation loop, if the certificates have changed.
func (a *authority) send(bundle string) {
	if bundle == a.sent {
		return
	}
	a.inbox.put(objectChange{object: &resource.Trust{Bundle: bundle}})
	if a.sent == "" {
		close(a.firstSent)
	}
	a.sent = bundle
}

func (a *authority) writeSecret(ctx context.Context, next trust.Authority, found *corev1.Secret, invalid error) error {
	a.log.Info("write CA of config discovery", "secret", client.ObjectKeyFromObject(found), "found", len(found.UID) > 0,
		"problem", invalid)
	secret := a.emptySecret()
	return a.createOrUpdate(ctx, secret, func() { secret.Data = next.Encode() })
}

// writeConfigMap publishes the CA certificates in a ConfigMap, but not before the Secret holds the CA.
func (a *authority) writeConfigMap(ctx context.Context) error {
	if a.sent == "" {
		return nil
	}
	m := &corev1.ConfigMap{ObjectMeta: a.meta()}
	return a.createOrUpdate(ctx, m, func() { m.Data = map[string]string{trust.CertificatesKey: a.sent} })
}

func (a *authority) emptySecret() *corev1.Secret { return &corev1.Secret{ObjectMeta: a.meta()} }
