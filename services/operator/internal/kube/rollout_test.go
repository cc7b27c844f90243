package kube

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/reports"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// reporter is a replica with reports of dataplanes.
type reporter chan discovery.ReportChange

func (r reporter) FollowReports(ctx context.Context, each func(discovery.ReportChange) error) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case news := <-r:
			if err := each(news); err != nil {
				return errors.Join(errors.New("report"), err)
			}
		}
	}
}

var gatewayKey = types.NamespacedName{Namespace: "media", Name: "edge"}

// A state is sent only if it lasts: rollouts in progress, pods that connect or disconnect, and numbers of allocations
// send nothing.
func TestTheRolloutStateIsSentRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		counted, in, from, ts := reports.New(slog.New(slog.DiscardHandler)), newInbox(), make(reporter), &tasks{}
		f := newRollouts(counted, in)
		go counted.Follow(ctx, "this", from)
		go ts.do("reports", func(t *task) { f.run(ctx, t) })
		one, two := config.Config{Admin: config.Admin{Name: "media/edge"}}, config.Config{
			Admin: config.Admin{Name: "media/edge", LogLevel: "all:DEBUG"},
		}
		says := func(pod string, c config.Config, problem string, more ...func(*discovery.Report)) func() {
			r := discovery.Report{
				ID: "media/edge", Pod: pod, Revision: c.Revision(), Accepted: problem == "", Error: problem,
			}
			for _, m := range more {
				m(&r)
			}
			return func() { from <- discovery.ReportChange{Report: &r} }
		}
		goes := func(pod string) func() {
			return func() { from <- discovery.ReportChange{Removed: &discovery.ReportKey{ID: "media/edge", Pod: pod}} }
		}
		publish := func(c config.Config) func() { return func() { f.publish(gatewayKey, c.Revision()) } }
		drain := func(r *discovery.Report) { r.Draining = true }
		busy := func(r *discovery.Report) { r.Allocations = 100 }
		inUserSpace := func(r *discovery.Report) { r.Offload = "no CAP_BPF" }
		none, fine := (*resource.RolloutState)(nil), &resource.RolloutState{}
		for _, step := range []struct {
			name string
			do   []func()
			wait time.Duration
			want *resource.RolloutState
		}{
			{"no report", []func(){publish(one)}, time.Hour, none},
			{"a config being rolled out", []func(){says("a", config.Config{}, "")}, 9 * time.Second, none},
			{"it arrives", []func(){says("a", one, "")}, time.Hour, none},
			{"calls", []func(){says("a", one, "", busy), says("b", one, "")}, time.Hour, none},
			{"another config", []func(){publish(two)}, 0, none},
			{"some have it", []func(){says("b", two, "")}, time.Hour, none},
			{"one turns it down", []func(){says("a", one, "port 3478 is taken")}, time.Hour, none},
			{"all turn it down", []func(){says("b", one, "b\x1b[31m too\n")}, 0, &resource.RolloutState{
				Pod: "a", Problem: "port 3478 is taken",
			}},
			{"the same again", []func(){says(
				"a", one, "port 3478 is taken",
			), says("0", one, "another")}, time.Hour, none},
			{"the rejecting pod disconnects", []func(){goes("0"), goes("a")}, 0, &resource.RolloutState{
				Pod: "b", Problem: "b [31m too ",
			}},
			{"a repaired config is being rolled out", []func(){publish(one)}, time.Hour, none},
			{"it arrives there", []func(){says("b", one, "")}, 0, fine},
			{"one drains", []func(){says("a", one, "", drain)}, 0, &resource.RolloutState{Draining: 1}},
			{"it disconnects", []func(){goes("a")}, 0, fine},
			{"the kernel of one does not forward", []func(){says("a", one, "", inUserSpace)}, 0, &resource.RolloutState{
				OffloadPod: "a", OffloadProblem: "no CAP_BPF",
			}},
			{"another one", []func(){says("0", one, "", inUserSpace)}, time.Hour, none},
			{"both leave", []func(){goes("0"), goes("a")}, 0, fine},
			{"lost on the way", []func(){publish(two), says("b", one, "")}, 12 * time.Second, &resource.RolloutState{
				Behind: 1,
			}},
			{"found again", []func(){says("b", two, "")}, 0, fine},
			{"words without an end", []func(){says("b", one, strings.Repeat("x", 9999))}, 0, &resource.RolloutState{
				Pod: "b", Problem: strings.Repeat("x", maxProblemLength),
			}},
			{"no words", []func(){says("b", one, ""), func() {
				from <- discovery.ReportChange{Report: &discovery.Report{ID: "media/edge", Pod: "b"}}
			}}, 0, &resource.RolloutState{Pod: "b", Problem: "(nothing)"}},
			{"all disconnect", []func(){goes("b")}, 0, fine},
			{"an unknown config", []func(){func() {
				from <- discovery.ReportChange{
					Report: &discovery.Report{ID: "media/other", Pod: "x"},
				}
			}}, time.Hour, none},
		} {
			for _, do := range step.do {
				do()
				synctest.Wait()
			}
			time.Sleep(step.wait)
			synctest.Wait()
			told := in.drain()
			switch {
			case step.want == nil && len(told) > 0:
				t.Errorf("%s: the loop receives %+v", step.name, told[0].object.(*resource.Rollout).RolloutState)
			case step.want != nil && len(told) != 1:
				t.Errorf("%s: the loop receives %d things", step.name, len(told))
			case step.want != nil && told[0].object.(*resource.Rollout).RolloutState != *step.want:
				t.Errorf("%s: %+v", step.name, told[0].object.(*resource.Rollout).RolloutState)
			}
			if step.want != nil {
				time.Sleep(minReportInterval) // the next state is sent at once
			}
		}
		says("b", one, "no")()
		synctest.Wait()
		f.withdraw(gatewayKey)
		if told := in.drain(); len(told) != 1 || !told[0].deleted {
			t.Errorf("withdrawn: %v", told)
		}
	})
}

