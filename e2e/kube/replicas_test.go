package kube

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/reader"
)

// every replica serves configs and one writes. When the leader is killed, loses its lease, freezes or stops,
// another replica takes over. A leader that stops releases the lease.
// Readers of both replicas are not affected, and the former leader writes nothing more.
func TestOneReplicaWritesAndAllServe(t *testing.T) {
	t.Parallel()
	s := newInstallation(t)
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	template := func() string { return s.get("deployment/front-door", ".spec.template") }
	pods := template()

	all := s.replicas("first", "second")
	first, second := all[0], all[1]
	first.start()
	first.leads()
	second.start()
	readers := []*reader.Reader{first.reader("front-door"), second.reader("front-door")}
	for _, r := range readers {
		s.shows(r, "192.0.2.50", "192.0.2.7")
	}

	moved := time.Now()
	s.moveEcho("192.0.2.61")
	for i, r := range readers {
		s.shows(r, "192.0.2.61")
		t.Logf(
			"a change reaches the reader of replica %d after %s", i,
			r.State().Last.At.Sub(moved).Round(time.Millisecond),
		)
	}

	lost := time.Now()
	s.must(first.process.Kill())
	s.moveEcho("192.0.2.62") // while no operator is the leader
	s.shows(readers[1], "192.0.2.62")
	t.Logf(
		"a change reaches the reader of the replica that remains %s after the leader is killed",
		readers[1].State().Last.At.Sub(lost).Round(time.Millisecond),
	)
	second.leads()
	takeover := time.Since(lost).Round(100 * time.Millisecond)
	t.Logf("taken over %s after the leader was killed", takeover)
	if takeover >= lease-time.Second {
		t.Errorf("taken over %s after the leader was killed, as if it were only frozen", takeover)
	}
	s.writesAlone("killed", second, first)

	first.start()
	s.shows(readers[0], "192.0.2.62")
	s.remove("lease/stunner-operator")
	leader, other := first.orElse(second)
	s.writesAlone("lease-deleted", leader, other)

	frozen := time.Now()
	known := readers[leader.number].State()
	s.must(leader.process.Signal(syscall.SIGSTOP))
	s.mark("frozen") // pending work for the frozen leader when it resumes
	other.leads()
	t.Logf("taken over %s after the leader froze", time.Since(frozen).Round(100*time.Millisecond))
	s.sees("deployment/front-door", ".metadata.labels.mark", "frozen")
	s.moveEcho("192.0.2.63")
	s.shows(readers[other.number], "192.0.2.63")
	resumed := time.Now() // a write that the leader sent just before it froze may arrive after SIGSTOP
	s.must(leader.process.Signal(syscall.SIGCONT))
	s.shows(readers[leader.number], "192.0.2.63")
	leader.follows()
	s.writesAlone("continued", other, leader)
	if wrote := leader.proxy.since(resumed); len(wrote) > 0 {
		t.Errorf("after being frozen for longer than its lease, the former leader wrote %v", wrote)
	}
	if now := readers[leader.number].State(); now.Changes != known.Changes+1 {
		t.Errorf("%d configs from the formerly frozen leader after one change", now.Changes-known.Changes)
	}
	for _, r := range all {
		if r.metric("stunner_operator_paused") != 0 {
			t.Errorf("replica %s is paused by another replica of its installation", r.id)
		}
	}
	s.sees("gatewayclass/"+s.name, condition("ControllerConflict"), "False")

	released := other.proxy.leaseReleased(other.id)
	stopped := time.Now()
	other.stop()
	select {
	case <-released:
	default:
		t.Error("the leader stopped and did not release the lease")
	}
	leader.leads()
	t.Logf("taken over %s after the leader was told to stop", time.Since(stopped).Round(100*time.Millisecond))
	s.writesAlone("stopped", leader, other)
	if after := template(); after != pods {
		t.Errorf("the pods would be restarted: the template was\n%s\nand is\n%s", pods, after)
	}
}

// lease is the duration of the lease. A leader that is killed renewed it less than a second before.
const lease = 10 * time.Second

// replica is one of several operators, with a proxy that records its writes.
type replica struct {
	*installation
	number int
	id     string
	proxy  *proxy
}

// replicas starts one operator per name, in place of the operator.
func (s *installation) replicas(names ...string) (all []*replica) {
	s.Helper()
	s.stop()
	for i, id := range names {
		own := *s
		for _, port := range []*int{&own.discovery, &own.health, &own.scaler} {
			*port = harnesstest.Port(s.T)
		}
		all = append(all, &replica{&own, i, id, own.proxied()})
	}
	return all
}

func (r *replica) start() {
	r.Helper()
	r.installation.start("--identity=" + r.id)
}

// follows waits until the replica reports that it is not the leader.
func (r *replica) follows() {
	r.Helper()
	r.await(func(context.Context) error {
		if r.metric("stunner_operator_leader") != 0 {
			return errors.New(r.id + " reports that it is the leader")
		}
		return nil
	})
}

// orElse waits until one of two replicas holds the lease, and returns this replica first.
func (r *replica) orElse(other *replica) (leader, follower *replica) {
	r.Helper()
	var holder string
	r.await(func(context.Context) error {
		if holder = r.get("lease/stunner-operator", ".spec.holderIdentity"); holder == "" {
			return errors.New("no replica holds the lease")
		}
		return nil
	})
	if holder == r.id {
		r.leads()
		other.follows()
		return r, other
	}
	other.leads()
	r.follows()
	return other, r
}

// writesAlone makes a change and checks that only the leader writes.
func (s *installation) writesAlone(change string, leader, other *replica) {
	s.Helper()
	begun := time.Now()
	s.mark(change)
	s.sees("deployment/front-door", ".metadata.labels.mark", change)
	patch := func(w write) bool {
		return strings.HasPrefix(w.what, "PATCH") && strings.Contains(w.what, "/deployments/")
	}
	if wrote := leader.proxy.since(begun); !slices.ContainsFunc(wrote, patch) { // a new leader writes statuses too
		s.Errorf("%s: the leader %s wrote %v", change, leader.id, wrote)
	}
	if wrote := other.proxy.since(begun); len(wrote) > 0 {
		s.Errorf("%s: %s is not the leader and wrote %v", change, other.id, wrote)
	}
}
