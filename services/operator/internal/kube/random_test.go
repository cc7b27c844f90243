package kube

import (
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/snapshot"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// An operator that starts over the objects of a previous operator writes nothing, for random valid and invalid inputs.
func TestSecondOperatorWritesNothing(t *testing.T) {
	const snapshots, seed = 50, 20
	s, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	for n := range uint64(snapshots) {
		random := rand.New(rand.NewPCG(seed, n))
		var objects []client.Object
		for _, o := range snapshot.Make(random, "media", translate.DefaultControllerName) {
			objects = append(objects, o)
		}
		statuses := slices.DeleteFunc(
			slices.Clone(objects), func(o client.Object) bool { _, secret := o.(*corev1.Secret); return secret },
		)
		c := fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).WithStatusSubresource(statuses...).Build()
		made += reconcile(t, c, s)
		if again := reconcile(t, c, s); again != 0 {
			t.Errorf("snapshot %d of seed %d: %d writes over what has been written", n, seed, again)
		}
	}
	if made < 10*snapshots {
		t.Errorf("%d writes for %d snapshots: there was little to do", made, snapshots)
	}
}

// reconcile runs a new loop and a new writer over all objects, and returns the number of writes.
func reconcile(t *testing.T, c client.Client, s *runtime.Scheme) (writes int) {
	t.Helper()
	m, log := newMeters(), slog.New(slog.DiscardHandler)
	l := newLoop(translate.DefaultOptions(), discovery.NewServer(discovery.ServerOptions{}), m, &tasks{}, log)
	l.secrets, l.writer = newSecretFetcher(c, l.inbox, l.intake, log), newWriter(c, c, s, l.inbox, m, l.tasks, log)
	l.published.previous = func(gateway types.NamespacedName) []string {
		return previousListeners(t.Context(), c, l.view.Gateway(gateway))
	}
	l.published.standby = func(gateway types.NamespacedName) *corev1.Secret { return cachedStandby(t.Context(), c, gateway) }
	l.writer.setStandbyKeys([][]byte{nil})
	var changes []objectChange
	for _, list := range []client.ObjectList{
		&gwapiv1.GatewayClassList{}, &gwapiv1.GatewayList{}, &stunnerv1.GatewayConfigList{}, &stunnerv1.DataplaneList{},
		&stunnerv1.StaticServiceList{},
		&stunnerv1.UDPRouteList{}, &corev1.ServiceList{}, &discoveryv1.EndpointSliceList{}, &corev1.SecretList{},
	} {
		if err := c.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		err := meta.EachListItem(list, func(o runtime.Object) error {
			if secret, ok := o.(*corev1.Secret); ok {
				l.secrets.observe(resource.KeyOf(secret), secret.ResourceVersion)
			}
			changes = append(changes, objectChange{object: o.(client.Object)})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	l.applyAll(changes, &task{})
	for u := range l.writer.desired {
		if err := l.writer.write(t.Context(), u); err != nil {
			t.Fatalf("%s: %v", u, err)
		}
	}
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "stunner_operator_writes_total" {
			for _, series := range f.GetMetric() {
				writes += int(series.GetCounter().GetValue())
			}
		}
	}
	return writes
}

// applyAll applies changes and translates until the queue is empty.
func (l *loop) applyAll(changes []objectChange, t *task) {
	l.apply(changes, t)
	for l.translateNext(t) {
	}
}