// A pod whose reports alternate sends a state, and so writes the status, at most every ten seconds. The first change is
// sent at once, and the last state is sent eventually.
func TestAlternatingReportsAreSentEveryTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		counted, in, from, ts := reports.New(slog.New(slog.DiscardHandler)), newInbox(), make(reporter), &tasks{}
		f, wanted := newRollouts(counted, in), published().Revision()
		go counted.Follow(ctx, "this", from)
		go ts.do("reports", func(t *task) { f.run(ctx, t) })
		f.publish(gatewayKey, wanted)
		told, last := 0, resource.RolloutState{}
		listen := func() {
			synctest.Wait()
			for _, c := range in.drain() {
				told++
				last = c.object.(*resource.Rollout).RolloutState
			}
		}
		flip := func(i int) {
			r := discovery.Report{
				ID: gatewayKey.String(), Pod: "a", Revision: wanted, Accepted: i%2 == 0, Draining: i%3 == 0,
				Error: strings.Repeat("no", i%2),
			}
			from <- discovery.ReportChange{Report: &r}
		}
		flip(1)
		if listen(); told != 1 || last.Problem != "no" {
			t.Errorf("the first change is sent %d times: %+v", told, last)
		}
		for i := range 60 {
			flip(i)
			listen()
			time.Sleep(time.Second)
		}
		if listen(); told < 4 || told > 7 {
			t.Errorf("within a minute the loop receives %d times", told)
		}
		flip(9)
		flip(2)
		time.Sleep(minReportInterval + 2*rolloutTick)
		if listen(); last != (resource.RolloutState{}) {
			t.Errorf("the last state is %+v", last)
		}
		before := told
		time.Sleep(time.Hour)
		if listen(); told != before {
			t.Error("the loop receives an unchanged state")
		}
	})
}

