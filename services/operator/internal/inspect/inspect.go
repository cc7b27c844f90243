// Package inspect serves the inspection API of the operator: status, sessions, refusals, reachable peers, usage and
// grants of the pods of a Gateway, over the streams of config discovery that the pods keep open.
//
//	caller ─▶ limits ─▶ authorization ─┬▶ pods with a stream to this replica
//	                                   └▶ other replicas, with ?local=true ─▶ their pods
//
// A replica sends no further requests to other replicas because of a request with ?local=true, so requests do not loop.
// Requests between replicas use the replica's own token, never that of the caller.
//
// # Files
//
//	inspect.go limiter.go  paths and limits; openapi/inspection.yaml is the contract
//	request.go             parameters and errors
//	gateway.go             requests to pods
//	client.go              requests to other replicas
//
// Authorization of callers and problems of objects are in services/operator/internal/kube/inspection.go and
// services/operator/internal/file/inspection.go.
package inspect

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/api/ratelimit"
)

const (
	gatewaysPath = "/api/v1/gateways/"
	operatorPath = "/api/v1/operator"
	authPath     = "/api/v1/auth"
)

// Bounds of the load that callers can put on a replica.
const (
	// maxRequests is the number of requests in progress after authorization, without requests of other replicas.
	maxRequests = 20
	// maxPerNamespace is the number of such requests for Gateways of one namespace. Callers with rights in one
	// namespace can then not use up maxRequests or the memory of the replica.
	maxPerNamespace = 8
	// maxPerCaller is the number of such requests of one caller, whose pods may be slow.
	maxPerCaller = 4
	// maxUnknown is the number of requests in progress of one source address with an unknown credential, before
	// authorization.
	maxUnknown = 4
	// maxFromReplica is maxPerCaller for other replicas, and the number of requests with ?local=true.
	maxFromReplica = 2 * maxRequests
	// sourceRate and sourceBurst limit the requests of one source address, per second and at once, as for config
	// discovery, because a request with an unknown token causes a TokenReview. They do not apply to other replicas, nor
	// to known credentials at the loopback address, which users of kubectl port-forward share.
	sourceRate, sourceBurst = 10, 20
	// maxSources is the number of source addresses with a rate limit of their own at a time.
	maxSources = 10_000
)

const (
	// podTimeout is how long a replica waits for the answers of pods.
	podTimeout = 6 * time.Second
	// answerTimeout is how long the caller may take to read the answer. It replaces the write timeout of the server.
	answerTimeout = 30 * time.Second
)

// Pods are the pods that have a stream to this replica. discovery.Server implements it.
type Pods interface {
	// Ask sends a request to the pods of a Gateway and returns their answers.
	Ask(ctx context.Context, q discovery.Query) []discovery.Answer
	// Published returns the published config of a Gateway and its revision.
	Published(id string) (c config.Config, revision string, ok bool)
}

// Options configure an API.
type Options struct {
	Pods Pods
	// Authorize returns the name of the caller for logs. It returns an *Error if the caller may not make the request,
	// and an error that wraps discovery.ErrUndecided if that cannot be decided now.
	Authorize func(*http.Request, Attributes) (caller string, err error)
	// Running returns the running dataplanes of a Gateway by pod, each with the reason that is returned if no replica
	// has an answer of the dataplane. An error means that the dataplanes are not known. Nil means that there are none.
	Running func(id string) (reasons map[string]string, err error)
	// Replicas returns the URLs of the other replicas, without a path. Nil means that there are none.
	Replicas func() []string
	// Client sends requests to other replicas.
	Client Client
	// State returns the state of this replica, without Version and Now.
	State func() inspection.Operator
	// OnRefusal is called with the reason of every refusal, if not nil (see Refusals).
	OnRefusal func(reason string)
	// Version is the version of the operator.
	Version string
	Log     *slog.Logger
}

// Group is the API group of Attributes.
const Group = "gateway.networking.k8s.io"

// Attributes are the right that a request needs, in the terms of Kubernetes authorization.
type Attributes struct {
	Verb string
	// Resource is gateways, or gateways/SUBRESOURCE.
	Resource string
	// Namespace and Name identify the Gateway. Both are empty for all Gateways.
	Namespace, Name string
}

// UsageRight is the right to read the usage of users, without the Gateway. It is separate from the other rights because
// the answers contain the ids of users. The auth service has this right, because it creates these ids.
var UsageRight = Attributes{Verb: "get", Resource: "gateways/usage"}

