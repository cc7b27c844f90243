// Package collect reads the input of a diagnosis: objects from the API server, answers of the operator and of the pods,
// and clocks. It reads with the rights of the user, and never reads Secrets.
package collect

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/connect"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/diagnose"
)

// parallel is the maximum number of concurrent requests.
const parallel = 8

// maxAsked is the maximum number of Gateways whose pods are asked.
const maxAsked = 500

// Options select the objects and answers to read.
type Options struct {
	// Answers is the connection to the operator.
	Answers connect.Source
	// Objects is the source of objects; nil means that there are none.
	Objects connect.Source
	// Gateway is the only diagnosed Gateway. The zero value means all Gateways of Namespace.
	Gateway types.NamespacedName
	// Namespace limits the Gateways; empty means all namespaces.
	Namespace string
	// OperatorNamespace is the namespace of the operator; empty means that collect searches for it.
	OperatorNamespace string
	// ControllerName is the controller name of the operator; empty means any name of the product.
	ControllerName string
	// Installation also reads the objects that all Gateways share.
	Installation bool
	Asked        diagnose.Asked
	// Now returns the time of this machine.
	Now func() time.Time
}

// reader collects the parts of a snapshot.
type reader struct {
	Options
	cluster *connect.Cluster

	mu sync.Mutex
	s  *diagnose.Snapshot
}

// Snapshot reads a snapshot. Objects and answers that cannot be read are listed in the snapshot. They are no error,
// unless ctx ends.
func Snapshot(ctx context.Context, o Options) (*diagnose.Snapshot, error) {
	r := &reader{Options: o, s: &diagnose.Snapshot{Now: o.Now(), Asked: o.Asked, Live: map[string]*diagnose.Live{}}}
	r.s.OperatorNamespace, r.s.ControllerName = o.OperatorNamespace, o.ControllerName
	var err error
	switch source := o.Objects.(type) {
	case nil:
		r.s.Remote = true
	case *connect.Cluster:
		r.cluster = source
		err = r.readCluster(ctx)
	default:
		r.s.Folder = true
		err = r.readFolder(ctx)
	}
	if err != nil {
		return nil, err
	}
	r.ask(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return r.s, nil
}

// readFolder reads the statuses in the output folder of a file provider.
func (r *reader) readFolder(ctx context.Context) error {
	var kinds []schema.GroupKind
	for _, k := range slices.Concat(diagnose.ClusterKinds, diagnose.RoutingKinds) {
		kinds = append(kinds, schema.GroupKind{Group: k.Group, Kind: k.Kind})
	}
	found, err := r.Objects.Objects(ctx, "", kinds...)
	r.s.Objects = found.Items
	addresses, _ := net.InterfaceAddrs() // without the addresses, the rule that needs them has no finding
	for _, a := range addresses {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			r.s.HostAddresses = append(r.s.HostAddresses, prefix.Addr())
		}
	}
	return err
}

// readCluster reads objects in three steps, because the namespaces of the later steps are in the objects of the first.
func (r *reader) readCluster(ctx context.Context) error {
	var all errgroup.Group
	all.SetLimit(parallel)
	wanted := cmp.Or(r.Gateway.Namespace, r.Namespace)
	for _, k := range diagnose.ClusterKinds {
		all.Go(func() error { r.read(ctx, k, ""); return nil })
	}
	for _, k := range diagnose.RoutingKinds {
		all.Go(func() error { r.readAll(ctx, k, wanted); return nil })
	}
	if r.Installation {
		for _, k := range diagnose.InstallationKinds {
			all.Go(func() error { r.read(ctx, k, ""); return nil })
		}
		for _, k := range diagnose.SystemKinds {
			all.Go(func() error { r.read(ctx, k, diagnose.SystemNamespace); return nil })
		}
		all.Go(func() error { r.readServed(); return nil })
	}
	all.Go(func() error { r.readClock(ctx); return nil })
	all.Go(func() error { r.findOperator(ctx); return nil })
	_ = all.Wait()

	gateways, backends := r.namespaces()
	for namespace := range gateways {
		for _, k := range slices.Concat(diagnose.GatewayKinds, diagnose.BackendKinds) {
			all.Go(func() error { r.read(ctx, k, namespace); return nil })
		}
	}
	for namespace := range backends {
		for _, k := range diagnose.BackendKinds {
			all.Go(func() error { r.read(ctx, k, namespace); return nil })
		}
	}
	if r.Installation {
		shared := map[string]bool{r.s.OperatorNamespace: true}
		for _, reader := range r.s.Readers {
			namespace, account, _ := strings.Cut(reader, "/")
			shared[namespace] = true
			all.Go(func() error { r.readPodsOf(ctx, namespace, account); return nil })
		}
		for namespace := range shared {
			for _, k := range diagnose.OperatorKinds {
				if !gateways[namespace] && (!backends[namespace] || k.Kind == "Pod") {
					all.Go(func() error { r.read(ctx, k, namespace); return nil })
				}
			}
		}
	}
	_ = all.Wait()
	slices.SortStableFunc(r.s.Objects, func(a, b unstructured.Unstructured) int {
		return cmp.Or(
			cmp.Compare(a.GetKind(), b.GetKind()), cmp.Compare(a.GetNamespace(), b.GetNamespace()),
			cmp.Compare(a.GetName(), b.GetName()),
		)
	})
	r.s.Objects = slices.CompactFunc(r.s.Objects, func(a, b unstructured.Unstructured) bool { // pods are read twice
		return a.GetUID() != "" && a.GetUID() == b.GetUID()
	})
	slices.SortFunc(r.s.Unreadable, func(a, b diagnose.Unreadable) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace))
	})
	return ctx.Err()
}

