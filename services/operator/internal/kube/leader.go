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

// The times of the lease, those of the components of Kubernetes itself.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
	// leaseTime bounds one request. The last gives the lease back, when the process has been told to end and has little time.
	leaseTime = 3 * time.Second
)

// leaseName is the Lease by which replicas agree on a leader.
const leaseName = "stunner-operator"

// elect runs lead while this process holds the lease, again and again until ctx ends. To lose the lease is no reason to end: discovery
// goes on. The lease goes with its owner.
func (p *Provider) elect(ctx context.Context, owner []metav1.OwnerReference, lead func(context.Context)) error {
	config := rest.CopyConfig(p.Config)
	config.Timeout = leaseTime
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("elect leader: %w", err)
	}
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, p.Namespace, leaseName,
		clients.CoreV1(), clients.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: p.Identity})
	if err != nil {
		return fmt.Errorf("elect leader: %w", err)
	}
	for ctx.Err() == nil {
		done := make(chan struct{})
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: recordingLock{lock, &p.lease}, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) {
					defer close(done)
					p.Log.Info("lead", "identity", p.Identity)
					if err := p.ownLease(ctx, clients, owner); err != nil && ctx.Err() == nil {
						p.Log.Warn("own the lease, to be tried by the next leader", "error", err)
					}
					lead(ctx)
				},
				OnStoppedLeading: func() { p.Log.Info("lead no longer", "identity", p.Identity) },
			},
		})
		if err != nil {
			return fmt.Errorf("elect leader: %w", err)
		}
		p.lease.elector.Store(elector)
		elector.Run(ctx)
		select {
		case <-done: // nothing is written any more before the lease is asked for again
		case <-ctx.Done():
		}
	}
	return nil
}

// ownLease writes the owner of the lease. The elector, which renews the lease meanwhile, finds another version and reads it again.
func (p *Provider) ownLease(ctx context.Context, clients kubernetes.Interface, owner []metav1.OwnerReference) error {
	leases := clients.CoordinationV1().Leases(p.Namespace)
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

// lease is what this process knows of the lease. A process that was frozen for longer than the lease lasts has another one lead, and only finds
// out when it has been going on for a moment: what it wants to write by then must not be written.
type lease struct {
	elector atomic.Pointer[leaderelection.LeaderElector]
	// renewed is when the renewal was asked for that went through last. The answer says less: it may have waited for a frozen process.
	renewed atomic.Pointer[time.Time]
}

// lasts tells whether the lease has been renewed recently enough. Others wait for longer than that before they take it.
func (l *lease) lasts() bool {
	e, renewed := l.elector.Load(), l.renewed.Load()
	return e != nil && e.IsLeader() && renewed != nil && time.Since(*renewed) < renewDeadline
}

// recordingLock tells the lease when it is renewed.
type recordingLock struct {
	resourcelock.Interface
	lease *lease
}

// Create is part of resourcelock.Interface.
func (w recordingLock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return w.renew(ctx, r, w.Interface.Create)
}

// Update is part of resourcelock.Interface.
func (w recordingLock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return w.renew(ctx, r, w.Interface.Update)
}

func (w recordingLock) renew(ctx context.Context, r resourcelock.LeaderElectionRecord, ask func(context.Context, resourcelock.LeaderElectionRecord) error) error {
	asked := time.Now()
	err := ask(ctx, r)
	if err == nil {
		w.lease.renewed.Store(&asked)
	}
	return err
}

// guard stands in the way of every write.
type leaseGuard struct {
	http.RoundTripper
	lease *lease
}

var errNoLease = errors.New("this process does not hold the lease any more: another one writes")

// RoundTrip sends a request, unless it is a write that is not this process's to make.
func (g leaseGuard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet || g.lease.lasts() {
		return g.RoundTripper.RoundTrip(r)
	}
	if r.Body != nil { // who sends it must close it
		return nil, errors.Join(errNoLease, r.Body.Close())
	}
	return nil, errNoLease
}
