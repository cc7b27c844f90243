package kube

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// A younger installation is held while an older one may run: while its Lease changes, for goneAfter after the last
// change, and while the Lease cannot be read. It is held again at once when the older one returns.
func TestWriterIsHeldWhileAnOlderInstallationRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now().Truncate(time.Second)
		older := resource.Installation{Namespace: "first", Since: begun.UTC()}
		own := resource.Installation{Namespace: "second", Since: begun.Add(time.Hour).UTC()}
		class := &gwapiv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "calls"}}
		class.Spec.ControllerName = translate.DefaultControllerName
		s, err := newScheme()
		if err != nil {
			t.Fatal(err)
		}
		var failure error
		read := 0
		c := fake.NewClientBuilder().WithScheme(s).WithObjects(class, leaseOf(older), leaseOf(own)).WithStatusSubresource(
			class,
		).WithInterceptorFuncs(interceptor.Funcs{Get: func(
			ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption,
		) error {
			if _, lease := o.(*coordinationv1.Lease); lease && key.Namespace == older.Namespace {
				if read++; failure != nil {
					return failure
				}
			}
			return c.Get(ctx, key, o, opts...)
		}}).Build()
		w := newWriter(c, c, s, newInbox(), newMeters(), &tasks{}, slog.New(slog.DiscardHandler))
		i := newInstallations(Settings{
			Namespace: own.Namespace, Options: translate.DefaultOptions(), Log: slog.New(slog.DiscardHandler),
		}, c, c, &loop{inbox: newInbox(), writer: w, meters: newMeters()})
		i.identify(t.Context())
		if i.own != own || !w.queue.held {
			t.Fatalf("the new leader is %v, want %v, and held %t", i.own, own, w.queue.held)
		}
		says := func(claims condition.Finding) {
			class.Status.Conditions = []metav1.Condition{{
				Type: condition.ControllerConflict, Status: metav1.ConditionTrue, Reason: claims.Reason,
				Message: claims.Message(), LastTransitionTime: metav1.Unix(1, 0),
			}}
			if err := c.Status().Update(t.Context(), class); err != nil {
				t.Fatal(err)
			}
		}
		for _, step := range []struct {
			name     string
			do       func()
			settling bool
			held     bool
			requests int
		}{
			{"no claim yet", func() {}, true, true, 0},
			{"the time to settle is over", func() {}, false, false, 0},
			{"its own claim", func() { says(condition.SoleInstallation(own.String())) }, true, false, 0},
			{"the older one returns", func() { says(condition.SoleInstallation(older.String())) }, true, true, 1},
			{"it does not renew its Lease", func() { time.Sleep(goneAfter) }, false, true, 1},
			{"it renews its Lease", func() { renew(t, c, older) }, false, true, 1},
			{"it stops", func() { time.Sleep(goneAfter + 1) }, false, false, 1},
			{"its Lease cannot be read", func() { failure = errors.New("forbidden") }, false, true, 1},
			{"and not for long", func() { time.Sleep(time.Hour) }, false, true, 1},
			{"it is gone again", func() { failure = nil; time.Sleep(time.Hour) }, false, true, 1},
			{"it is still gone", func() { time.Sleep(goneAfter + 1) }, false, false, 1},
			{"the class says so", func() { says(condition.SoleInstallation(own.String())) }, false, false, 0},
			{"it is installed again", func() { says(condition.SoleInstallation(older.String())) }, false, true, 1},
			{"it is uninstalled", func() {
				if err := c.Delete(t.Context(), leaseOf(older)); err != nil {
					t.Fatal(err)
				}
			}, false, false, 1},
		} {
			step.do()
			read = 0
			if err := i.step(t.Context(), step.settling); err != nil {
				t.Fatal(err)
			}
			if w.queue.held != step.held || read != step.requests {
				t.Errorf("%s: held %t, want %t; %d requests, want %d", step.name, w.queue.held, step.held, read, step.requests)
			}
		}
	})
}

func leaseOf(i resource.Installation) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: i.Namespace, Name: leaseName, CreationTimestamp: metav1.NewTime(i.Since),
	}}
}

func renew(t *testing.T, c client.Client, i resource.Installation) {
	lease := &coordinationv1.Lease{}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(leaseOf(i)), lease); err != nil {
		t.Fatal(err)
	}
	lease.Spec.RenewTime = new(metav1.NowMicro())
	if err := c.Update(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
}

// While the writer is held, only statuses of GatewayClasses are written. Everything else is written when it continues.
func TestHeldWriterWritesClassesOnly(t *testing.T) {
	e := newEdge(t)
	e.writer.setHeld(true)
	objects := e.objects(deployment())
	e.wants(desired{objects: objects, complete: true})
	for range 2 {
		if _, err := e.writer.step(t.Context(), e.unit); err != nil {
			t.Fatal(err)
		}
	}
	if has := e.has(); len(has) != 0 {
		t.Fatalf("a held writer wrote %v", has)
	}
	queue := newFairWrites()
	e.writer.queue.fairWrites = queue
	e.wants(desired{objects: objects, complete: true, notes: []string{"changed"}})
	if queue.Len() != 0 {
		t.Errorf("%d objects queued while the writer is held, want 0", queue.Len())
	}
	e.writer.setHeld(false)
	if queue.Len() != 1 {
		t.Errorf("%d objects queued after the writer continues, want 1", queue.Len())
	}
	e.writer.objects.installation = "stunner-system"
	if err := e.writer.write(t.Context(), e.unit); err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		live := o.DeepCopyObject().(client.Object)
		if err := e.client.Get(t.Context(), resource.KeyOf(o), live); err != nil {
			t.Fatal(err)
		}
		if got := live.GetAnnotations()[installationAnnotation]; got != "stunner-system" {
			t.Errorf("%s has the mark %q", describe(o), got)
		}
	}
}
