package kube

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// installations pauses the writer while an older installation of the operator has the same controller name, see
// translate.Claims. It runs on the leader. While no GatewayClass names another installation, it makes no request.
type installations struct {
	namespace, controllerName string
	cached, direct            client.Reader
	inbox                     *inbox
	writer                    *writer
	meters                    *meters
	log                       *slog.Logger
	now                       func() time.Time

	wake chan struct{}
	own  resource.Installation
	// leases are the last observations of the Leases of the other installations that a GatewayClass names.
	leases map[resource.Installation]leaseObservation
	// gone are the installations that translations treat as no longer running.
	gone []resource.Installation
	// told is the last logged state.
	told arbitration
}

// leaseObservation is the observed state of the Lease of another installation. Its times are not compared with the
// local clock, which may differ.
type leaseObservation struct {
	// version is the resource version of the Lease, and changed is the local time when it was first seen.
	version string
	changed time.Time
	deleted bool
}

const (
	// goneAfter is how long an installation may leave its Lease unchanged before it counts as gone. A leader renews the
	// Lease every retryPeriod. The pod of an operator with one replica is usually replaced within this time.
	goneAfter = time.Minute
	// leaseInterval is how often the Leases of other installations are read.
	leaseInterval = 5 * time.Second
	// settleTimeout is how long a new leader waits until its GatewayClasses name it, before it writes anything else.
	settleTimeout = 5 * time.Second
)

func newInstallations(s Settings, cached, direct client.Reader, l *loop) *installations {
	return &installations{
		namespace: s.Namespace, controllerName: s.Options.ControllerName, cached: cached, direct: direct,
		inbox: l.inbox, writer: l.writer, meters: l.meters, log: s.Log, now: time.Now, wake: make(chan struct{}, 1),
	}
}

// OnAdd implements cache.ResourceEventHandler for GatewayClasses.
func (i *installations) OnAdd(any, bool) { notify(i.wake) }

// OnUpdate implements cache.ResourceEventHandler.
func (i *installations) OnUpdate(any, any) { notify(i.wake) }

// OnDelete implements cache.ResourceEventHandler.
func (i *installations) OnDelete(any) { notify(i.wake) }

var _ toolscache.ResourceEventHandler = (*installations)(nil)

// identify determines the identity of this installation, and holds the writer until run has compared it with others. It
// retries until ctx ends.
func (i *installations) identify(ctx context.Context) {
	i.writer.setHeld(true)
	i.leases, i.gone, i.told = nil, nil, arbitration{}
	for ctx.Err() == nil {
		lease, err := i.lease(ctx, i.namespace)
		if err == nil {
			i.own = resource.Installation{Namespace: i.namespace, Since: lease.CreationTimestamp.UTC()}
			i.inbox.put(objectChange{object: &resource.Installations{Own: i.own}})
			return
		}
		i.log.Warn("cannot read the own Lease, will retry", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(serverRetry):
		}
	}
}

// run compares this installation with the installations that GatewayClasses name, until ctx ends.
func (i *installations) run(ctx context.Context, t *task) {
	ticker := time.NewTicker(leaseInterval)
	defer ticker.Stop()
	settleUntil := i.now().Add(settleTimeout)
	notify(i.wake)
	for {
		select {
		case <-ctx.Done():
			return
		case <-i.wake:
		case <-ticker.C: // for the Leases, and for the end of the time to settle
		}
		t.begin()
		if err := i.step(ctx, i.now().Before(settleUntil)); err != nil && ctx.Err() == nil {
			i.log.Warn("cannot compare this installation with others, will retry", "error", err)
		}
		t.end()
	}
}

// step holds or releases the writer. Within the time to settle, GatewayClasses that do not name this installation yet
// also hold the writer.
func (i *installations) step(ctx context.Context, settling bool) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	list := &gwapiv1.GatewayClassList{}
	if err := i.cached.List(ctx, list); err != nil {
		return fmt.Errorf("list GatewayClasses: %w", err)
	}
	var claims []translate.Claims
	for _, class := range list.Items {
		if string(class.Spec.ControllerName) == i.controllerName {
			claims = append(claims, translate.ClaimsOf(class.Status.Conditions))
		}
	}
	if arbitrate(claims, i.known()).paused() {
		i.writer.setHeld(true) // hold the writer before the requests below
	}
	i.observeLeases(ctx, claims)
	known := i.known()
	if !slices.Equal(known.Gone, i.gone) {
		i.gone = known.Gone
		i.inbox.put(objectChange{object: &known})
	}
	a := arbitrate(claims, known)
	i.report(a)
	i.writer.setHeld(a.paused() || settling && !a.settled)
	return nil
}

