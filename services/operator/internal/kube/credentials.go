package kube

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// credentials keeps the Secret by which calls begin where nobody has brought one: the leader draws a shared secret by lot. Tools that render
// manifests cannot do so, because they would draw again each time.
//
// A Secret that is there is left alone, whoever has made it. One that is lost is written again as it was: with another shared secret calls
// would end. The annotation on a Secret that was drawn says that nobody else signs with it: Gateways have keys of their own that are derived from it.
type credentials struct {
	selfManaged
	// held is what the Secret said last, and generated whether the operator has drawn it.
	held      map[string][]byte
	generated string
}

// keepCredentials starts to keep the Secret with the credentials, if it is to be kept.
func (p *Provider) keepCredentials(ctx context.Context, group *errgroup.Group, o own) error {
	if p.Credentials == "" {
		return nil
	}
	c := newCredentials(types.NamespacedName{Namespace: p.Namespace, Name: p.Credentials}, nil, o.meters, p.Log)
	return p.keep(ctx, group, o, &c.selfManaged, c.step, &corev1.Secret{})
}

func newCredentials(name types.NamespacedName, c client.Client, m *meters, log *slog.Logger) *credentials {
	return &credentials{selfManaged: newSelfManaged(name, c, m, log)}
}

// step looks whether the Secret is there.
func (c *credentials) step(ctx context.Context) error {
	secret := &corev1.Secret{}
	err := c.client.Get(ctx, c.name, secret)
	switch {
	case err == nil:
		c.held, c.generated = secret.Data, secret.Annotations[resource.GeneratedSecret]
		return nil
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("read Secret: %w", err)
	case !c.leading.Load():
		return nil
	}
	c.log.Info("write credentials", "secret", c.name, "drawn", c.held == nil)
	if c.held == nil {
		c.held, c.generated = map[string][]byte{"type": []byte("ephemeral"), "secret": []byte(rand.Text()), translate.RootKey: []byte(rand.Text())}, "true"
	}
	drawn := &corev1.Secret{ObjectMeta: c.meta(), Data: c.held}
	if c.generated != "" {
		drawn.Annotations = map[string]string{resource.GeneratedSecret: c.generated}
	}
	return c.create(ctx, drawn)
}
