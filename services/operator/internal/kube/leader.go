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

// The first three are the defaults of the components of Kubernetes.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
	// leaseTimeout bounds one request. The last request releases the lease during shutdown, when little time is left.
	leaseTimeout = 3 * time.Second
)

// leaseName names the Lease of the leader election.
const leaseName = "stunner-operator"

// lease tracks the leader election of this process. A process that was suspended for longer than leaseDuration is not
// the leader any more, and learns this only some time after it resumes; its writes until then must fail.
type lease struct {
	elector atomic.Pointer[leaderelection.LeaderElector]
	// renewed is when the last successful renewal was requested. The time of the response proves less: the response may
	// have waited for a suspended process.
	renewed atomic.Pointer[time.Time]
}

// elect runs lead while this process holds the lease, repeatedly until ctx ends. Losing the lease does not end the
// process, because config discovery continues. The lease gets the owner references.
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
		case <-done: // all writes of this term have ended
		case <-ctx.Done():
		}
	}
	return nil
}

// setLeaseOwner writes the owner references of the Lease. The elector, which renews the Lease concurrently, gets a
// conflict and reads the Lease again.
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

// isHeld reports whether the lease was renewed within renewDeadline. Other replicas wait for leaseDuration, which is
// longer, before they take it.
func (l *lease) isHeld() bool {
	e, renewed := l.elector.Load(), l.renewed.Load()
	return e != nil && e.IsLeader() && renewed != nil && time.Since(*renewed) < renewDeadline
}

// recordingLock records the time of successful renewals.
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

// leaseGuard rejects every write request while this process does not hold the lease.
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
