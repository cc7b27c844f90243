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

// credentials maintains the Secret with the shared secret from which TURN credentials are made. If the Secret does not
// exist, the leader creates it with a random value. Tools that render manifests cannot create it, because they would
// generate another value each time.
//
// An existing Secret is never changed. If the Secret is deleted, it is recreated with its previous content, because a
// new shared secret would end calls. The annotation GeneratedSecret marks a Secret that the operator generated. No user
// signs credentials with such a Secret, so the signing keys of Gateways may be derived from it.
type credentials struct {
	selfManaged
	// data is the content of the Secret when it was last read.
	data map[string][]byte
	// generated is the value that annotation GeneratedSecret had when the Secret was last read.
	generated string
}

func newCredentials(name types.NamespacedName, c client.Client, m *meters, log *slog.Logger) *credentials {
	return &credentials{selfManaged: newSelfManaged(name, c, m, log)}
}

func (c *credentials) manage(ctx context.Context, group *errgroup.Group, o selfManagedOptions) error {
	return c.start(ctx, group, o, c.step, &corev1.Secret{})
}

// step reads the Secret. On the leader, it creates the Secret if it does not exist.
func (c *credentials) step(ctx context.Context) error {
	secret := &corev1.Secret{}
	err := c.client.Get(ctx, c.name, secret)
	switch {
	case err == nil:
		c.data, c.generated = secret.Data, secret.Annotations[resource.GeneratedSecret]
		return nil
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("read Secret: %w", err)
	case !c.leading.Load():
		return nil
	}
	c.log.Info("write credentials", "secret", c.name, "new", c.data == nil)
	if c.data == nil {
		c.data, c.generated = map[string][]byte{
			"type": []byte("ephemeral"), "secret": []byte(rand.Text()), translate.RootKey: []byte(rand.Text()),
		}, "true"
	}
	secret = &corev1.Secret{ObjectMeta: c.meta(), Data: c.data}
	if c.generated != "" {
		secret.Annotations = map[string]string{resource.GeneratedSecret: c.generated}
	}
	return c.create(ctx, secret)
}
