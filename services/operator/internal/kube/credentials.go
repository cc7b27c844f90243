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

// credentials maintains the Secret with the shared secret of TURN credentials. If it does not exist the leader
// generates a random one; tools that render manifests cannot, because they would generate another one each time.
//
// An existing Secret is not changed. A deleted one is recreated with its previous content, because a new shared secret
// would end calls. The annotation GeneratedSecret on a generated Secret means that no other party signs with it, so
// Gateways may derive their own keys from it.
type credentials struct {
	selfManaged
	// data and generated are the last content of the Secret, and the value of its annotation.
	data      map[string][]byte
	generated string
}

func newCredentials(name types.NamespacedName, c client.Client, m *meters, log *slog.Logger) *credentials {
	return &credentials{selfManaged: newSelfManaged(name, c, m, log)}
}

func (c *credentials) manage(ctx context.Context, group *errgroup.Group, o selfManagedOptions) error {
	return c.start(ctx, group, o, c.step, &corev1.Secret{})
}

// step reads the Secret, and on the leader creates it if it does not exist.
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
