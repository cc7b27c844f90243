package connect

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	"github.com/stunner-gateway/stunner/services/api/cli"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// Names of the objects by which clients reach config discovery. The operator, the chart and kustomize/base create them.
const (
	discoveryService = "stunner-config-discovery"
	discoveryPort    = 13478
	discoveryLabel   = "stunner.l7mp.io/config-discovery-service=enabled"
	authorityName    = "stunner-discovery-ca"
	authorityKey     = "ca.crt"
	inspectorAccount = "stunner-inspector"
	reachRole        = "stunner-reach"
)

// Cluster is a cluster, with the rights of the user of the kubeconfig.
type Cluster struct {
	// Config is the access to the API server.
	Config *rest.Config
	// Client reads and writes core objects.
	Client kubernetes.Interface
	// Dynamic reads objects of all kinds.
	Dynamic dynamic.Interface

	options Options
	// mapper returns the RESTMapper, which asks the API server for its kinds.
	mapper func() (meta.RESTMapper, error)
	// operator is the connected operator.
	operator struct {
		sync.Mutex
		api *api
	}
	// dial connects to a port of a pod.
	dial func(ctx context.Context, pod types.NamespacedName, port int32) (net.Conn, error)

	// inspector is the token of inspectorAccount, for users without a token of their own.
	inspector struct {
		sync.Mutex
		token   string
		expires metav1.Time
	}
}

func openCluster(o Options) (Source, error) {
	config, err := o.Kube.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf(
			"read kubeconfig: %w: use --kubeconfig, or --operator URL or --folder OUTPUT without a cluster",
			err,
		)
	}
	const without = "no kubeconfig: use --kubeconfig, or --operator URL or --folder OUTPUT without a cluster"
	if raw, err := o.Kube.ToRawKubeConfigLoader().RawConfig(); err == nil && len(raw.Clusters) == 0 &&
		strings.HasSuffix(config.Host, "localhost:8080") { // the default of client-go
		return nil, errors.New(without)
	}
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 50, 100 // a diagnosis reads about 30 kinds at once
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	c := &Cluster{Config: config, Client: client, Dynamic: objects, options: o}
	c.dial = forwarder{config: config, rest: client.CoreV1().RESTClient()}.dial
	c.mapper = sync.OnceValues(o.Kube.ToRESTMapper)
	return c, nil
}

// operatorAPI returns the API of the operator. It connects at the first call, and again if the connection has failed.
func (c *Cluster) operatorAPI(ctx context.Context) (*api, error) {
	c.operator.Lock()
	defer c.operator.Unlock()
	if c.operator.api != nil {
		return c.operator.api, nil
	}
	a, err := c.connectOperator(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to the operator: %w", err)
	}
	c.operator.api = a
	return a, nil
}

func (c *Cluster) String() string { return "cluster " + c.Config.Host }

// Ask sends a request about a Gateway to the operator.
func (c *Cluster) Ask(ctx context.Context, r Request) (inspection.List, error) {
	a, err := c.operatorAPI(ctx)
	if err != nil {
		return inspection.List{}, err
	}
	return a.Ask(ctx, r)
}

// Get reads another path of the inspection API.
func (c *Cluster) Get(ctx context.Context, path string, into any) error {
	a, err := c.operatorAPI(ctx)
	if err != nil {
		return err
	}
	return a.Get(ctx, path, into)
}

// Close does nothing: connections to pods end with the process.
func (c *Cluster) Close() error { return nil }

// Gateways returns the Gateways of STUNner's GatewayClasses. If the user may not read GatewayClasses, it returns the
// Gateways of all classes.
func (c *Cluster) Gateways(ctx context.Context, namespace string) ([]types.NamespacedName, error) {
	gateways, err := c.list(ctx, namespace, KindGateway)
	if err != nil {
		return nil, fmt.Errorf("list Gateways: %w", err)
	}
	classes, err := c.list(ctx, "", KindGatewayClass)
	switch {
	case apierrors.IsForbidden(err):
		return namesOf(gateways), nil
	case err != nil:
		return nil, fmt.Errorf("list GatewayClasses: %w", err)
	}
	ours := map[string]bool{}
	for _, class := range classes {
		controller, _, _ := unstructured.NestedString(class.Object, "spec", "controllerName")
		ours[class.GetName()] = Controls(c.options.ControllerName, controller)
	}
	gateways = slices.DeleteFunc(gateways, func(o unstructured.Unstructured) bool {
		class, _, _ := unstructured.NestedString(o.Object, "spec", "gatewayClassName")
		return !ours[class]
	})
	return namesOf(gateways), nil
}