// Is reports whether two rights are equal, except for the Gateway.
func (a Attributes) Is(b Attributes) bool { return a.Verb == b.Verb && a.Resource == b.Resource }

// Split returns the resource and the subresource.
func (a Attributes) Split() (resource, subresource string) {
	resource, subresource, _ = strings.Cut(a.Resource, "/")
	return resource, subresource
}

// Missing describes the missing right and the role that grants it, for example "needs get on gateways/sessions in
// namespace X: …".
func (a Attributes) Missing() string {
	role := "stunner-viewer"
	switch {
	case a.Is(UsageRight):
		return fmt.Sprintf("needs %s on %s.%s in namespace %s: no role of STUNner grants it, add it to a role of your own",
			a.Verb, a.Resource, Group, a.Namespace)
	case a.Verb == "delete":
		role = "stunner-session-manager"
	}
	if a.Namespace == "" {
		return fmt.Sprintf("needs %s on %s.%s in all namespaces: bind ClusterRole %s with a ClusterRoleBinding",
			a.Verb, a.Resource, Group, role)
	}
	return fmt.Sprintf("needs %s on %s.%s in namespace %s: bind ClusterRole %s there with a RoleBinding",
		a.Verb, a.Resource, Group, a.Namespace, role)
}

// API is the http.Handler of the inspection API.
type API struct {
	Options
	mux        *http.ServeMux
	rates      *ratelimit.Limiter[netip.Prefix]
	known      credentials
	unknown    limiter[netip.Prefix]
	callers    limiter[callerKey]
	namespaces limiter[string]
	requests   limiter[bool] // the key is whether ?local=true is set
	lines      ratelimit.Lines
	// hashKey is the key of hashes in logs.
	hashKey []byte
}

// callerKey identifies a caller. All replicas have the same account.
type callerKey struct {
	name    string
	replica bool
}

