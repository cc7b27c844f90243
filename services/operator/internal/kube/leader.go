package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"reflect"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/retry"
)

const (
	// leaseDuration, renewDeadline and retryPeriod are lower than the default values of Kubernetes components: after
	// the node of a leader has failed, new Gateways wait for the rest of its leaseDuration. A leader that stops
	// releases the lease. A leader whose process has ended is detected earlier, see candidate. With a leaseDuration of
	// 5 s, a leader lost its lease while the API server was busy.
	leaseDuration = 10 * time.Second
	renewDeadline = 8 * time.Second
	retryPeriod   = 500 * time.Millisecond
	// deathWait is how long another replica waits for a renewal by a leader that refuses connections. It is longer than
	// retryPeriod.
	deathWait = time.Second
	// dialTimeout limits the duration of the connection by which another replica tests a leader.
	dialTimeout = 500 * time.Millisecond
	// leaseTimeout limits the duration of one request for the Lease. It is short because the lease is released during
	// shutdown, when little time is left.
	leaseTimeout = 3 * time.Second
)

// leaseName is the name of the Lease for leader election.
const leaseName = "stunner-operator"

// leaderAddressAnnotation of the Lease holds the address HOST:PORT of config discovery of the leader.
const leaderAddressAnnotation = "stunner.l7mp.io/leader-address"

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
			Lock: &candidate{
				recordingLock: recordingLock{lock, l}, leases: clients.CoordinationV1().Leases(s.Namespace), log: s.Log,
			}, ReleaseOnCancel: true,
			LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) {
					defer close(done)
					s.Log.Info("became the leader", "identity", s.Identity)
					err := setLeaseMetadata(ctx, clients.CoordinationV1().Leases(s.Namespace), owner, s.leaderAddress())
					if err != nil && ctx.Err() == nil {
						s.Log.Warn("cannot set owner and address in the Lease; the next leader will retry", "error", err)
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

// setLeaseMetadata sets the owner references of the Lease, and the address of this leader. If the elector renews the
// Lease at the same time, setLeaseMetadata or the elector gets a conflict, reads the Lease again and retries.
func setLeaseMetadata(
	ctx context.Context, leases coordinationclient.LeaseInterface, owner []metav1.OwnerReference, address string,
) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		l, err := leases.Get(ctx, leaseName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		before := l.DeepCopy()
		if len(owner) > 0 {
			l.OwnerReferences = owner
		}
		delete(l.Annotations, leaderAddressAnnotation)
		if address != "" {
			metav1.SetMetaDataAnnotation(&l.ObjectMeta, leaderAddressAnnotation, address)
		}
		if reflect.DeepEqual(before, l) {
			return nil
		}
		_, err = leases.Update(ctx, l, metav1.UpdateOptions{})
		return err
	})
}

// leaderAddress returns the address HOST:PORT at which other replicas reach config discovery of this replica. It
// returns "" if the address is unknown.
func (s Settings) leaderAddress() string {
	host, port, err := net.SplitHostPort(s.DiscoveryAddress)
	if host = cmp.Or(s.Address, host); err != nil || host == "" {
		return ""
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		return ""
	}
	return net.JoinHostPort(host, port)
}

// isHeld reports whether this process is the leader and renewed the lease within renewDeadline. This is safe because
// other replicas take the lease only after leaseDuration, which is longer.
func (l *lease) isHeld() bool {
	renewed := l.renewed.Load()
	return l.isLeader() && renewed != nil && time.Since(*renewed) < renewDeadline
}

// isLeader reports whether this process is the leader according to the last record of the lease that it has read.
func (l *lease) isLeader() bool {
	e := l.elector.Load()
	return e != nil && e.IsLeader()
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

// candidate takes the lease of a leader whose process has ended before the lease expires. Two signs are required: the
// address of the leader refuses connections, and the leader does not renew the lease for deathWait. A suspended process
// and a failed node refuse no connection. If the leader runs and another host on the path refuses the connections, the
// leader renews the lease. A late renewal makes the takeover fail, because both updates require the resource version of
// the Lease that was read.
type candidate struct {
	recordingLock
	leases coordinationclient.LeaseInterface
	log    *slog.Logger
	// holder is the holder in the Lease that was read last.
	holder string
}

// Update implements resourcelock.Interface. It refuses to release the lease of another process. After a suspension of
// the process, the elector releases the lease that it reads if this process was the leader before, although another
// process may hold the lease now.
func (c *candidate) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if r.HolderIdentity == "" && c.holder != c.Identity() {
		return fmt.Errorf("release the lease: %s holds it", c.holder)
	}
	return c.recordingLock.Update(ctx, r)
}

// Get implements resourcelock.Interface. The record of a leader whose process has ended has no holder.
func (c *candidate) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := c.Interface.Get(ctx)
	if err == nil {
		c.holder = record.HolderIdentity
	}
	if err != nil || record.HolderIdentity == "" || record.HolderIdentity == c.Identity() || c.lease.isLeader() {
		return record, raw, err
	}
	before, err := c.leases.Get(ctx, leaseName, metav1.GetOptions{})
	if err != nil || !refuses(ctx, before.Annotations[leaderAddressAnnotation]) {
		return record, raw, nil
	}
	select {
	case <-ctx.Done():
		return record, raw, nil
	case <-time.After(deathWait):
	}
	if record, raw, err = c.Interface.Get(ctx); err != nil {
		return record, raw, err
	}
	// The time in a record has no fractions of a second, so a record does not show each renewal.
	now, err := c.leases.Get(ctx, leaseName, metav1.GetOptions{})
	if err == nil && equality.Semantic.DeepEqual(now.Spec, before.Spec) {
		c.log.Info("take the lease before it expires, because the process of the leader has ended", "leader",
			record.HolderIdentity)
		record.HolderIdentity = ""
	}
	return record, raw, nil
}

// refuses reports whether an address refuses connections.
func refuses(ctx context.Context, address string) bool {
	if address == "" {
		return false
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return errors.Is(err, syscall.ECONNREFUSED)
	}
	_ = conn.Close() // nothing was sent
	return false
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
