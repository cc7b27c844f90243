package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/retry"
)

const (
	// leaseDuration, renewDeadline and retryPeriod are lower than the default values of Kubernetes components: after a
	// leader is killed, new Gateways wait for the rest of its leaseDuration. A leader that stops releases the lease. With
	// a leaseDuration of 5 s, a leader lost it while the API server was busy.
	leaseDuration = 10 * time.Second
	renewDeadline = 8 * time.Second
	retryPeriod   = time.Second
	// leaseTimeout limits the duration of one request for the Lease. It is short because the lease is released during
	// shutdown, when little time is left.
	leaseTimeout = 3 * time.Second
)

// leaseName is the name of the Lease for leader election.
const leaseName = "stunner-operator"

// lease tracks the leader election of this process. A process that is suspended for longer than leaseDuration loses the
// lease, but the elector notices this only some time after the process resumes. Until then, writes of this process must
// fail, because another replica is the leader.
type lease struct {
	elector atomic.Pointer[leaderelection.LeaderElector]
	// renewed is when the last successful renewal of the lease was requested. The time of its response must not be
	// used: a suspended process may process the response long after the lease has expired.
	renewed atomic.Pointer[time.Time]
}

// elect calls lead whenever this process becomes the leader, until ctx ends. Losing the lease does not end the process,
// because config discovery continues on every replica. owner becomes the owner reference of the Lease.
func (l *lease) elect(
	ctx context.Context, s Settings, owner []metav1.OwnerReference, lead func(context.Context),
) error {
	config := rest.CopyConfig(s.Config)
	config.Timeout = leaseTimeout
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("elect leader: %w", err)
	}
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, s.Namespace, leaseName,
		clients.CoreV1(), clients.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: s.Identity})
	if err != nil {
		return fmt.Errorf("elect leader: %w", err)
	}
	for ctx.Err() == nil {
		done := make(chan struct{})
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: recordingLock{lock, l}, ReleaseOnCancel: true,
			LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) {
					defer close(done)
					s.Log.Info("became the leader", "identity", s.Identity)
					if err := setLeaseOwner(ctx, clients, s.Namespace, owner); err != nil && ctx.Err() == nil {
						s.Log.Warn("cannot set the owner of the Lease; the next leader will retry", "error", err)
					}
					lead(ctx)
				},
				OnStoppedLeading: func() { s.Log.Info("stopped being the leader", "identity", s.Identity) },
			},
		})
		if err != nil {
			return fmt.Errorf("elect leader: %w", err)
		}
		l.elector.Store(elector)
		elector.Run(ctx)
		select {
		case <-done: // lead has returned, so no write is in progress
		case <-ctx.Done():
		}
	}
	return nil
}

// setLeaseOwner sets the owner references of the Lease. If the elector renews the Lease at the same time, setLeaseOwner
// or the elector gets a conflict, reads the Lease again and retries.
func setLeaseOwner(
	ctx context.Context, clients kubernetes.Interface, namespace string, owner []metav1.OwnerReference,
) error {
	leases := clients.CoordinationV1().Leases(namespace)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		l, err := leases.Get(ctx, leaseName, metav1.GetOptions{})
		if err != nil || len(owner) == 0 || reflect.DeepEqual(l.OwnerReferences, owner) {
			return err
		}
		l.OwnerReferences = owner
		_, err = leases.Update(ctx, l, metav1.UpdateOptions{})
		return err
	})
}

// isHeld reports whether this process is the leader and renewed the lease within renewDeadline. This is safe because
// other replicas take the lease only after leaseDuration, which is longer.
func (l *lease) isHeld() bool {
	e, renewed := l.elector.Load(), l.renewed.Load()
	return e != nil && e.IsLeader() && renewed != nil && time.Since(*renewed) < renewDeadline
}

// recordingLock sets lease.renewed at each successful renewal.
type recordingLock struct {
	resourcelock.Interface
	lease *lease
}

// Create implements resourcelock.Interface.
func (w recordingLock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return w.renew(ctx, r, w.Interface.Create)
}

// Update implements resourcelock.Interface.
func (w recordingLock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return w.renew(ctx, r, w.Interface.Update)
}

func (w recordingLock) renew(
	ctx context.Context, r resourcelock.LeaderElectionRecord,
	request func(context.Context, resourcelock.LeaderElectionRecord) error,
) error {
	requested := time.Now()
	err := request(ctx, r)
	if err == nil {
		w.lease.renewed.Store(&requested)
	}
	return err
}

// leaseGuard is an HTTP transport that rejects every write request while this process does not hold the lease.
type leaseGuard struct {
	http.RoundTripper
	lease *lease
}

var errNoLease = errors.New("this process does not hold the lease any more: another one writes")

// RoundTrip implements http.RoundTripper.
func (g leaseGuard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet || g.lease.isHeld() {
		return g.RoundTripper.RoundTrip(r)
	}
	if r.Body != nil { // a RoundTripper must close the body
		return nil, errors.Join(errNoLease, r.Body.Close())
	}
	return nil, errNoLease
}