// Objects returns the objects of the kinds that the user may list.
func (c *Cluster) Objects(ctx context.Context, namespace string, kinds ...schema.GroupKind) (Objects, error) {
	var found Objects
	for _, kind := range kinds {
		items, err := c.list(ctx, namespace, kind)
		switch {
		case ctx.Err() != nil:
			return found, context.Cause(ctx)
		case meta.IsNoMatchError(err):
			found.Unread = append(found.Unread, Unread{Kind: kind, Missing: true})
		case err != nil:
			found.Unread = append(found.Unread, Unread{Kind: kind, Err: err})
		}
		found.Items = append(found.Items, items...)
	}
	return found, nil
}

func (c *Cluster) list(
	ctx context.Context,
	namespace string,
	kind schema.GroupKind,
) ([]unstructured.Unstructured, error) {
	if kind == KindSecret {
		return nil, errors.New("secrets are not read")
	}
	mapper, err := c.mapper()
	if err != nil {
		return nil, err
	}
	mapping, err := mapper.RESTMapping(kind)
	if err != nil {
		return nil, err
	}
	var from dynamic.ResourceInterface = c.Dynamic.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace && namespace != "" {
		from = c.Dynamic.Resource(mapping.Resource).Namespace(namespace)
	}
	var items []unstructured.Unstructured
	pages := pager.New(
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return from.List(ctx, o) },
	)
	err = pages.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		items = append(items, *o.(*unstructured.Unstructured))
		return nil
	})
	return items, err
}

// Installation holds the names of an installation that values of the chart change.
type Installation struct {
	// Namespace is the namespace of the operator.
	Namespace string
	// Operator and Auth are the values of the label app of the pods of the operator and of its auth service.
	Operator, Auth string
	// Readers are the accounts in --discovery-readers of the operator, as NAMESPACE/SERVICEACCOUNT.
	Readers []string
}

// Installation returns the names of the installation whose operator is in a namespace; see operators for an empty
// namespace. If no pod of an operator is found, the names are those of the documentation, also beside an error.
func (c *Cluster) Installation(ctx context.Context, namespace string) (Installation, error) {
	found := Installation{
		Namespace: cmp.Or(namespace, DefaultOperatorNamespace), Operator: "stunner-operator", Auth: "stunner-auth",
	}
	pods, err := c.operators(ctx, namespace)
	if err != nil || len(pods) == 0 {
		return found, err
	}
	found.Namespace, found.Readers = pods[0].Namespace, readersOf(pods[0])
	// The chart starts both names with fullnameOverride, or the release and nameOverride.
	if app := pods[0].Labels["app"]; strings.HasSuffix(app, "-operator") {
		found.Operator, found.Auth = app, strings.TrimSuffix(app, "-operator")+"-auth"
	}
	return found, nil
}

// readersOf returns the accounts in --discovery-readers of an operator.
func readersOf(pod corev1.Pod) (accounts []string) {
	for _, container := range pod.Spec.Containers {
		for _, arg := range container.Args {
			if list, ok := strings.CutPrefix(arg, "--discovery-readers="); ok {
				for _, account := range cli.List(strings.ReplaceAll(list, "$(POD_NAMESPACE)", pod.Namespace)) {
					accounts = append(accounts, strings.TrimSuffix(account, ":whole"))
				}
			}
		}
	}
	return accounts
}

// maxAccounts limits the ServiceAccounts whose rights are requested, because a tenant may label any number of pods.
const maxAccounts = 20

