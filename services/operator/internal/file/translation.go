package file

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// translation is the result of translating all objects of the folder that are in use.
type translation struct {
	view     *resource.View
	options  translate.Options
	gateways []translate.Result
	passed   []resource.Object // of other kinds, written to the output folder unchanged
}

// translate translates the objects in r.objects for dataplanes on this host.
func (l *loop) translate(r reading, now time.Time) (t translation, err error) {
	t.options = l.Options
	t.options.Now = metav1.NewTime(now)
	objects := make([]resource.Object, 0, len(r.objects))
	for _, o := range r.objects {
		if passed, ok := o.Object.(*unstructured.Unstructured); ok {
			t.passed = append(t.passed, passed)
			continue
		}
		objects = append(objects, l.withStatus(o.Object))
	}
	t.view = resource.NewView(objects)
	var all []claim
	claimed := map[string]bool{}
	for _, key := range t.view.Gateways() {
		if sockets, ours := translate.Sockets(t.view, key, t.options); ours {
			all = append(all, claims(key, sockets)...)
			claimed[key.String()] = true
		}
	}
	// A Gateway that cannot be read has no claims, but must keep its ports. Without dataplanes, no port is bound, so an
	// assignment stays even if another program uses the port.
	holds := func(gateway string) bool {
		return l.Stunnerd == "" && claimed[gateway] || l.planes.HoldsPorts(gateway) || r.missesGateway(gateway)
	}
	if err := l.ports.assign(all, holds); err != nil {
		return t, err
	}
	t.view = t.view.WithHost(l.ports.host(l.Address, all))
	for _, key := range t.view.Gateways() {
		opt := t.options
		if opt.Published = l.current(key); opt.Published == nil {
			opt.Previous.Listeners = l.memory.Listeners[key.String()]
		}
		r := translate.Gateway(t.view, key, opt)
		if t.gateways = append(t.gateways, r); r.OverBudget != nil {
			t.view.Put(r.OverBudget)
		}
		l.meters.translations.Inc()
	}
	return t, nil
}

// ours reports whether the class of a Gateway belongs to this operator.
func (l *loop) ours(v *resource.View, key types.NamespacedName) bool {
	class := v.Class(string(v.Gateway(key).Spec.GatewayClassName))
	return class != nil && string(class.Spec.ControllerName) == l.Options.ControllerName
}

// apply applies the result of translating one Gateway: it publishes the config, then starts or stops the process, then
// writes the generated objects.
func (l *loop) apply(v *resource.View, r translate.Result) error {
	key := r.Key
	if !r.Ours {
		l.disown(key, v)
		return nil
	}
	l.summary.note(key, r.Notes...)
	if r.Hold {
		l.summary.keepObjects = true
		l.summary.note(key, "config and objects stay as they are: see the conditions")
		l.resume(key)
		return nil
	}
	l.publish(key, r)
	if r.Managed() {
		l.planes.Relay(key, relayPorts(r.RelayPorts))
		l.resume(key)
	} else {
		l.planes.Drop(key)
	}
	var errs []error
	for _, o := range r.ObjectsWith(l.current(key)) {
		errs = append(errs, l.writeObject(o))
	}
	return errors.Join(errs...)
}

// relayPorts returns a port range in the format of stunnerd; empty if all ports may be used.
func relayPorts(r config.PortRange) string {
	if r.First <= config.LowestRelayPort && r.Last == math.MaxUint16 {
		return ""
	}
	return r.String()
}

// disown withdraws a Gateway whose class belongs to another controller. If the class does not exist, a Gateway that is
// served stays unchanged, because deleting a class by mistake must not end calls.
func (l *loop) disown(key types.NamespacedName, v *resource.View) {
	class := string(v.Gateway(key).Spec.GatewayClassName)
	switch {
	case v.Class(class) != nil:
		l.withdraw(key, "its class "+class+" belongs to another controller")
	case l.current(key) != nil || l.planes.Served(key):
		l.summary.keepObjects = true
		l.summary.note(key, "GatewayClass "+class+" does not exist: config and objects stay as they are")
		l.resume(key)
	}
}

// resume ensures that a Gateway has a process if it has a published config or the last good config of a previous
// process.
func (l *loop) resume(key types.NamespacedName) {
	if l.current(key) != nil || l.planes.Served(key) {
		l.planes.Ensure(key)
	}
}

// current returns the config that this process has published for a Gateway, or nil.
func (l *loop) current(key types.NamespacedName) *config.Config {
	if c, ok := l.published[key]; ok {
		return &c
	}
	return nil
}

// publish publishes a config, unless objection returns a reason against it.
func (l *loop) publish(key types.NamespacedName, r translate.Result) {
	old, next := l.current(key), r.Config
	if why := l.objection(r, old, *next); why != "" {
		l.summary.note(key, why)
		return
	}
	revision := next.Revision()
	if old != nil && old.Revision() == revision {
		return
	}
	if old != nil {
		for _, change := range config.Diff(*old, *next) {
			l.history.add(key, change.String())
		}
	}
	l.history.add(key, "publishes config "+revision)
	l.Log.Info("publishes config", "gateway", key, "revision", revision)
	l.published[key] = next.Clone()
	l.memory.publish(*next)
	l.server.Publish(*next)
}

// objection returns the reason why a config must not be published, or "".
//
// After a restart, the dataplane still serves the config that the previous run published. The new config must not
// contain less only because objects cannot be read now.
func (l *loop) objection(r translate.Result, old *config.Config, next config.Config) string {
	if err := next.Validate(); err != nil {
		return fmt.Sprintf("config is not published: %v", err)
	}
	name := r.Key.String()
	before := l.memory.Published[name]
	if old != nil || before == "" || before == next.Revision() {
		return ""
	}
	if len(l.summary.missing) > 0 {
		return fmt.Sprintf(
			"config is not published: %s was in force before the operator started and cannot be read now; mend it",
			l.summary.missing[0])
	}
	return ""
}

// retire withdraws the Gateways that no file contains. A Gateway that is missing because its file cannot be read stays.
func (l *loop) retire(v *resource.View) {
	for _, key := range l.known() {
		switch {
		case v.Gateway(key) != nil:
		case l.summary.missesGateway(key.String()):
			l.resume(key)
		default:
			l.withdraw(key, "it is gone from the YAML")
		}
	}
	l.planes.Reap()
}

// known returns the Gateways that this run or the previous one has served.
func (l *loop) known() []types.NamespacedName {
	keys := l.planes.Gateways()
	for text := range l.memory.Published {
		namespace, name, _ := strings.Cut(text, "/")
		keys = append(keys, types.NamespacedName{Namespace: namespace, Name: name})
	}
	slices.SortFunc(keys, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(keys)
}

// withdraw deletes the config of a Gateway and stops its process.
func (l *loop) withdraw(key types.NamespacedName, why string) {
	if _, ok := l.published[key]; ok {
		l.server.Delete(key.String())
		delete(l.published, key)
		l.history.add(key, "config is withdrawn: "+why)
		l.Log.Info("withdraws config", "gateway", key, "why", why)
	}
	l.memory.withdraw(key.String())
	l.planes.Drop(key)
}
