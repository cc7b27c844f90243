package largest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/reader"
	"github.com/stunner-gateway/stunner/e2e/internal/stall"
)

// The other tenants have the namespaces good-N. New Gateways are in the namespace young.
const (
	tenants = 3
	home    = "stunner-system" // namespace of the operator
	young   = "young"
)

// Pauses and limits of the measurement.
const (
	pause        = 20 * time.Millisecond // between changes of other tenants, and between two readings of the memory
	creationRate = 150 * time.Millisecond
	lost         = 10 * time.Second // a change that takes longer is lost
	probeTimeout = time.Second      // the timeout of a readiness probe in the chart
)

// objectsOfOthers is the YAML of objects that the other tenants and the administrator have written.
const objectsOfOthers = `{apiVersion: v1, kind: Namespace, metadata: {name: attacker}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: young}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: attacker}}
---
{apiVersion: v1, kind: Node, metadata: {name: node}}
---
{apiVersion: stunner.l7mp.io/v1, kind: Dataplane, metadata: {name: default}, spec: {}}
---
{apiVersion: v1, kind: Secret, metadata: {name: turn, namespace: stunner-system}, stringData: {type: static, username: user, password: password-of-the-test}}
---
{apiVersion: stunner.l7mp.io/v1, kind: GatewayConfig, metadata: {name: turn, namespace: stunner-system}, spec: {authRef: {name: turn}}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: turn}, spec: {
  controllerName: stunner.l7mp.io/gateway-operator,
  parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: turn, namespace: stunner-system}}}
`

// tenant is YAML of the objects of another tenant, whose namespace is NS and whose number is NUMBER.
const tenant = `---
{apiVersion: v1, kind: Namespace, metadata: {name: NS}}
---
{apiVersion: v1, kind: Service, metadata: {name: media, namespace: NS}, spec: {clusterIP: None, ports: [{port: 7000, protocol: UDP}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: media, namespace: NS, labels: {kubernetes.io/service-name: media}},
  addressType: IPv4, ports: [{port: 7000, protocol: UDP}], endpoints: [{addresses: [10.NUMBER.0.1]}]}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: own, namespace: NS}, spec: {gatewayClassName: turn,
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]}}
---
{apiVersion: stunner.l7mp.io/v1, kind: UDPRoute, metadata: {name: own, namespace: NS}, spec: {parentRefs: [{name: own}], rules: [{backendRefs: [{name: media}]}]}}
`

func namespaceOf(tenant int) string { return fmt.Sprintf("good-%d", tenant) }

// others are the other tenants, with a reader of each config.
type others struct {
	*apiServer
	discovery, health string
	process           func() *harness.Process // returns the process of the operator
	readers           []*reader.Reader
	stalls            *stall.Monitor
	turn, creations   int

	mu   sync.Mutex
	now  sample
	seen map[string]*receipt // of changes, by a watch of the test
	one  chan struct{}       // closed and replaced after each change
}

// sample has the measurements of others in a period.
type sample struct {
	changes, creations []time.Duration
	writes             []time.Duration // times until the Services of the test were there, one for each of creations
	lost               []string
	unready            []string
	peak               int // resident memory of the operator, in bytes
}

// worst returns the longest of the durations.
func worst(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	return slices.Max(all).Round(time.Millisecond)
}

// p99 returns the duration that 99 % do not exceed.
func p99(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	return all[(len(all)*99+99)/100-1].Round(time.Millisecond)
}

// follow starts a reader of each config.
func (o *others) follow(ctx context.Context) {
	o.readers = nil
	for i := range tenants {
		o.readers = append(o.readers, reader.Read(ctx, o.discovery, namespaceOf(i)+"/own"))
	}
}

// complete returns nil if each reader has a config with its endpoint.
func (o *others) complete() error {
	for i, r := range o.readers {
		if !bytes.Contains(r.State().Last.Data, fmt.Appendf(nil, `"10.%d.`, i+1)) {
			return fmt.Errorf("the config of %s has no endpoint", namespaceOf(i))
		}
	}
	return nil
}