// selects reports whether a Gateway is diagnosed.
func (r *reader) selects(gateway types.NamespacedName) bool {
	if r.Gateway.Name != "" {
		return gateway == r.Gateway
	}
	return r.Namespace == "" || gateway.Namespace == r.Namespace
}

// namespaces returns the namespaces of the diagnosed Gateways, and the other namespaces with backends of routes.
func (r *reader) namespaces() (gateways, backends map[string]bool) {
	gateways, backends = map[string]bool{}, map[string]bool{}
	for _, o := range r.s.Objects {
		if o.GetKind() == "Gateway" && r.selects(types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}) {
			gateways[o.GetNamespace()] = true
		}
	}
	for _, o := range r.s.Objects {
		if o.GetKind() != "UDPRoute" {
			continue
		}
		rules, _, _ := unstructured.NestedSlice(o.Object, "spec", "rules")
		for _, rule := range rules {
			rule, _ := rule.(map[string]any)
			refs, _, _ := unstructured.NestedSlice(rule, "backendRefs")
			for _, backend := range refs {
				backend, _ := backend.(map[string]any)
				namespace, _ := backend["namespace"].(string)
				backends[cmp.Or(namespace, o.GetNamespace())] = true
			}
		}
	}
	maps.DeleteFunc(backends, func(namespace string, _ bool) bool { return gateways[namespace] })
	return gateways, backends
}

// readAll reads a kind in all namespaces. If the user may not do this, it reads the wanted namespace.
func (r *reader) readAll(ctx context.Context, k diagnose.Kind, wanted string) {
	items, err := r.list(ctx, k, "", metav1.ListOptions{})
	if apierrors.IsForbidden(err) && wanted != "" {
		r.missing(k, diagnose.Unreadable{Except: wanted}, "-A", err)
		r.read(ctx, k, wanted)
		return
	}
	r.add(k, "", items, err)
}

// read reads a kind in a namespace, or a kind without namespaces.
func (r *reader) read(ctx context.Context, k diagnose.Kind, namespace string) {
	if len(k.Names) == 0 {
		var options metav1.ListOptions
		if k.Kind == "Pod" {
			options.LabelSelector = fmt.Sprintf("app in (stunner, %s, %s)", r.s.OperatorApp, r.s.AuthApp)
		}
		items, err := r.list(ctx, k, namespace, options)
		r.add(k, namespace, items, err)
		return
	}
	for _, name := range k.Names {
		o, err := r.in(k, namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			r.add(k, namespace, nil, err)
			return
		}
		r.add(k, namespace, []unstructured.Unstructured{*o}, nil)
	}
}

// readPodsOf reads the pods of an account.
func (r *reader) readPodsOf(ctx context.Context, namespace, account string) {
	pods := diagnose.OperatorKinds[0]
	items, err := r.list(ctx, pods, namespace, metav1.ListOptions{FieldSelector: "spec.serviceAccountName=" + account})
	r.add(pods, namespace, items, err)
}

func (r *reader) in(k diagnose.Kind, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return r.cluster.Dynamic.Resource(k.GroupVersionResource)
	}
	return r.cluster.Dynamic.Resource(k.GroupVersionResource).Namespace(namespace)
}