// known returns the state that translations read.
func (i *installations) known() resource.Installations {
	known := resource.Installations{Own: i.own}
	for other, seen := range i.leases {
		if seen.deleted || i.now().Sub(seen.changed) > goneAfter {
			known.Gone = append(known.Gone, other)
		}
	}
	slices.SortFunc(known.Gone, resource.Installation.Compare)
	return known
}

// observeLeases reads the Leases of the installations that claims name. It forgets all others, so that an installation
// that returns counts as running. A Lease that cannot be read counts as renewed.
func (i *installations) observeLeases(ctx context.Context, claims []translate.Claims) {
	observed := map[resource.Installation]leaseObservation{}
	for _, c := range claims {
		for _, other := range c.Others(i.own) {
			if _, done := observed[other]; !done {
				observed[other] = i.observeLease(ctx, other)
			}
		}
	}
	i.leases = observed
}

func (i *installations) observeLease(ctx context.Context, other resource.Installation) leaseObservation {
	seen, known := i.leases[other]
	lease, err := i.lease(ctx, other.Namespace)
	switch {
	case apierrors.IsNotFound(err):
		return leaseObservation{deleted: true}
	case err != nil:
		i.log.Warn("cannot read the Lease of another installation, which counts as running", "installation",
			other.String(), "error", err)
		return leaseObservation{changed: i.now()}
	case !known || seen.version != lease.ResourceVersion:
		return leaseObservation{version: lease.ResourceVersion, changed: i.now()}
	}
	return seen
}

func (i *installations) lease(ctx context.Context, namespace string) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	lease := &coordinationv1.Lease{}
	if err := i.direct.Get(ctx, types.NamespacedName{Namespace: namespace, Name: leaseName}, lease); err != nil {
		return nil, fmt.Errorf("read Lease %s/%s: %w", namespace, leaseName, err)
	}
	return lease, nil
}

// arbitration is the result of comparing this installation with others.
type arbitration struct {
	// older is the installation that pauses this installation. younger is an installation that is paused because of
	// this installation. They are zero if there is no such installation.
	older, younger resource.Installation
	// settled means that all GatewayClasses name the installation that manages them.
	settled bool
}

func (a arbitration) paused() bool { return a.older != (resource.Installation{}) }

// arbitrate compares this installation with the claims of all GatewayClasses of its controller name.
func arbitrate(claims []translate.Claims, known resource.Installations) arbitration {
	a := arbitration{settled: true}
	for _, c := range claims {
		settled := c.Settle(known)
		a.settled = a.settled && settled == c
		if settled.Manager != known.Own {
			a.older = settled.Manager
		} else if settled.Paused != (resource.Installation{}) {
			a.younger = settled.Paused
		}
	}
	return a
}

// report logs a change, and sets the metric.
func (i *installations) report(a arbitration) {
	before := i.told
	i.told, i.told.settled = a, false
	i.meters.paused.Set(0)
	switch {
	case a.paused():
		i.meters.paused.Set(1)
		if a.older != before.older {
			i.log.Warn("paused, because an older installation has the same controller name: uninstall one of the two, "+
				"or give it another --controller-name", "own", i.own.String(), "older", a.older.String(),
				"controllerName", i.controllerName)
		}
	case before.paused():
		i.log.Info("continues, because the older installation with the same controller name is gone", "own",
			i.own.String(), "older", before.older.String())
	}
	if a.younger != before.younger && a.younger != (resource.Installation{}) {
		i.log.Warn("a younger installation has the same controller name and is paused: uninstall it, or give it another "+
			"--controller-name", "own", i.own.String(), "younger", a.younger.String(), "controllerName", i.controllerName)
	}
}
