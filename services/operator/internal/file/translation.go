package file

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/lint"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// translation is the result of translating all objects of the input folder that are in use.
type translation struct {
	view     *resource.View
	options  translate.Options
	gateways []translate.Result
	others   []resource.Object // of other kinds, written to the output folder unchanged
	// failed are the objects whose translation panics. Their config, generated objects and status stay as they are.
	failed map[translate.ObjectRef]bool
}

// contain calls a function that translates an object. It returns false if the function panics.
func (l *loop) contain(t *translation, ref translate.ObjectRef, f func()) bool {
	if translate.Contain(l.Log, ref, f) {
		return true
	}
	t.failed[ref] = true
	l.summary.addFailed(ref)
	return false
}

// translateGateway translates a Gateway. If the translation panics, the result is that of a Gateway with a problem.
func (l *loop) translateGateway(t *translation, key types.NamespacedName) translate.Result {
	ref := gatewayRef(key)
	opt := t.options
	if opt.Published = l.lastPublished(key); opt.Published == nil {
		opt.Previous = l.saved.Listeners[key.String()]
	}
	var out translate.Outcome
	if t.failed[ref] || !l.contain(t, ref, func() { out = l.translateObject(ref, t.view, opt) }) {
		r := translate.Result{Key: key, Decision: translate.Held}
		l.contain(t, ref, func() { r.Revoked = translate.Revoked(t.view, key, opt) })
		return r
	}
	return *out.Gateway
}

func gatewayRef(key types.NamespacedName) translate.ObjectRef {
	return translate.ObjectRef{Kind: translate.KindGateway, NamespacedName: key}
}

// translate translates the objects in r.objects for dataplanes on this host.
func (l *loop) translate(r reading, now time.Time) (t translation, err error) {
	t.options, t.failed = l.Options, map[translate.ObjectRef]bool{}
	t.options.Now = metav1.NewTime(now)
	objects := make([]resource.Object, 0, len(r.objects))
	for _, o := range r.objects {
		if other, ok := o.Object.(*unstructured.Unstructured); ok {
			t.others = append(t.others, other)
			continue
		}
		objects = append(objects, l.withStatus(o.Object))
	}
	if !l.serves() {
		for _, o := range lint.Supplied(objects, t.options) {
			objects = append(objects, o.Object)
		}
	}
	t.view = resource.NewView(objects)
	var all []claim
	claimed, unclaimed := map[string]bool{}, map[string]bool{}
	for _, key := range t.view.Gateways() {
		var sockets []translate.Socket
		decision := translate.Classless
		l.contain(&t, gatewayRef(key), func() { sockets, decision = l.sockets(t.view, key, t.options) })
		switch decision {
		case translate.Served:
			all = append(all, claims(key, sockets)...)
			claimed[key.String()] = true
		case translate.Classless:
			unclaimed[key.String()] = true
		}
	}
	// Some Gateways have no claims, but must keep their ports: a Gateway without a class, a Gateway whose translation
	// panics, and a Gateway that cannot be read. Without dataplanes, the operator binds no port, so a port stays
	// assigned even if another program uses it.
	holds := func(gateway string) bool {
		return l.Stunnerd == "" && claimed[gateway] || unclaimed[gateway] || l.dataplanes.HoldsPorts(gateway) ||
			r.isGatewayMissing(gateway)
	}
	l.ports.published = l.publishedSockets(t.view)
	if err := l.ports.assign(all, holds); err != nil {
		return t, err
	}
	t.view = t.view.WithHost(l.ports.host(l.Addresses, all))
	for _, key := range append(t.view.Gateways(), l.removedGateways(t.view)...) {
		r := l.translateGateway(&t, key)
		if t.gateways = append(t.gateways, r); r.OverBudget != nil {
			t.view.Put(r.OverBudget)
		}
		l.meters.translations.Inc()
	}
	return t, nil
}

// publishedSockets returns the sockets of listeners in the published configs of all Gateways that are not removed.
func (l *loop) publishedSockets(v *resource.View) map[socket]types.NamespacedName {
	sockets, removed := map[socket]types.NamespacedName{}, l.removedGateways(v)
	for _, key := range l.servedGateways() {
		c := l.lastPublished(key)
		if c == nil || slices.Contains(removed, key) {
			continue
		}
		for _, listener := range c.Listeners {
			sockets[socket{listener.Protocol.Network(), listener.Port}] = key
		}
	}
	return sockets
}

