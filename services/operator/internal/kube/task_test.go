package kube

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// A task that hangs fails readiness within ten seconds and liveness after a minute; an idle task fails neither.
func TestFit_DetectsStuckTasks(t *testing.T) {
	key := types.NamespacedName{Namespace: "media", Name: "edge"}
	unit := translate.ObjectRef{Kind: translate.KindGateway, NamespacedName: key}
	for name, start := range map[string]func(ctx context.Context, l *loop){
		"translation": func(ctx context.Context, l *loop) {
			gateway := &gwapiv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
			l.readers.Record(unit, l.view.Put(gateway))
			l.published.configs[key] = config.Config{}
			l.inbox.put(objectChange{object: gateway, deleted: true})
			l.tasks.do("translation", func(t *task) { l.run(ctx, t) })
		},
		"writing": func(ctx context.Context, l *loop) {
			l.writer.set(unit, desired{ours: true})
			l.writer.lead(ctx)
		},
		"fetching of Secrets": func(ctx context.Context, l *loop) {
			l.secrets.observe(key, "1")
			l.secrets.ensure(key)
			l.tasks.do("fetching of Secrets", func(t *task) { l.secrets.run(ctx, t) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				l, hang := hangingLoop(t)
				defer l.secrets.queue.ShutDown()
				l.ready.Store(true)
				go start(ctx, l)
				synctest.Wait()
				if err := l.readyz(); err != nil {
					t.Errorf("not ready at once: %v", err)
				}
				time.Sleep(10 * time.Second)
				if err := l.readyz(); err == nil || !strings.Contains(err.Error(), name) {
					t.Errorf("ready after ten seconds: %v", err)
				}
				if err := l.livez(); err != nil {
					t.Errorf("not live after ten seconds: %v", err)
				}
				time.Sleep(time.Minute)
				if err := l.livez(); err == nil {
					t.Error("live after a minute")
				}
				close(hang)
				time.Sleep(time.Hour)
				if err := l.readyz(); err != nil {
					t.Errorf("not ready while idle: %v", err)
				}
				if running := l.tasks.String(); running != name {
					t.Errorf("%q runs", running)
				}
			})
		})
	}
}

// hangingLoop returns a loop whose log and API server block until hang is closed, even after the end of the context.
func hangingLoop(t *testing.T) (l *loop, hang chan struct{}) {
	t.Helper()
	s, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	hang = make(chan struct{})
	server := discovery.NewServer(discovery.ServerOptions{})
	l = newLoop(
		translate.DefaultOptions(), server, newMeters(), &tasks{}, slog.New(hangingLog{slog.DiscardHandler, hang}),
	)
	c := fake.NewClientBuilder().WithScheme(s).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(
			ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption,
		) error {
			<-hang
			return c.Get(ctx, key, o, opts...)
		},
	}).Build()
	l.writer = newWriter(c, c, s, l.inbox, l.meters, l.tasks, l.published.log)
	l.secrets = newSecretFetcher(c, l.inbox, l.intake, l.published.log)
	return l, hang
}

type hangingLog struct {
	slog.Handler
	hang chan struct{}
}

func (h hangingLog) Enabled(context.Context, slog.Level) bool { return true }

func (h hangingLog) Handle(context.Context, slog.Record) error {
	<-h.hang
	return nil
}

// a request that the API server does not answer times out and is retried, and the process stays ready.
func TestFit_DoesNotDependOnTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		calls := 0
		reader := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			Get: func(
				ctx context.Context, _ client.WithWatch, _ client.ObjectKey, _ client.Object, _ ...client.GetOption,
			) error {
				calls++
				<-ctx.Done()
				return ctx.Err()
			},
		}).Build()
		in := newInbox()
		l := &loop{tasks: &tasks{}}
		l.ready.Store(true)
		s := newSecretFetcher(reader, in, newIntake(0, slog.New(slog.DiscardHandler)), slog.New(slog.DiscardHandler))
		key := types.NamespacedName{Namespace: "media", Name: "credentials"}
		s.observe(key, "1")
		s.ensure(key)
		go l.tasks.do("fetching of Secrets", func(t *task) { s.run(ctx, t) })
		for range 60 {
			time.Sleep(time.Second)
			if err := l.readyz(); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if calls < 5 {
			t.Errorf("%d calls in a minute", calls)
		}
		if told := in.drain(); len(told) != 1 || !told[0].failed {
			t.Errorf("the loop receives %v", told)
		}
	})
}