// measure changes endpoints of others one after another, creates Gateways and probes the readiness, until ctx ends.
func (o *others) measure(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	repeat := func(pause time.Duration, do func(context.Context)) {
		group.Go(func() {
			tick := time.NewTicker(pause)
			defer tick.Stop()
			for ctx.Err() == nil {
				do(ctx)
				select {
				case <-ctx.Done():
				case <-tick.C:
				}
			}
		})
	}
	repeat(pause, o.change)
	repeat(creationRate, o.createGateway)
	repeat(creationRate, o.probe)
	repeat(pause, func(context.Context) {
		if memory, err := o.process().Memory(); err == nil { // the end of the operator is reported elsewhere
			o.note(func(s *sample) { s.peak = max(s.peak, memory) })
		}
	})
	return func() { cancel(); group.Wait() }
}

func (o *others) note(change func(*sample)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change(&o.now)
}

// take returns the measurements since the last call.
func (o *others) take() sample {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.now
	o.now = sample{}
	return s
}

// changed waits until others have made a number of further changes, or until the operator or ctx has ended.
func (o *others) changed(ctx context.Context, number int) {
	for range number {
		o.mu.Lock()
		one := o.one
		o.mu.Unlock()
		select {
		case <-one:
		case <-o.process().Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// change moves the endpoint of a tenant, and waits until its dataplane has it.
func (o *others) change(ctx context.Context) {
	o.turn++
	tenant := o.turn % tenants
	address := fmt.Sprintf("%q", fmt.Sprintf("10.%d.%d.%d", tenant+1, o.turn/250%250+1, o.turn%250+1))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lost)
	defer cancel()
	defer context.AfterFunc(o.ended(), cancel)()
	if err := o.Patch(ctx, namespaceOf(tenant), "endpointslice/media", types.JSONPatchType,
		`[{"op":"replace","path":"/endpoints/0/addresses/0","value":`+address+`}]`); err != nil {
		return // the API server is overloaded, and the operator does not receive the change
	}
	s, err := o.readers[tenant].Await(ctx, func(s reader.State) bool { return bytes.Contains(s.Last.Data, []byte(address)) })
	var took time.Duration
	if err == nil {
		took, err = o.since(ctx, address, s.Last.At)
	}
	o.note(func(now *sample) {
		if err != nil {
			now.lost = append(now.lost, err.Error())
		} else {
			now.changes = append(now.changes, took)
		}
		close(o.one)
		o.one = make(chan struct{})
	})
}

// receipt is the time at which the test has received a change from the API server, and how long the operator and the
// API server had waited for a processor until then.
type receipt struct {
	at               time.Time
	operator, server harness.Delays
}

// since returns the time from the receipt of a change until it has taken effect. It does not include the time in which
// other processes of the machine have kept the operator or the API server from running.
func (o *others) since(ctx context.Context, change string, effect time.Time) (time.Duration, error) {
	r, err := o.received(ctx, change)
	if err != nil {
		return 0, err
	}
	waited := max(o.process().Delays().Since(r.operator), o.Server().Delays().Since(r.server))
	return max(0, effect.Sub(r.at)-o.stalls.Stalled(r.at, effect)-waited), nil
}

// record records when the test receives changes of others from the API server. A change that the API server delivers
// late is not a delay of the operator.
func (o *others) record(ctx context.Context) {
	for i := range tenants {
		go o.watch(ctx, "/apis/discovery.k8s.io/v1/namespaces/"+namespaceOf(i)+"/endpointslices", func(e event) string {
			if len(e.Object.Endpoints) == 0 {
				return ""
			}
			return fmt.Sprintf("%q", e.Object.Endpoints[0].Addresses[0])
		})
	}
	go o.watch(ctx, "/apis/gateway.networking.k8s.io/v1/namespaces/"+young+"/gateways", func(e event) string { return "gateway " + e.Object.Metadata.Name })
	go o.watch(ctx, "/api/v1/namespaces/"+young+"/services", func(e event) string { return "service " + e.Object.Metadata.Name })
}

type event struct {
	Object struct {
		Metadata  struct{ Name string }
		Endpoints []struct{ Addresses []string }
	}
}

// watch records the first event of each name until ctx ends.
func (o *others) watch(ctx context.Context, path string, name func(event) string) {
	for ctx.Err() == nil {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, o.Admin.Config.Host+path+"?watch=true", nil)
		if err != nil {
			return
		}
		response, err := o.client.Do(request)
		if err != nil {
			continue
		}
		for decoder := json.NewDecoder(response.Body); ; {
			var e event
			if err := decoder.Decode(&e); err != nil {
				break
			}
			r, name := &receipt{at: time.Now(), operator: o.process().Delays(), server: o.Server().Delays()}, name(e)
			o.note(func(*sample) {
				if o.seen[name] == nil {
					o.seen[name] = r
				}
			})
		}
		response.Body.Close()
	}
}

// received waits until a watch of the test has received a change.
func (o *others) received(ctx context.Context, name string) (r *receipt, err error) {
	err = harness.Until(ctx, func(context.Context) error {
		o.note(func(*sample) { r = o.seen[name] })
		if r == nil {
			return fmt.Errorf("there is no %s", name)
		}
		select {
		case <-o.process().Done():
			return harness.Final(errors.New("the operator has ended"))
		default:
			return nil
		}
	})
	return r, err
}

// ended returns a context that ends with the operator.
func (o *others) ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	done := o.process().Done()
	go func() { <-done; cancel() }()
	return ctx
}

