package kube

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A write that the cache does not show yet is not repeated. It is repeated if it failed, if its object was deleted, or
// after maxCacheLag.
func TestPendingWritesAreNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t)
		applied := 0
		away := error(nil)
		e.refuse = func(runtime.ApplyConfiguration) error {
			if away == nil {
				applied++
			}
			return away
		}
		e.writer = newWriter(
			blind{e.client}, e.client, e.client.Scheme(), newInbox(), newMeters(), &tasks{},
			slog.New(slog.DiscardHandler),
		)
		objects := e.objects(deployment())
		for _, step := range []struct {
			name  string
			first func()
			want  int
		}{
			{"the API server is away", func() { away = errors.New("connection refused") }, 0},
			{"it is back", func() { away = nil }, len(objects)},
			{"nothing shows", func() {}, 0},
			{"one shows, and is gone", func() {
				ownedHandler{e.writer}.OnAdd(objects[0], false)
				ownedHandler{
					e.writer,
				}.OnDelete(objects[0])
			}, 1},
			{"another is wanted", func() { objects[1].SetAnnotations(map[string]string{"another": "value"}) }, 1},
			{"nothing shows for long", func() { time.Sleep(maxCacheLag) }, len(objects)},
		} {
			step.first()
			applied = 0
			e.wants(desired{objects: objects, complete: true})
			if err := e.writer.write(t.Context(), e.unit); (err != nil) != (away != nil) {
				t.Errorf("%s: %v", step.name, err)
			}
			if applied != step.want {
				t.Errorf("%s: %d writes, want %d", step.name, applied, step.want)
			}
		}
	})
}

// blind is a cache that never shows a generated object.
type blind struct{ client.Client }

func (c blind) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	for _, like := range append(generatedKinds(), &corev1.Service{}) {
		if reflect.TypeOf(like) == reflect.TypeOf(o) {
			return apierrors.NewNotFound(corev1.Resource("any"), key.Name)
		}
	}
	return c.Client.Get(ctx, key, o, opts...)
}
