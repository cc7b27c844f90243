package discovery

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"
)

// sit acquires a stream of a pod.
func sit(t *testing.T, s *streamLimiter, id, pod string) (open *stream, taken bool) {
	t.Helper()
	open = newStream(context.WithoutCancel(t.Context()), serverKeepalive)
	t.Cleanup(open.close)
	return open, s.acquire(Grant{ID: id, Pod: pod}, open)
}

// K-12: a pod has a limited number of streams. The newest streams stay open, so that a pod can reconnect before the
// server has detected the end of its previous stream.
func TestAPodHasFewStreams(t *testing.T) {
	s := newStreamLimiter(Limits{Streams: 10, PodStreams: 2})
	var all []*stream
	for range 5 {
		open, taken := sit(t, s, "media/a", "a-1")
		if !taken {
			t.Fatal("a pod is refused")
		}
		all = append(all, open)
	}
	for i, open := range all {
		if replaced := errors.Is(context.Cause(open.ctx), errReplaced); replaced != (i < 3) {
			t.Errorf("stream %d is replaced: %t", i, replaced)
		}
		s.release(Grant{ID: "media/a", Pod: "a-1"}, open)
	}
	if s.count() != 0 || len(s.namespaces) != 0 {
		t.Errorf("%d streams, %d namespaces, want none", s.count(), len(s.namespaces))
	}
}

// K-12: pods that no node has reported may open only a few streams. The streams of other pods in their namespace stay
// open.
func TestPodsThatNeverRunHaveFewStreams(t *testing.T) {
	s := newStreamLimiter(Limits{Unreported: 3}.withDefaults())
	open := func(pod string, unreported bool) (*stream, bool) {
		next := newStream(context.WithoutCancel(t.Context()), serverKeepalive)
		t.Cleanup(next.close)
		return next, s.acquire(Grant{ID: "media/a", Pod: pod, Unreported: unreported}, next)
	}
	running, _ := open("running", false)
	var first *stream
	for i := range 10 {
		next, taken := open(fmt.Sprintf("pod-%d", i), true)
		if taken != (i < 3) {
			t.Errorf("pod %d that never runs gets a stream: %t", i, taken)
		}
		if i == 0 {
			first = next
		}
	}
	if _, taken := open("running-too", false); !taken || running.ctx.Err() != nil {
		t.Errorf("a running pod gets a stream: %t; that of another one has ended: %v", taken, running.ctx.Err())
	}
	s.release(Grant{ID: "media/a", Pod: "pod-0", Unreported: true}, first)
	late, taken := open("late", true)
	if !taken {
		t.Error("the end of a stream makes no room")
	}
	by := Grant{ID: "media/a", Pod: "late", Unreported: true}
	for range 2 { // a review may be repeated
		s.reported(by, late)
	}
	s.reported(by, first) // the first stream has ended
	for i, want := range []bool{true, false} {
		if _, taken := open(fmt.Sprint("after-", i), true); taken != want {
			t.Errorf("pod %d after the report of another one gets a stream: %t", i, taken)
		}
	}
	s.release(by, late)
	if n := s.namespaces["media"].unreported; n != 3 {
		t.Errorf("%d streams of pods that never run, want 3", n)
	}
}

// K-12: a namespace with many streams does not keep other namespaces from opening streams.
func TestNamespacesShareStreams(t *testing.T) {
	s := newStreamLimiter(Limits{Streams: 100, PodStreams: 4})
	for i := range 1000 {
		sit(t, s, "greedy/door", fmt.Sprintf("pod-%d", i/4))
	}
	if s.count() != 100 {
		t.Fatalf("%d streams, want 100", s.count())
	}
	var good []*stream
	for i := range 50 {
		open, taken := sit(t, s, "modest/door", fmt.Sprintf("pod-%d", i))
		if !taken {
			t.Fatalf(
				"pod %d of the other namespace is refused: %d streams of the greedy one", i,
				s.namespaces["greedy"].open,
			)
		}
		good = append(good, open)
	}
	for range 100 {
		if _, taken := sit(t, s, "greedy/door", "late"); taken && s.namespaces["greedy"].pods["late"] == nil {
			t.Error("the greedy namespace takes streams from the other one")
		}
	}
	for i, open := range good {
		if open.ctx.Err() != nil {
			t.Errorf("stream %d of the other namespace has ended: %v", i, context.Cause(open.ctx))
		}
	}
	if modest := s.namespaces["modest"].open; modest != 50 || s.count() != 100 {
		t.Errorf("the other namespace has %d of %d streams, want half of 100", modest, s.count())
	}
	if open, taken := sit(t, s, "", ""); taken || open.ctx.Err() != nil {
		t.Error("a reader without rights takes the place of a pod")
	}
}

// However many streams the pods of a namespace take, auth services and other replicas open theirs.
func TestReadersOfAllConfigsGetStreams(t *testing.T) {
	s := newStreamLimiter(Limits{Streams: 100, PodStreams: 4})
	for i := range 1000 {
		sit(t, s, "greedy/door", fmt.Sprintf("pod-%d", i/4))
	}
	for i := range 20 {
		ctx, cancel := context.WithCancelCause(t.Context())
		if !s.acquire(Grant{All: true, ForAuth: true}, &stream{ctx: ctx, cancel: cancel}) {
			t.Fatalf("reader %d is refused", i)
		}
	}
	if greedy := s.namespaces["greedy"].open; greedy != 80 || s.count() != 100 {
		t.Errorf("the namespace has %d of %d streams, want 80 of 100", greedy, s.count())
	}
}

// A server ends the stream that a newer stream of the same pod replaces.
func TestReplacedStreamsEnd(t *testing.T) {
	pod := func(*http.Request) (Grant, error) { return Grant{ID: "media/a", Pod: "a-1"}, nil }
	s, h := serve(t, ServerOptions{Authorize: pod, Limits: Limits{PodStreams: 1}}, sample("media/a", "r"))
	first := dial(t, h, apiPath+"/media/a?watch=true")
	if _, _, err := first.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	dial(t, h, apiPath+"/media/a?watch=true")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, _, err := first.Read(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("the first stream goes on: %v", err)
	}
	eventually(t, func() bool { return s.Streams() == 1 })
}
