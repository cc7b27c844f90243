package kube

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/reports"
)

// the deletion cost of a pod is written if it changes enough, and never to a pod of another Gateway.
func TestCostsAreWrittenSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		pod := func(name, gateway string) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "media", Name: name, UID: types.UID(
				name,
			), Labels: map[string]string{
				"app": "stunner", "stunner.l7mp.io/related-gateway-name": gateway}}}
		}
		patches := 0
		s, err := newScheme()
		if err != nil {
			t.Fatal(err)
		}
		c := fake.NewClientBuilder().WithScheme(s).WithObjects(
			pod("a", "edge"), pod("b", "edge"), pod("victim", "other"),
		).WithInterceptorFuncs(interceptor.Funcs{
			Patch: func(
				ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption,
			) error {
				patches++
				return c.Patch(ctx, o, p, opts...)
			},
		}).Build()
		from, ts := make(reporter), &tasks{}
		counted := reports.New(slog.New(slog.DiscardHandler))
		go counted.Follow(ctx, "this", from)
		run := func() (end func()) {
			leading, end := context.WithCancel(ctx)
			go ts.do("costs", func(t *task) {
				(&deletionCosts{reports: counted, client: c, log: slog.New(slog.DiscardHandler)}).run(leading, t)
			})
			return end
		}
		end := run()
		report := func(pod string, allocations int, draining bool) {
			from <- discovery.ReportChange{
				Report: &discovery.Report{ID: "media/edge", Pod: pod, Allocations: allocations, Draining: draining},
			}
		}
		stands := func() string {
			var words []any
			for _, name := range []string{"a", "b", "victim"} {
				p := &corev1.Pod{}
				if err := c.Get(ctx, types.NamespacedName{Namespace: "media", Name: name}, p); err != nil {
					t.Fatal(err)
				}
				words = append(words, name+"="+p.Annotations[corev1.PodDeletionCost])
			}
			return fmt.Sprintln(words...)
		}
		for _, step := range []struct {
			name    string
			a, b    int
			drains  bool
			want    string
			patches int
		}{
			{"idle", 0, 0, false, "a= b= victim=\n", 0},
			{"busy", 100, 7, false, "a=100 b=7 victim=\n", 2},
			{"a tenth more is nothing", 110, 7, false, "a=100 b=7 victim=\n", 0},
			{"a little more than that", 111, 7, false, "a=111 b=7 victim=\n", 1},
			{"one ends", 111, 7, true, "a=111 b=-1 victim=\n", 1},
			{"its calls do not count", 111, 3, true, "a=111 b=-1 victim=\n", 0},
		} {
			before := patches
			report("a", step.a, false)
			report("b", step.b, step.drains)
			report("victim", 50, false)
			report("unknown", 50, false)
			time.Sleep(costInterval)
			synctest.Wait()
			if got := stands(); got != step.want || patches-before != step.patches {
				t.Errorf(
					"%s: %s with %d patches, want %s with %d", step.name, got, patches-before, step.want, step.patches,
				)
			}
		}
		end()
		before := patches
		defer run()()
		time.Sleep(5 * costInterval)
		synctest.Wait()
		if patches != before {
			t.Errorf("the next leader writes %d costs again", patches-before)
		}
	})
}
