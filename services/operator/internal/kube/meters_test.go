package kube

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// Objects are counted, not conditions. Deleted and repaired objects are not counted.
func TestObjectsWithAProblemAreCounted(t *testing.T) {
	w := newWriter(nil, nil, nil, newInbox(), newMeters(), nil, slog.New(slog.DiscardHandler))
	unit := func(name string) translate.ObjectRef {
		return translate.ObjectRef{
			Kind: translate.KindStaticService, NamespacedName: types.NamespacedName{Namespace: "media", Name: name},
		}
	}
	saying := func(problems ...condition.Problem) desired {
		return desired{ours: true, status: stunnerv1.Status{}, problems: problems}
	}
	for _, c := range []struct {
		name    string
		unit    translate.ObjectRef
		desired desired
		want    int
	}{
		{"a good one", unit("a"), saying(), 0},
		{"a bad one", unit("b"), saying(condition.Problem{}, condition.Problem{}), 1},
		{"another", unit("c"), saying(condition.Problem{}, condition.Problem{}), 2},
		{"one is repaired", unit("b"), saying(), 1},
		{"one is gone", unit("c"), desired{}, 0},
	} {
		if w.set(c.unit, c.desired); w.countProblems() != c.want {
			t.Errorf("%s: %d, want %d", c.name, w.countProblems(), c.want)
		}
	}
}

// Each failed write is counted.
func TestWritesThatFailAreCounted(t *testing.T) {
	s, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(s).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return errors.New("no route to host")
		},
	}).Build()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w := newWriter(c, c, s, newInbox(), newMeters(), &tasks{}, slog.New(slog.DiscardHandler))
		w.set(translate.ObjectRef{Kind: translate.KindStaticService}, desired{ours: true, status: stunnerv1.Status{}})
		go w.lead(ctx)
		time.Sleep(time.Minute)
		if n := testutil.ToFloat64(w.meters.failures); n < 2 {
			t.Errorf("%v failures are counted of a write that is tried again and again", n)
		}
	})
}