// apply applies the result of translating one Gateway according to the decision.
func (l *loop) apply(t translation, r translate.Result) error {
	v, see := t.view, "see the conditions"
	if t.failed[gatewayRef(r.Key)] {
		see = "its translation failed, see the log"
	}
	l.summary.note(r.Key, condition.Messages(r.Notes)...)
	switch r.Decision {
	case translate.Served:
		return l.serve(r.Key, r)
	case translate.Held:
		l.keep(r.Key, "config and objects stay as they are: "+see)
		return l.revoke(r)
	case translate.Classless:
		l.keep(r.Key, "GatewayClass "+className(v, r.Key)+" does not exist: config and objects stay as they are")
		return l.revoke(r)
	case translate.Foreign:
		l.withdraw(r.Key, "its class "+className(v, r.Key)+" belongs to another controller")
	case translate.Gone:
		l.withdraw(r.Key, "it is gone from the YAML")
	}
	return nil
}

func className(v *resource.View, gateway types.NamespacedName) string {
	return string(v.Gateway(gateway).Spec.GatewayClassName)
}

// serve publishes the config of a Gateway, then starts or stops the dataplane process, then writes the generated
// objects.
func (l *loop) serve(key types.NamespacedName, r translate.Result) error {
	errs := []error{l.publish(key, r)}
	if r.Managed() {
		l.dataplanes.SetRelayPorts(key, relayPorts(r.RelayPorts))
		if l.current(key) != nil || l.dataplanes.HasLastGood(key) {
			l.dataplanes.Ensure(key)
		}
	} else {
		l.dataplanes.Remove(key)
	}
	for _, o := range r.ObjectsWith(l.current(key)) {
		errs = append(errs, l.writeObject(o))
	}
	return errors.Join(errs...)
}

// relayPorts formats a range of relay ports as stunnerd expects it; empty if all ports may be used.
func relayPorts(r config.PortRange) string {
	if r.First <= config.LowestRelayPort && r.Last == math.MaxUint16 {
		return ""
	}
	return r.String()
}

// keep keeps the config, the objects and the dataplane process of a Gateway unchanged. why is the note for the report.
func (l *loop) keep(key types.NamespacedName, why string) {
	l.summary.keepObjects = true
	l.summary.note(key, why)
	l.restore(key)
	l.ensureProcess(key)
}

// ensureProcess starts a dataplane process for a Gateway with a problem if none is running. It starts none if neither
// this run nor the previous one has started one, because the operator does not manage the dataplane of every Gateway.
func (l *loop) ensureProcess(key types.NamespacedName) {
	if l.dataplanes.HasLastGood(key) {
		l.dataplanes.Ensure(key)
	}
}

// lastPublished returns the config that this process has published for a Gateway. Without one, it returns the config of
// the previous run, or nil.
func (l *loop) lastPublished(key types.NamespacedName) *config.Config {
	if c := l.current(key); c != nil {
		return c
	}
	c, err := l.stored(key)
	if err != nil {
		l.summary.note(key, err.Error())
	}
	return c
}

// restore publishes the config of the previous run, unless this process has published one.
func (l *loop) restore(key types.NamespacedName) {
	c := l.lastPublished(key)
	if c == nil || l.current(key) != nil {
		return
	}
	revision := c.Revision()
	l.history.add(key, "restores config "+revision+" of the previous run")
	l.Log.Info("restores the config of the previous run", "gateway", key, "revision", revision)
	l.published[key], l.restored[key] = *c, true
	l.server.Publish(*c)
}

// unpublished returns the ids of the Gateways that need a config and have none.
func (l *loop) unpublished(t translation) (ids []string) {
	for _, r := range t.gateways {
		before := l.saved.Published[r.Key.String()] != ""
		if !r.Decision.Ends() && (r.Decision.Ours() || before) && l.current(r.Key) == nil {
			ids = append(ids, r.Key.String())
		}
	}
	for _, key := range l.servedGateways() {
		if l.summary.isGatewayMissing(key.String()) && l.current(key) == nil {
			ids = append(ids, key.String())
		}
	}
	return ids
}

// current returns the config that this process has published for a Gateway, or nil.
func (l *loop) current(key types.NamespacedName) *config.Config {
	if c, ok := l.published[key]; ok {
		return &c
	}
	return nil
}

