package kube

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// A replica takes the lease before it expires only if the leader refuses connections and does not renew the lease.
func TestALeaseIsTakenEarlyOnlyFromAProcessThatHasEnded(t *testing.T) {
	t.Parallel()
	listening, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listening.Close() })
	ended, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refusing := ended.Addr().String()
	if err := ended.Close(); err != nil {
		t.Fatal(err)
	}
	const other, own = "other", "own"
	for name, c := range map[string]struct {
		holder, address string
		renewed         bool
		want            string
	}{
		"the process has ended":                  {other, refusing, false, ""},
		"it renews, and a firewall refuses":      {other, refusing, true, other},
		"it is frozen, and accepts connections":  {other, listening.Addr().String(), false, other},
		"its address is not known":               {other, "", false, other},
		"its address is none":                    {other, "nowhere", false, other},
		"the own lease, of an earlier container": {own, refusing, false, own},
		"released":                               {"", refusing, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				replica := newCandidate(t, own, c.holder)
				leases := replica.leases
				if err := setLeaseMetadata(t.Context(), leases, nil, c.address); err != nil {
					t.Fatal(err)
				}
				if c.renewed {
					time.AfterFunc(retryPeriod, func() {
						l, err := leases.Get(context.Background(), leaseName, metav1.GetOptions{})
						if err == nil {
							l.Spec.RenewTime = new(metav1.NowMicro())
							_, err = leases.Update(context.Background(), l, metav1.UpdateOptions{})
						}
						if err != nil {
							t.Errorf("renew: %v", err)
						}
					})
				}
				got, _, err := replica.Get(t.Context())
				if err != nil || got.HolderIdentity != c.want {
					t.Errorf("the holder is %q, want %q: %v", got.HolderIdentity, c.want, err)
				}
			})
		})
	}
}

// newCandidate returns the lock of a replica. The Lease has a holder.
func newCandidate(t *testing.T, identity, holder string) *candidate {
	t.Helper()
	clients := fake.NewClientset()
	leases := clients.CoordinationV1().Leases("ops")
	_, err := leases.Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: leaseName},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: new(metav1.NowMicro())},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, "ops", leaseName, clients.CoreV1(),
		clients.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: identity})
	if err != nil {
		t.Fatal(err)
	}
	return &candidate{recordingLock: recordingLock{lock, &lease{}}, leases: leases, log: slog.New(slog.DiscardHandler)}
}

// A process was the leader, was suspended, and continues. It does not release the lease of its successor, but it
// releases its own lease.
func TestALeaseIsReleasedByItsHolderOnly(t *testing.T) {
	for holder, want := range map[string]string{"successor": "successor", "own": ""} {
		replica := newCandidate(t, "own", holder)
		record, _, err := replica.Get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		record.HolderIdentity = ""
		err = replica.Update(t.Context(), *record)
		if (err != nil) != (want != "") {
			t.Errorf("release of the lease of %s: %v", holder, err)
		}
		l, err := replica.leases.Get(t.Context(), leaseName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := *cmp.Or(l.Spec.HolderIdentity, new("")); got != want {
			t.Errorf("the holder is %q, want %q", got, want)
		}
	}
}

// The Lease has an address that another replica reaches.
func TestLeaderAddress(t *testing.T) {
	for _, c := range []struct{ pod, discovery, want string }{
		{"10.0.0.7", "0.0.0.0:13478", "10.0.0.7:13478"},
		{"10.0.0.7", ":13478", "10.0.0.7:13478"},
		{"fd00::7", "[::]:13478", "[fd00::7]:13478"},
		{"", "127.0.0.1:13478", "127.0.0.1:13478"},
		{"", "0.0.0.0:13478", ""},
		{"", "[::]:13478", ""},
		{"", ":13478", ""},
		{"10.0.0.7", "none", ""},
	} {
		s := Settings{Address: c.pod, DiscoveryAddress: c.discovery}
		if got := s.leaderAddress(); got != c.want {
			t.Errorf("--address=%s --discovery-address=%s: %q, want %q", c.pod, c.discovery, got, c.want)
		}
	}
}