// operators returns the pods of the operator in a namespace. If the namespace is empty, DefaultOperatorNamespace is
// searched first, and then all namespaces. All pods are of one namespace.
//
// The label of a pod proves nothing, because tenants label their own pods. So a pod that is found by its label alone
// counts only if its ServiceAccount may update the status of GatewayClasses. Only an administrator grants this right,
// because GatewayClasses have no namespace. A user who may not ask for the rights of others finds an operator in
// DefaultOperatorNamespace only.
func (c *Cluster) operators(ctx context.Context, namespace string) ([]corev1.Pod, error) {
	if namespace != "" {
		return c.labelled(ctx, namespace)
	}
	var unread error
	var unknown, namespaces []string
	reason := "their ServiceAccounts may not update the status of GatewayClasses, as that of an operator may"
	allowed := map[string]bool{}
	for _, searched := range []string{DefaultOperatorNamespace, metav1.NamespaceAll} {
		pods, err := c.labelled(ctx, searched)
		if err != nil { // a user with rights in some namespaces
			unread = cmp.Or(unread, err)
			continue
		}
		var operators []corev1.Pod
		for _, pod := range pods {
			account := pod.Namespace + ":" + cmp.Or(pod.Spec.ServiceAccountName, "default")
			if _, known := allowed[account]; !known && len(allowed) < maxAccounts {
				allowed[account], err = c.writesClasses(ctx, "system:serviceaccount:"+account)
				switch {
				case apierrors.IsForbidden(err):
					allowed[account] = searched != ""
					reason = "you may not create subjectaccessreviews, which show whether they belong to an operator"
				case err != nil:
					return nil, &Unreached{
						Err: fmt.Errorf("read the rights of ServiceAccount %s: %w", account, err), Remedy: nameNamespace,
					}
				}
			}
			list := &unknown
			if allowed[account] {
				operators, list = append(operators, pod), &namespaces
			}
			if !slices.Contains(*list, pod.Namespace) {
				*list = append(*list, pod.Namespace)
			}
		}
		if len(namespaces) > 1 {
			return nil, &Unreached{
				Err:    fmt.Errorf("operators run in the namespaces %s", strings.Join(namespaces, " and ")),
				Remedy: "choose one with --operator-namespace",
			}
		}
		if len(operators) > 0 {
			return operators, nil
		}
	}
	if len(unknown) == 0 {
		return nil, unread
	}
	if len(unknown) > 3 {
		unknown = append(unknown[:3], "others")
	}
	return nil, &Unreached{
		Err: fmt.Errorf("pods in %s have the label %s, and %s",
			strings.Join(unknown, ", "), discoveryLabel, reason),
		Remedy: nameNamespace,
	}
}

const nameNamespace = "name the namespace of the operator with --operator-namespace"

// writesClasses reports whether a user may update the status of GatewayClasses.
func (c *Cluster) writesClasses(ctx context.Context, user string) (bool, error) {
	review, err := c.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: KindGatewayClass.Group, Resource: "gatewayclasses", Subresource: "status", Verb: "update",
		}},
	}, metav1.CreateOptions{})
	return err == nil && review.Status.Allowed, err
}

// labelled returns the pods in a namespace with the label of config discovery.
func (c *Cluster) labelled(ctx context.Context, namespace string) ([]corev1.Pod, error) {
	list, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryLabel})
	if err != nil {
		return nil, reachError(fmt.Errorf("list pods of the operator: %w", err), namespace)
	}
	return list.Items, nil
}

// connectOperator returns the API of a ready operator pod. The TLS certificate is verified before anything is sent, unless
// the operator has no TLS. Then no token is sent.
func (c *Cluster) connectOperator(ctx context.Context) (*api, error) {
	if i := c.Config.Impersonate; i.UserName != "" || i.UID != "" || len(i.Groups) > 0 {
		return nil, &Unreached{
			Err:    errors.New("--as: the operator does not accept impersonation"),
			Remedy: "use a kubeconfig of that user, or --token",
		}
	}
	c.options.Progress("connecting to the operator")
	pods, err := c.operatorPods(ctx)
	if err != nil {
		return nil, err
	}
	namespace := pods[0].Namespace
	host := discoveryService + "." + namespace + ".svc"
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dialAny(ctx, pods) }
	if !slices.ContainsFunc(pods, authenticates) {
		plain := &http.Transport{DialContext: dial, MaxResponseHeaderBytes: 64 << 10, IdleConnTimeout: 30 * time.Second}
		return &api{base: &url.URL{Scheme: "http", Host: host}, client: newClient(plain)}, nil
	}
	authority, err := c.Client.CoreV1().ConfigMaps(namespace).Get(ctx, authorityName, metav1.GetOptions{})
	if err != nil {
		return nil, reachError(fmt.Errorf("read the CA of config discovery: %w", err), namespace)
	}
	pool, err := poolOf([]byte(authority.Data[authorityKey]), "ConfigMap "+namespace+"/"+authorityName)
	if err != nil {
		return nil, err
	}
	transport := newTransport(&tls.Config{RootCAs: pool, ServerName: host})
	transport.Proxy = nil
	transport.DialContext = dial
	rt, err := c.authorized(transport, namespace)
	if err != nil {
		return nil, err
	}
	return &api{base: &url.URL{Scheme: "https", Host: host}, client: newClient(rt)}, nil
}