// publish publishes the config of a Gateway, unless publishProblem returns a reason against it. It returns an error if
// the config cannot be stored for the next run.
func (l *loop) publish(key types.NamespacedName, r translate.Result) error {
	if why := l.publishProblem(r, *r.Config); why != "" {
		l.summary.note(key, why)
		l.restore(key)
		return l.addRevocations(key, r.Config.Auth.Revocations)
	}
	delete(l.restored, key)
	return l.replace(key, *r.Config)
}

// revoke publishes translate.Result.Revoked, if there is one.
func (l *loop) revoke(r translate.Result) error {
	if r.Revoked == nil || l.current(r.Key) == nil {
		return nil
	}
	return l.replace(r.Key, *r.Revoked)
}

// addRevocations adds revocations to the config of the previous run, which stays in force while objects cannot be read.
// It removes none, because the objects that cannot be read may be Revocations.
func (l *loop) addRevocations(key types.NamespacedName, more []credential.Revocation) error {
	current := l.current(key)
	if current == nil || len(more) == 0 {
		return nil
	}
	next := current.Clone()
	next.Auth.Revocations = credential.MergeRevocations(append(next.Auth.Revocations, more...))
	if next.Validate() != nil { // the union exceeds the maximum
		return nil
	}
	return l.replace(key, next)
}

// replace publishes a config unless it is in force, and stores it for the next run.
func (l *loop) replace(key types.NamespacedName, next config.Config) error {
	old := l.current(key)
	revision := next.Revision()
	if old != nil && old.Revision() == revision {
		return l.store(key, next)
	}
	if old != nil {
		for _, change := range config.Diff(*old, next) {
			l.history.add(key, change.String())
		}
	}
	l.history.add(key, "publishes config "+revision)
	l.Log.Info("publishes config", "gateway", key, "revision", revision)
	l.published[key] = next.Clone()
	l.saved.publish(next)
	l.server.Publish(next)
	return l.store(key, next)
}

// publishProblem returns the reason why the config of a Gateway must not be published, or "".
//
// After a restart of the operator, the dataplane still serves the config that the previous run published. The new
// config must not lack parts of it only because objects cannot be read now.
func (l *loop) publishProblem(r translate.Result, next config.Config) string {
	if err := next.Validate(); err != nil {
		return fmt.Sprintf("config is not published: %v", err)
	}
	name := r.Key.String()
	before := l.saved.Published[name]
	ours := l.current(r.Key) != nil && !l.restored[r.Key]
	if ours || before == "" || before == next.Revision() {
		return ""
	}
	if len(l.summary.missing) > 0 {
		return fmt.Sprintf(
			"config is not published: %s was in force before the operator started and cannot be read now; correct it",
			l.summary.missing[0])
	}
	return ""
}

// removedGateways returns the served Gateways that no file contains any more. A Gateway whose file cannot be read is
// not removed: ensureUnread keeps its process running.
func (l *loop) removedGateways(v *resource.View) []types.NamespacedName {
	return slices.DeleteFunc(l.servedGateways(), func(key types.NamespacedName) bool {
		return v.Gateway(key) != nil || l.summary.isGatewayMissing(key.String())
	})
}

// ensureUnread ensures the processes of the served Gateways whose file cannot be read.
func (l *loop) ensureUnread() {
	for _, key := range l.servedGateways() {
		if l.summary.isGatewayMissing(key.String()) {
			l.restore(key)
			l.ensureProcess(key)
		}
	}
}

// servedGateways returns the Gateways that this run or the previous run of the operator has served.
func (l *loop) servedGateways() []types.NamespacedName {
	keys := l.dataplanes.Gateways()
	for text := range l.saved.Published {
		namespace, name, _ := strings.Cut(text, "/")
		keys = append(keys, types.NamespacedName{Namespace: namespace, Name: name})
	}
	slices.SortFunc(keys, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(keys)
}

// withdraw deletes the config of a Gateway and stops its dataplane process. why is the reason, for the log.
func (l *loop) withdraw(key types.NamespacedName, why string) {
	if _, ok := l.published[key]; ok {
		l.server.Delete(key.String())
		delete(l.published, key)
		delete(l.restored, key)
		l.history.add(key, "config is withdrawn: "+why)
		l.Log.Info("withdraws config", "gateway", key, "why", why)
	}
	l.saved.withdraw(key.String())
	if err := os.Remove(l.publishedFile(key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.Log.Error("cannot remove the stored config of a Gateway", "gateway", key, "error", err)
	}
	l.dataplanes.Remove(key)
}