func (r *reader) list(
	ctx context.Context,
	k diagnose.Kind,
	namespace string,
	options metav1.ListOptions,
) (items []unstructured.Unstructured, err error) {
	from := r.in(k, namespace)
	pages := pager.New(
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return from.List(ctx, o) },
	)
	err = pages.EachListItem(ctx, options, func(o runtime.Object) error {
		items = append(items, *o.(*unstructured.Unstructured))
		return nil
	})
	return items, err
}

// add adds objects to the snapshot, or the reason why there are none. A kind that is not served has no objects, which
// is not an error.
func (r *reader) add(k diagnose.Kind, namespace string, items []unstructured.Unstructured, err error) {
	if err != nil && !apierrors.IsNotFound(err) {
		where := ""
		if namespace != "" {
			where = "-n " + namespace
		}
		r.missing(k, diagnose.Unreadable{Namespace: namespace}, where, err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range items { // items of a list have no kind of their own
		items[i].SetKind(k.Kind)
		items[i].SetAPIVersion(k.GroupVersion().String())
		if k.Kind != "CustomResourceDefinition" {
			items[i].SetManagedFields(nil)
		}
	}
	r.s.Objects = append(r.s.Objects, items...)
}

func (r *reader) missing(k diagnose.Kind, u diagnose.Unreadable, where string, err error) {
	u.Kind, u.Reason = k.Kind, err.Error()
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		u.Right = strings.TrimSpace("list " + k.GroupResource().String() + " " + where)
		if len(k.Names) > 0 {
			u.Right = strings.TrimSpace("get " + k.GroupResource().String() + " " + where)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.s.Unreadable = append(r.s.Unreadable, u)
}

// readServed reads which resources the API server serves in the groups of the product.
func (r *reader) readServed() {
	for _, version := range []string{"gateway.networking.k8s.io/v1", "stunner.l7mp.io/v1"} {
		resources, err := r.cluster.Client.Discovery().ServerResourcesForGroupVersion(version)
		if err != nil && !apierrors.IsNotFound(err) {
			return // the served resources stay unknown
		}
		r.mu.Lock()
		r.s.Served = append(r.s.Served, version+"/") // so that a version without resources is listed too
		if err == nil {
			for _, one := range resources.APIResources {
				r.s.Served = append(r.s.Served, version+"/"+one.Name)
			}
		}
		r.mu.Unlock()
	}
}

// readClock reads the clock of the API server from the header Date of an answer.
func (r *reader) readClock(ctx context.Context) {
	client, err := rest.HTTPClientFor(r.cluster.Config)
	if err != nil {
		return
	}
	base, _, err := rest.DefaultServerUrlFor(r.cluster.Config)
	if err != nil {
		return
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("version").String(), http.NoBody)
	if err != nil {
		return
	}
	sent := r.Now()
	answer, err := client.Do(request)
	if err != nil {
		return
	}
	defer func() { _ = answer.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 1<<16))
	if at, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		r.clock("API server", at, sent)
	}
}

// clock adds a clock that was read between the time sent and now.
func (r *reader) clock(of string, at, sent time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.s.Clocks = append(r.s.Clocks, diagnose.Clock{Of: of, Time: at, At: sent.Add(r.Now().Sub(sent) / 2)})
	slices.SortFunc(r.s.Clocks, func(a, b diagnose.Clock) int { return cmp.Compare(a.Of, b.Of) })
}

// findOperator finds the names of the installation. If it is not found, nothing is known about the objects in the
// namespace of the documentation.
func (r *reader) findOperator(ctx context.Context) {
	found, err := r.cluster.Installation(ctx, r.OperatorNamespace)
	r.mu.Lock()
	defer r.mu.Unlock()
	if u := (*connect.Unreached)(nil); errors.As(err, &u) && !u.Denied {
		for _, k := range diagnose.OperatorKinds { // the finding about the connection has the reason
			r.s.Unreadable = append(r.s.Unreadable, diagnose.Unreadable{Kind: k.Kind, Namespace: found.Namespace})
		}
	}
	r.s.OperatorNamespace, r.s.OperatorApp, r.s.AuthApp = found.Namespace, found.Operator, found.Auth
	r.s.Readers = found.Readers
}

// ask requests the state of the operator and of the diagnosed Gateways from the operator.
func (r *reader) ask(ctx context.Context) {
	if r.Answers == nil {
		return
	}
	sent := r.Now()
	about := &diagnose.Operator{}
	err := r.Answers.Get(ctx, "/api/v1/operator", about)
	if folder, ok := r.Answers.(*connect.Folder); ok && err == nil {
		err = folder.IsOf(about.Output)
	}
	switch status := connect.StatusOf(err); {
	case err == nil:
		r.s.Operator = about
		if !about.Now.IsZero() {
			r.clock("operator", about.Now, sent)
		}
	case status == 0:
		problem, remedy, denied := connect.Split(err)
		r.s.Unreached = &diagnose.Unreached{Problem: problem, Remedy: remedy, Denied: denied}
		return
	case status != http.StatusForbidden: // a user with rights in one namespace may not read the state of the operator
		r.s.OperatorError = err.Error()
	}
	var gateways []types.NamespacedName
	for _, o := range r.s.Objects {
		if name := (types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}); o.GetKind() == "Gateway" &&
			r.selects(name) {
			gateways = append(gateways, name)
		}
	}
	if r.s.Remote {
		gateways = []types.NamespacedName{r.Gateway}
	}
	var all errgroup.Group
	all.SetLimit(parallel / 2) // the operator limits the concurrent requests of one address
	for _, gateway := range gateways[:min(len(gateways), maxAsked)] {
		live := &diagnose.Live{Errors: map[string]string{}}
		r.s.Live[gateway.String()] = live
		all.Go(func() error { r.askGateway(ctx, gateway, live); return nil })
	}
	_ = all.Wait()
	if r.Installation {
		r.askAuth(ctx)
	}
}

