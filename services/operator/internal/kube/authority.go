package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/trust"
)

// AuthorityName is the name of the Secret, in the operator's namespace, that holds the CA of config discovery, under the keys of package trust;
// and of the ConfigMap that shows its certificates, under the first of them, to who reads configs and is no dataplane.
const AuthorityName = "stunner-discovery-ca"

// authority keeps the CA of config discovery: the leader makes it and renews it, every replica follows it and has a certificate of its own from it.
//
// The Secret is the truth. While it is gone or cannot be read, what it said last stays in force, and the leader writes that back. What is made anew
// is used once the Secret says it, so that replicas never differ for longer than a watch takes.
type authority struct {
	selfManaged
	identity *trust.Identity
	inbox    *inbox

	// held is what the Secret said last, told what the loop knows of it. Both belong to one goroutine.
	held trust.Authority
	told string
	// spread is closed when the loop has been told for the first time.
	spread chan struct{}
}

func newAuthority(namespace string, c client.Client, id *trust.Identity, in *inbox, m *meters, log *slog.Logger) *authority {
	name := types.NamespacedName{Namespace: namespace, Name: AuthorityName}
	return &authority{selfManaged: newSelfManaged(name, c, m, log), identity: id, inbox: in, spread: make(chan struct{})}
}

// keepAuthority starts to keep the CA of config discovery; it returns nil where discovery shows no certificate.
func (p *Provider) keepAuthority(ctx context.Context, group *errgroup.Group, l *loop, id *trust.Identity, o own) (*authority, error) {
	if p.DiscoveryAuth == AuthOff {
		return nil, nil
	}
	a := newAuthority(p.Namespace, nil, id, l.inbox, o.meters, p.Log)
	return a, p.keep(ctx, group, o, &a.selfManaged, a.step, &corev1.Secret{}, &corev1.ConfigMap{})
}

// await returns when dataplanes can be told what to believe; until then lack says what is missing.
func (a *authority) await(ctx context.Context, notReadyReason *atomic.Pointer[string]) error {
	if a == nil {
		return nil
	}
	notReadyReason.Store(new(fmt.Sprintf("there is no Secret %s/%s with a CA for config discovery: the leader makes it, see its log", a.name.Namespace, a.name.Name)))
	select {
	case <-a.spread:
		notReadyReason.Store(nil)
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// step brings everything up to date.
func (a *authority) step(ctx context.Context) error {
	now, secret := a.now(), a.secret()
	if err := a.client.Get(ctx, client.ObjectKeyFromObject(secret), secret); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read Secret: %w", err)
	}
	stored, broken := trust.Parse(secret.Data)
	if broken == nil && stored.Usable(now) {
		a.held = stored
	}
	best := stored // or what could be read of it
	var errs []error
	if a.held.Usable(now) {
		best = a.held
		errs = append(errs, a.identity.Renew(a.held, now))
		a.tell(a.held.Bundle())
	}
	if a.leading.Load() {
		errs = append(errs, a.renew(ctx, best, secret, broken, now), a.show(ctx))
	}
	return errors.Join(errs...)
}

// tell tells the loop which certificates dataplanes should know.
func (a *authority) tell(bundle string) {
	if bundle == a.told {
		return
	}
	a.inbox.put(objectChange{object: &resource.Trust{Bundle: bundle}})
	if a.told == "" {
		close(a.spread)
	}
	a.told = bundle
}

// renew writes the Secret where it is not what it should be by now.
func (a *authority) renew(ctx context.Context, best trust.Authority, secret *corev1.Secret, broken error, now time.Time) error {
	next, err := best.Next(now)
	if err != nil || reflect.DeepEqual(next.Encode(), secret.Data) && a.owned(secret) {
		return err
	}
	a.log.Info("write CA of config discovery", "secret", client.ObjectKeyFromObject(secret), "found", len(secret.UID) > 0, "problem", broken)
	secret = a.secret()
	return a.write(ctx, secret, func() { secret.Data = next.Encode() })
}

// show writes the certificates to where the readers find them that are no dataplanes.
func (a *authority) show(ctx context.Context) error {
	if a.told == "" {
		return nil // the Secret does not say it yet
	}
	m := &corev1.ConfigMap{ObjectMeta: a.secret().ObjectMeta}
	return a.write(ctx, m, func() { m.Data = map[string]string{trust.CertificatesKey: a.told} })
}

func (a *authority) secret() *corev1.Secret { return &corev1.Secret{ObjectMeta: a.meta()} }