// authenticates reports whether an operator has TLS and needs tokens. With --discovery-auth=off it has neither, and
// answers callers on its own host, as which a forwarded port counts. A CA of earlier settings may still exist.
func authenticates(pod corev1.Pod) bool {
	return !slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
		return slices.Contains(c.Args, "--discovery-auth=off")
	})
}

// operatorPods returns the ready pods of the operator, all of one namespace.
func (c *Cluster) operatorPods(ctx context.Context) ([]corev1.Pod, error) {
	pods, err := c.operators(ctx, c.options.OperatorNamespace)
	if err != nil {
		return nil, err
	}
	if pods = readyOf(pods); len(pods) > 0 {
		return pods, nil
	}
	namespace := cmp.Or(c.options.OperatorNamespace, DefaultOperatorNamespace)
	return nil, &Unreached{
		Err:    fmt.Errorf("no ready pod with the label %s in namespace %s", discoveryLabel, namespace),
		Remedy: nameNamespace + ", or see kubectl get pods -n " + namespace,
	}
}

// readyOf returns the ready pods.
func readyOf(pods []corev1.Pod) []corev1.Pod {
	return slices.DeleteFunc(pods, func(pod corev1.Pod) bool {
		return pod.DeletionTimestamp != nil ||
			!slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			})
	})
}

// dialAny connects to the first pod that accepts.
func (c *Cluster) dialAny(ctx context.Context, pods []corev1.Pod) (net.Conn, error) {
	var errs []error
	for _, pod := range pods {
		conn, err := c.dial(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, portOf(pod))
		if err == nil {
			return conn, nil
		}
		errs = append(errs, reachError(fmt.Errorf("forward a port to pod %s: %w", pod.Name, err), pod.Namespace))
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// portOf returns the port of config discovery in a pod.
func portOf(pod corev1.Pod) int32 {
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			if port.Name == "cds" {
				return port.ContainerPort
			}
		}
	}
	return discoveryPort
}

// authorized adds the user's bearer token to requests: the token of the kubeconfig, of its token file, or of its
// plugin. For a user without a token, for example with a client certificate, it adds a token of inspectorAccount.
func (c *Cluster) authorized(transport http.RoundTripper, namespace string) (http.RoundTripper, error) {
	user := rest.CopyConfig(c.Config)
	user.Username, user.Password = "", "" // basic authentication would send the password to the operator
	rt, err := rest.HTTPWrappersForConfig(user, bearerOnly{
		next:     transport,
		fallback: func(ctx context.Context) (string, error) { return c.inspectorToken(ctx, namespace) },
	})
	if err != nil {
		return nil, fmt.Errorf("read credentials of the kubeconfig: %w", err)
	}
	return rt, nil
}

// bearerOnly replaces a missing bearer token by the fallback.
type bearerOnly struct {
	next     http.RoundTripper
	fallback func(context.Context) (string, error)
}

func (b bearerOnly) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ") {
		token, err := b.fallback(r.Context())
		if err != nil {
			return nil, err
		}
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return b.next.RoundTrip(r)
}

// inspectorToken requests a token of inspectorAccount.
func (c *Cluster) inspectorToken(ctx context.Context, namespace string) (string, error) {
	c.inspector.Lock()
	defer c.inspector.Unlock()
	if c.inspector.token != "" && metav1.Now().Add(tokenMargin).Before(c.inspector.expires.Time) {
		return c.inspector.token, nil
	}
	request := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(600))},
	}
	answer, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, inspectorAccount, request,
		metav1.CreateOptions{})
	if err != nil {
		return "", &Unreached{
			Err: fmt.Errorf("the kubeconfig has no bearer token, and a token of the ServiceAccount %s/%s cannot be requested: %w",
				namespace, inspectorAccount, err),
			Remedy: "use a kubeconfig with a token (OIDC, exec plugin) or --token", Denied: isForbidden(err),
		}
	}
	c.inspector.token, c.inspector.expires = answer.Status.Token, answer.Status.ExpirationTimestamp
	return c.inspector.token, nil
}