// askAuth requests the state of the auth services. It runs after the configs of the Gateways were read, because the
// state is compared with them.
func (r *reader) askAuth(ctx context.Context) {
	sent := r.Now()
	var list inspection.List
	err := r.Answers.Get(ctx, "/api/v1/auth", &list)
	switch connect.StatusOf(err) {
	case 0:
		if err != nil {
			r.s.AuthError = err.Error()
			return
		}
	case http.StatusForbidden: // a user with rights in one namespace may not see the auth service
		r.s.AuthError = "needs list on gateways in all namespaces"
		return
	case http.StatusNotFound:
		r.s.AuthError = "the operator is of an older release"
		return
	default:
		r.s.AuthError = err.Error()
		return
	}
	r.s.Auth = &list
	for _, item := range list.Items {
		var status inspection.AuthStatus
		if json.Unmarshal(item.Body, &status) == nil && !status.Now.IsZero() {
			r.clock("auth service "+item.Pod, status.Now, sent)
		}
	}
}

// askGateway asks about one Gateway.
func (r *reader) askGateway(ctx context.Context, gateway types.NamespacedName, live *diagnose.Live) {
	selected := url.Values{}
	if r.Asked.User != "" {
		selected.Set("user", r.Asked.User)
	}
	if r.Asked.Client != "" {
		selected.Set("client", r.Asked.Client)
	}
	recent := maps.Clone(selected)
	recent.Set("since", "10m")
	requests := []struct {
		path  string
		query url.Values
		into  **inspection.List
		wants bool
	}{
		{"status", nil, &live.Status, true},
		{"refusals", recent, &live.Refusals, true},
		{"sessions", selected, &live.Sessions, len(selected) > 0},
		{"reach", url.Values{"peer": {r.Asked.Peer}}, &live.Reach, r.Asked.Peer != ""},
		{"grants", url.Values{"user": {r.Asked.User}}, &live.Grants, r.Asked.User != ""},
	}
	for _, one := range requests {
		if !one.wants {
			continue
		}
		sent := r.Now()
		list, err := r.Answers.Ask(ctx, connect.Request{Gateway: gateway, Path: one.path, Query: one.query})
		if err != nil {
			live.Errors[one.path] = err.Error()
			continue
		}
		*one.into = &list
		if one.path == "status" {
			live.AskedAt = sent.Add(r.Now().Sub(sent) / 2)
		}
	}
	config := &diagnose.Published{}
	path := fmt.Sprintf(
		"/api/v1/gateways/%s/%s/config",
		url.PathEscape(gateway.Namespace),
		url.PathEscape(gateway.Name),
	)
	if err := r.Answers.Get(ctx, path, config); err != nil {
		live.Errors["config"] = err.Error()
		return
	}
	live.Config = config
}