// Reports that arrived before the config was published count: dataplanes that stay connected during a restart of the
// operator do not repeat them.
func TestTheRolloutIsEvaluatedWhenItsConfigIsPublished(t *testing.T) {
	for _, c := range []struct {
		name string
		said discovery.Report
		want resource.RolloutState
	}{
		{"another config", discovery.Report{Revision: "older", Accepted: true}, resource.RolloutState{Behind: 1}},
		{"turned down", discovery.Report{Error: "port 3478 is taken"}, resource.RolloutState{
			Pod: "a", Problem: "port 3478 is taken",
		}},
		{"draining", discovery.Report{
			Revision: published().Revision(), Accepted: true, Draining: true,
		}, resource.RolloutState{Draining: 1}},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ts, from := &tasks{}, make(reporter)
			l := newLoop(
				translate.DefaultOptions(), discovery.NewServer(discovery.ServerOptions{}), newMeters(), ts,
				slog.New(slog.DiscardHandler),
			)
			l.published.previous = func(types.NamespacedName) []string { return nil }
			l.published.standby = func(types.NamespacedName) *corev1.Secret { return nil }
			go l.rollouts.reports.Follow(ctx, "this", from)
			go ts.do("reports", func(t *task) { l.rollouts.run(ctx, t) })
			c.said.ID, c.said.Pod = gatewayKey.String(), "a"
			from <- discovery.ReportChange{Report: &c.said}
			synctest.Wait()
			config := published()
			l.published.publish(gatewayKey, config)
			time.Sleep(rolloutTimeout + 2*rolloutTick)
			synctest.Wait()
			told := l.inbox.drain()
			if len(told) != 1 || told[0].object.(*resource.Rollout).RolloutState != c.want {
				t.Errorf("%s: the loop receives %+v, want %+v", c.name, told, c.want)
			}
		})
	}
}

// published returns the config of the Gateway gatewayKey.
func published() config.Config {
	c := config.Config{Admin: config.Admin{Name: gatewayKey.String()}}
	c.Default()
	return c
}

// idleOf returns the Gateways in the List that a discovery server sends.
func idleOf(t *testing.T, server *discovery.Server) []string {
	t.Helper()
	h := httptest.NewServer(server)
	defer h.Close()
	source, err := discovery.Open(h.URL, discovery.Options{Lists: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var idle []string
	for e := range source.Watch(ctx) {
		if e.List != nil && !e.Connected {
			idle = e.List.Idle
			cancel()
		}
	}
	return idle
}

// The auth service learns which Gateways have no dataplane that could accept a session: no dataplane has reported, or
// all dataplanes are draining. A dataplane that rejects a config keeps its last config, and counts.
func TestGatewaysWithoutDataplaneAreReported(t *testing.T) {
	server := discovery.NewServer(discovery.ServerOptions{})
	store := reports.New(slog.New(slog.DiscardHandler))
	f, from := newRollouts(store, newInbox()), make(reporter)
	f.server = server
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	following.Go(func() { store.Follow(ctx, "this", from) })
	defer following.Wait()
	defer cancel()
	send := func(change discovery.ReportChange) {
		t.Helper()
		from <- change
		<-store.Changed
		f.update(gatewayKey, time.Now())
	}
	says := func(pod string, r discovery.Report) {
		t.Helper()
		r.ID, r.Pod = "media/edge", pod
		send(discovery.ReportChange{Report: &r})
	}
	is := func(step string, want bool) {
		t.Helper()
		if got := idleOf(t, server); slices.Contains(got, "media/edge") != want || len(got) > 1 {
			t.Errorf("%s: idle %v, want %t", step, got, want)
		}
	}
	is("no config", false)
	f.publish(gatewayKey, "1")
	f.update(gatewayKey, time.Now())
	is("no report", true)
	says("a", discovery.Report{Accepted: true, Revision: "1"})
	is("a dataplane", false)
	says("a", discovery.Report{Error: "no"})
	is("it rejects a config", false)
	says("a", discovery.Report{Accepted: true, Draining: true})
	is("it drains", true)
	says("b", discovery.Report{Accepted: true})
	is("another one", false)
	send(discovery.ReportChange{Removed: &discovery.ReportKey{ID: "media/edge", Pod: "b"}})
	is("the other one is gone", true)
	f.withdraw(gatewayKey)
	is("the Gateway is gone", false)
}