// New returns the inspection API.
func New(o Options) *API {
	if o.Replicas == nil {
		o.Replicas = func() []string { return nil }
	}
	if o.Running == nil {
		o.Running = func(string) (map[string]string, error) { return nil, nil }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	a := &API{
		Options: o, mux: http.NewServeMux(), rates: ratelimit.New[netip.Prefix](sourceRate, sourceBurst, maxSources),
		hashKey: make([]byte, sha256.Size),
	}
	rand.Read(a.hashKey) // never fails: crypto/rand ends the process instead
	for _, e := range endpoints {
		a.mux.HandleFunc(e.method+" "+gatewaysPath+"{namespace}/{name}/"+e.path, a.guarded(e.rights, a.serve(e)))
	}
	a.mux.HandleFunc("GET "+gatewaysPath+"{namespace}/{name}/config",
		a.guarded(rights{"get", "gateways"}, a.serveConfig))
	a.mux.HandleFunc("GET "+authPath, a.guarded(rights{"list", "gateways"}, a.serveAuth))
	a.mux.HandleFunc("GET "+operatorPath, a.guarded(rights{"list", "gateways"}, a.serveOperator))
	return a
}

// Or returns a handler that serves the paths of the API, and passes all other requests to next.
func (a *API) Or(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == operatorPath || r.URL.Path == authPath || strings.HasPrefix(r.URL.Path, gatewaysPath) {
			a.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ServeHTTP serves the paths of the API.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if _, pattern := a.mux.Handler(r); pattern == "" { // the mux answers with 404 or 405
		a.count(http.StatusNotFound, r)
	}
	a.mux.ServeHTTP(w, r)
}

// call is an authorized request.
type call struct {
	namespace, name string
	caller          string
	// local is set for a request of another replica, which asks all replicas itself.
	local bool
}

// id returns the id of the config of the Gateway.
func (c call) id() string { return c.namespace + "/" + c.name }

// rights are the verb and the resource that an endpoint needs.
type rights struct{ verb, resource string }

// guarded returns a handler that applies the limits and the authorization, and then calls serve.
func (a *API) guarded(needs rights, serve func(http.ResponseWriter, *http.Request, call) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		begun := time.Now()
		// fails only for a ResponseWriter without a connection, in tests
		_ = http.NewResponseController(w).SetWriteDeadline(begun.Add(answerTimeout))
		if err := a.admit(w, r, needs, serve); err != nil {
			a.refuse(w, r, err)
		}
	}
}

func (a *API) admit(
	w http.ResponseWriter, r *http.Request, needs rights, serve func(http.ResponseWriter, *http.Request, call) error,
) error {
	from := a.sourceOf(r)
	c, err := a.authorize(r, from, needs)
	if err != nil {
		return err
	}
	caller, limit := callerKey{c.caller, from.replica}, maxPerCaller
	if from.replica {
		limit = maxFromReplica
	}
	if !a.callers.enter(r.Context(), caller, limit) {
		return errorf(http.StatusTooManyRequests,
			"%d requests of this caller are in progress: wait until one of them has ended", limit)
	}
	defer a.callers.leave(caller)
	// This slot comes before the slot of all namespaces, so that requests that wait for one namespace take no slot of all
	// namespaces.
	if !c.local {
		if !a.namespaces.enter(r.Context(), c.namespace, maxPerNamespace) {
			return errorf(http.StatusTooManyRequests,
				"%d inspection requests for namespace %q are in progress: try again later", maxPerNamespace, c.namespace)
		}
		defer a.namespaces.leave(c.namespace)
	}
	limit = maxRequests
	if c.local {
		limit = maxFromReplica
	}
	if !a.requests.enter(r.Context(), c.local, limit) {
		return errorf(http.StatusTooManyRequests, "%d inspection requests are in progress: try again later", limit)
	}
	defer a.requests.leave(c.local)
	return serve(w, r, c)
}

// authorize authorizes a request. Requests with an unknown credential are limited by source address, so that they do
// not delay callers behind the same address whose credentials are known.
func (a *API) authorize(r *http.Request, from source, needs rights) (c call, err error) {
	c = call{
		namespace: r.PathValue("namespace"), name: r.PathValue("name"), local: r.URL.Query().Get(localParameter) == "true",
	}
	credential := credentialOf(r, from)
	known := from.replica || a.known.has(credential, time.Now())
	limited := !from.replica && !(known && from.prefix.Addr().IsLoopback())
	if limited && a.rates.Take(from.prefix, time.Now()) > 0 {
		return c, errorf(http.StatusTooManyRequests, "more than %d requests a second: try again later", sourceRate)
	}
	if !known {
		if !a.unknown.enter(r.Context(), from.prefix, maxUnknown) {
			return c, errorf(http.StatusTooManyRequests,
				"%d requests of this address wait for authentication: try again later", maxUnknown)
		}
		defer a.unknown.leave(from.prefix)
	}
	if err := checkRequest(r); err != nil {
		return c, err
	}
	c.caller, err = a.Authorize(r, Attributes{needs.verb, needs.resource, c.namespace, c.name})
	if authenticated(err) {
		a.known.add(credential, time.Now())
	}
	return c, err
}

// authenticated reports whether the error of Options.Authorize is not about the identity of the caller.
func authenticated(err error) bool {
	var answer *Error
	return err == nil || errors.As(err, &answer) && answer.Code == http.StatusForbidden
}

func (a *API) serveConfig(w http.ResponseWriter, _ *http.Request, c call) error {
	published, revision, ok := a.Pods.Published(c.id())
	if !ok {
		return errorf(http.StatusNotFound, "no config of Gateway %s is published", c.id())
	}
	return writeJSON(w, inspection.Config{
		Revision: revision, AuthRevision: published.ForAuth().Revision(), Config: published.Redacted().Canonical(),
	})
}

// maxProblems is the maximum number of problems in an answer.
const maxProblems = 1_000

func (a *API) serveOperator(w http.ResponseWriter, _ *http.Request, _ call) error {
	state := a.State()
	state.Version, state.Now = a.Version, time.Now()
	state.Problems = slices.SortedStableFunc(slices.Values(state.Problems), func(a, b inspection.Problem) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Field, b.Field),
			cmp.Compare(a.Condition, b.Condition))
	})
	if more := len(state.Problems) - maxProblems; more > 0 {
		state.Problems, state.Omitted = state.Problems[:maxProblems], more
	}
	if state.Problems == nil {
		state.Problems = []inspection.Problem{}
	}
	return writeJSON(w, state)
}

// refuse answers a request with an error.
func (a *API) refuse(w http.ResponseWriter, r *http.Request, err error) {
	var answer *Error
	switch {
	case errors.As(err, &answer):
	case errors.Is(err, discovery.ErrUndecided):
		answer = errorf(http.StatusServiceUnavailable, "the caller cannot be authorized now: %v", err)
	default:
		answer = errorf(http.StatusServiceUnavailable, "%v", err)
	}
	a.count(answer.Code, r)
	switch answer.Code {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	case http.StatusTooManyRequests:
		w.Header().Set("Retry-After", "1")
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "2")
	}
	writeHeader(w, answer.Code)
	_ = encode(w, answer)
}