// createGateway creates a Gateway and waits for its Service. At the same time it creates another Service itself, and
// records how much later the Service of the operator was there, because the API server may be slow. If the Service of
// the test is not there in time, the result is not counted.
func (o *others) createGateway(ctx context.Context) {
	o.creations++
	gateway, control := fmt.Sprintf("gateway-%d", o.creations), fmt.Sprintf("control-%d", o.creations)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lost)
	defer cancel()
	err := o.Apply(ctx, young, fmt.Sprintf(`{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: %s},
  spec: {gatewayClassName: turn, listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]}}`, gateway))
	if err != nil {
		return // the API server is overloaded
	}
	until := func(service string) (took time.Duration, err error) {
		r, err := o.received(ctx, "service "+service)
		if err != nil {
			return 0, err
		}
		return o.since(ctx, "gateway "+gateway, r.at)
	}
	var write time.Duration
	var overloaded error
	var writes sync.WaitGroup
	writes.Go(func() {
		if overloaded = o.Apply(ctx, young, fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: %s},
  spec: {type: LoadBalancer, ports: [{name: udp, port: 3478, protocol: UDP}]}}`, control)); overloaded == nil {
			write, overloaded = until(control)
		}
	})
	took, err := until(gateway)
	writes.Wait()
	o.note(func(now *sample) {
		switch {
		case err == nil:
			now.creations, now.writes = append(now.creations, max(0, took-write)), append(now.writes, write)
		case overloaded == nil:
			now.lost = append(now.lost, fmt.Sprintf("new Gateway %s: %v", gateway, err))
		}
	})
	for _, object := range []string{"gateway/" + gateway, "service/" + control} { // clear deletes the remaining objects
		_ = o.Delete(context.WithoutCancel(ctx), young, object)
	}
}

// probe probes the readiness, as kubelet does.
func (o *others) probe(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lost)
	defer cancel()
	begun := time.Now()
	code, body, err := harness.Get(ctx, "http://"+o.health+"/ready")
	took := o.stalls.Since(begun)
	switch {
	case err != nil:
	case code != http.StatusOK:
		err = fmt.Errorf("status %d: %.100s", code, body)
	case took > probeTimeout:
		err = fmt.Errorf("response after %s", took.Round(time.Millisecond))
	}
	if err != nil {
		o.note(func(s *sample) { s.unready = append(s.unready, err.Error()) })
	}
}

// clear deletes the objects of a namespace, including those that the operator has generated: no garbage collector runs.
func (a *apiServer) clear(ctx context.Context, namespace string) error {
	var errs []error
	for _, resource := range []string{
		"apis/gateway.networking.k8s.io/v1 gateways udproutes referencegrants",
		"apis/stunner.l7mp.io/v1 udproutes gatewayconfigs staticservices revocations",
		"apis/keda.sh/v1alpha1 scaledobjects triggerauthentications",
		"apis/apps/v1 deployments daemonsets", "apis/networking.k8s.io/v1 networkpolicies",
		"apis/policy/v1 poddisruptionbudgets", "api/v1 services secrets configmaps pods",
		"apis/discovery.k8s.io/v1 endpointslices",
	} {
		words := strings.Fields(resource)
		for _, plural := range words[1:] {
			path := fmt.Sprintf("/%s/namespaces/%s/%s?gracePeriodSeconds=0", words[0], namespace, plural)
			if err := harness.Until(ctx, func(ctx context.Context) error { // hundreds of MB at once can take too long
				return a.send(ctx, http.MethodDelete, path, nil)
			}); err != nil {
				errs = append(errs, fmt.Errorf("delete %s of %s: %w", plural, namespace, err))
			}
		}
	}
	return errors.Join(errs...)
}
