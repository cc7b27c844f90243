package connect

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
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
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	kubetesting "k8s.io/client-go/testing"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

var gateway = types.NamespacedName{Namespace: "shop", Name: "turn"}

// operator is a fake inspection API that records its requests.
type operator struct {
	*httptest.Server
	requests []*http.Request
	answer   func(w http.ResponseWriter)
}

func (o *operator) last(t *testing.T) *http.Request {
	t.Helper()
	if len(o.requests) == 0 {
		t.Fatal("the operator got no request")
	}
	return o.requests[len(o.requests)-1]
}

// startOperator starts an operator whose certificate has the names. It returns also the CA certificate in PEM.
func startOperator(t *testing.T, names ...string) (*operator, string) {
	t.Helper()
	o := &operator{
		answer: func(w http.ResponseWriter) { fmt.Fprint(w, `{"version":"v1","gateway":"shop/turn","items":[]}`) },
	}
	o.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.requests = append(o.requests, r)
		o.answer(w)
	}))
	o.Config.ErrorLog = nil
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: names,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	o.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	o.StartTLS()
	t.Cleanup(o.Close)
	return o, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func write(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func expectError(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %q", want)
	}
	for _, part := range want {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q, want %q in it", err, part)
		}
	}
}

func TestURL(t *testing.T) {
	o, ca := startOperator(t, "operator.example")
	dir := t.TempDir()
	options := Options{
		URL: o.URL, TokenFile: write(t, dir+"/token", "secret\n"), CAFile: write(t, dir+"/ca.crt", ca),
	}
	s, err := Open(options)
	if err != nil {
		t.Fatal(err)
	}
	list, err := s.Ask(t.Context(), Request{
		Method: http.MethodDelete, Gateway: gateway, Path: "sessions", Query: url.Values{"user": {"ada&x"}},
	})
	if err != nil || list.Gateway != "shop/turn" {
		t.Fatal(list, err)
	}
	r := o.last(t)
	if r.Method != "DELETE" || r.RequestURI != "/api/v1/gateways/shop/turn/sessions?user=ada%26x" {
		t.Error(r.Method, r.RequestURI)
	}
	if got := r.Header.Get("Authorization"); got != "Bearer secret" {
		t.Errorf("Authorization %q", got)
	}

	o.answer = func(w http.ResponseWriter) {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"code":403,"message":"needs get on gateways/sessions in namespace shop"}`)
	}
	_, err = s.Ask(t.Context(), Request{Gateway: gateway, Path: "sessions"})
	expectError(t, err, "403", "needs get on gateways/sessions in namespace shop")
	if StatusOf(err) != http.StatusForbidden {
		t.Error(StatusOf(err))
	}

	o.answer = func(w http.ResponseWriter) { fmt.Fprint(w, "<html>") }
	_, err = s.Ask(t.Context(), Request{Gateway: gateway, Path: "status"})
	expectError(t, err, "not that of the inspection API")

	o.answer = func(w http.ResponseWriter) {
		w.Header().Set("Location", "https://attacker.example/")
		w.WriteHeader(http.StatusTemporaryRedirect)
	}
	_, err = s.Ask(t.Context(), Request{Gateway: gateway, Path: "status"})
	expectError(t, err, "307")

	_, err = s.Gateways(t.Context(), "")
	expectError(t, err, "name a Gateway", "kubeconfig")
	_, err = AsCluster(s, "drain", "end the pod")
	expectError(t, err, "drain needs a cluster", "end the pod")

	options.CAFile = ""
	if s, err = Open(options); err != nil {
		t.Fatal(err)
	}
	before := len(o.requests)
	_, err = s.Ask(t.Context(), Request{Gateway: gateway, Path: "status"})
	expectError(t, err, "--ca-file", "stunner-discovery-ca")
	if len(o.requests) != before {
		t.Error("a request was sent without verified TLS")
	}
}

func TestOptionsAreChecked(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		options Options
		want    string
	}{
		"two sources":        {Options{Folder: dir, URL: "https://x"}, "--folder and --operator"},
		"no scheme":          {Options{URL: "localhost:13478"}, "use https://HOST:PORT"},
		"token without TLS":  {Options{URL: "http://10.0.0.1:13478", Token: "t"}, "verified TLS only"},
		"token without URL":  {Options{TokenFile: "f"}, "belong to --operator"},
		"no CA file":         {Options{URL: "https://x", CAFile: dir + "/none"}, "--ca-file"},
		"CA file is not PEM": {Options{URL: "https://x", CAFile: write(t, dir+"/ca", "x")}, "no PEM certificate"},
		"no folder":          {Options{Folder: dir + "/none"}, "as --output"},
	} {
		_, err := Open(c.options)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

func TestFolder(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(Options{Folder: dir})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Ask(t.Context(), Request{Gateway: gateway, Path: "status"})
	expectError(t, err, "discovery.url", "--output "+dir)

	header := func(kind, name string) string {
		return "apiVersion: gateway.networking.k8s.io/v1\nkind: " + kind + "\nmetadata: {namespace: shop, name: " + name + "}\n"
	}
	write(t, dir+"/status/gateway/shop_turn.yaml", header("Gateway", "turn"))
	write(t, dir+"/status/gateway/shop_b.yaml", header("Gateway", "b"))
	write(t, dir+"/status/gatewayclass/c.yaml",
		"apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: c}\n")
	write(t, dir+"/objects/shop/secret-x.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {namespace: shop, name: x}\n")
	gateways, err := s.Gateways(t.Context(), "shop")
	want := []types.NamespacedName{{Namespace: "shop", Name: "b"}, gateway}
	if err != nil || !reflect.DeepEqual(gateways, want) {
		t.Error(gateways, err)
	}
	if gateways, err = s.Gateways(t.Context(), "other"); err != nil || len(gateways) > 0 {
		t.Error(gateways, err)
	}
	objects, err := s.Objects(t.Context(), "", KindGatewayClass, KindSecret)
	if err != nil || len(objects.Items) != 1 {
		t.Error(objects, err)
	}

	var sent http.Header
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent = r.Header
		fmt.Fprint(w, "{}")
	}))
	defer server.Close()
	write(t, dir+"/discovery.url", "https://operator.example:1\n")
	_, err = mustOpen(t, Options{Folder: dir}).Ask(t.Context(), Request{Gateway: gateway, Path: "status"})
	expectError(t, err, "not that of an operator on this host")
	write(t, dir+"/discovery.url", server.URL+"\n")
	for token, want := range map[string]string{"": "", "abc": "Bearer abc"} {
		if token != "" {
			write(t, dir+"/discovery.token", token)
		}
		if _, err = mustOpen(t, Options{Folder: dir}).Ask(t.Context(), Request{Gateway: gateway, Path: "status"}); err != nil {
			t.Fatal(err)
		}
		if got := sent.Get("Authorization"); got != want && token != "" {
			t.Errorf("Authorization %q, want %q", got, want)
		}
	}
}

func mustOpen(t *testing.T, o Options) Source {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func operatorPod(namespace, name string, ready corev1.ConditionStatus) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name,
			Labels: map[string]string{"stunner.l7mp.io/config-discovery-service": "enabled"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Ports: []corev1.ContainerPort{{Name: "health", ContainerPort: 8086}, {Name: "cds", ContainerPort: 999}}},
		}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	}
}

// clusterWith returns a cluster with the objects, whose pods forward to the operator o. The accounts of namespaces that
// start with tenant have no rights on GatewayClasses.
func clusterWith(o *operator, config rest.Config, objects ...runtime.Object) (*Cluster, *[]string) {
	var dialed []string
	c := &Cluster{
		Config: &config, Client: fake.NewClientset(objects...), options: Options{Progress: func(string) {}},
	}
	c.Client.(*fake.Clientset).PrependReactor("create", "subjectaccessreviews",
		func(a kubetesting.Action) (bool, runtime.Object, error) {
			review := a.(kubetesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
			review.Status.Allowed = !strings.HasPrefix(review.Spec.User, "system:serviceaccount:tenant")
			return true, review, nil
		})
	c.dial = func(_ context.Context, pod types.NamespacedName, port int32) (net.Conn, error) {
		dialed = append(dialed, fmt.Sprint(pod, ":", port))
		return net.Dial("tcp", o.Listener.Addr().String())
	}
	return c, &dialed
}

func authority(namespace, ca string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "stunner-discovery-ca"},
		Data:       map[string]string{"ca.crt": ca},
	}
}

func TestClusterSendsTheTokenOfTheKubeconfig(t *testing.T) {
	o, ca := startOperator(t, "stunner-config-discovery.ops.svc")
	dir := t.TempDir()
	plugin := write(t, dir+"/plugin", `#!/bin/sh
echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"from-plugin"}}'
`)
	if err := os.Chmod(plugin, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		config rest.Config
		want   string
	}{
		"token":      {rest.Config{BearerToken: "t"}, "Bearer t"},
		"token file": {rest.Config{BearerTokenFile: write(t, dir+"/token", "from-file")}, "Bearer from-file"},
		"plugin": {rest.Config{ExecProvider: &clientcmdapi.ExecConfig{
			Command: plugin, APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
		}}, "Bearer from-plugin"},
		"client certificate": {rest.Config{}, "Bearer of-inspector"},
		"password":           {rest.Config{Username: "u", Password: "p"}, "Bearer of-inspector"},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, dialed := clusterWith(o, c.config, operatorPod("ops", "a", corev1.ConditionFalse),
				operatorPod("ops", "b", corev1.ConditionTrue), authority("ops", ca))
			var audiences []string
			cluster.Client.(*fake.Clientset).PrependReactor("create", "serviceaccounts",
				func(a kubetesting.Action) (bool, runtime.Object, error) {
					request := a.(kubetesting.CreateAction).GetObject().(*authenticationv1.TokenRequest)
					audiences = request.Spec.Audiences
					return true, &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{
						Token: "of-inspector", ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour)),
					}}, nil
				})
			if _, err := cluster.Ask(t.Context(), Request{Gateway: gateway, Path: "status"}); err != nil {
				t.Fatal(err)
			}
			if got := o.last(t).Header.Get("Authorization"); got != c.want {
				t.Errorf("Authorization %q, want %q", got, c.want)
			}
			if want := []string{"ops/b:999"}; !reflect.DeepEqual(*dialed, want) {
				t.Errorf("dialed %v, want %v", *dialed, want)
			}
			if len(audiences) > 0 {
				t.Errorf("audiences %v", audiences)
			}
		})
	}
}

// An operator with --discovery-auth=off has no TLS, and gets no token. The CA of earlier settings may still exist.
func TestClusterAsksAnOperatorWithoutAuthentication(t *testing.T) {
	_, ca := startOperator(t, "stunner-config-discovery.ops.svc")
	for name, more := range map[string][]runtime.Object{"new": nil, "with an earlier CA": {authority("ops", ca)}} {
		t.Run(name, func(t *testing.T) {
			o := &operator{}
			o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				o.requests = append(o.requests, r)
				fmt.Fprint(w, `{"version":"v1","gateway":"shop/turn","items":[]}`)
			}))
			t.Cleanup(o.Close)
			pod := operatorPod("ops", "a", corev1.ConditionTrue)
			pod.Spec.Containers[0].Args = []string{"--provider=kubernetes", "--discovery-auth=off"}
			cluster, _ := clusterWith(o, rest.Config{BearerToken: "t"}, append(more, pod)...)
			if _, err := cluster.Ask(t.Context(), Request{Gateway: gateway, Path: "status"}); err != nil {
				t.Fatal(err)
			}
			if got := o.last(t).Header.Get("Authorization"); got != "" {
				t.Errorf("Authorization %q, want none", got)
			}
		})
	}
}

func TestClusterWithoutRightsNamesTheRemedy(t *testing.T) {
	o, ca := startOperator(t, "stunner-config-discovery.stunner-system.svc")
	pod := operatorPod("stunner-system", "a", corev1.ConditionTrue)
	forbid := func(c *Cluster, verb, resource string) {
		c.Client.(*fake.Clientset).PrependReactor(
			verb,
			resource,
			func(a kubetesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewForbidden(a.GetResource().GroupResource(), "", nil)
			},
		)
	}
	ask := func(c *Cluster) error {
		_, err := c.Ask(t.Context(), Request{Gateway: gateway, Path: "status"})
		return err
	}
	token := rest.Config{BearerToken: "t"}

	c, _ := clusterWith(o, token, pod, authority("stunner-system", ca))
	forbid(c, "list", "pods")
	expectError(t, ask(c), "stunner-reach", "inspection.reachableBy")

	c, _ = clusterWith(o, token, pod, authority("stunner-system", ca))
	forbid(c, "get", "configmaps")
	expectError(t, ask(c), "stunner-reach")

	c, _ = clusterWith(o, token, pod, authority("stunner-system", ca))
	c.dial = func(context.Context, types.NamespacedName, int32) (net.Conn, error) {
		return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods/portforward"}, "a", nil)
	}
	expectError(t, ask(c), "stunner-reach", "pods/portforward")
	c.dial = func(context.Context, types.NamespacedName, int32) (net.Conn, error) { // as client-go reports it
		return nil, errors.New(`error upgrading connection: unable to upgrade connection: pods "a" is forbidden: ` +
			`User "eve" cannot create resource "pods/portforward" in API group "" in the namespace "stunner-system"`)
	}
	err := ask(c)
	expectError(t, err, "stunner-reach", "pods/portforward")
	if text, remedy, denied := Split(err); !denied || !strings.Contains(remedy, "stunner-reach") ||
		strings.Contains(text, "stunner-reach") {
		t.Errorf("text %q, remedy %q, denied %v", text, remedy, denied)
	}

	c, _ = clusterWith(o, rest.Config{}, pod, authority("stunner-system", ca))
	forbid(c, "create", "serviceaccounts")
	expectError(t, ask(c), "no bearer token", "stunner-system/stunner-inspector", "--token")

	c, _ = clusterWith(o, token)
	expectError(t, ask(c), "no ready pod", "--operator-namespace")

	c, _ = clusterWith(
		o,
		token,
		operatorPod("a", "x", corev1.ConditionTrue),
		operatorPod("b", "x", corev1.ConditionTrue),
	)
	expectError(t, ask(c), "namespaces a and b", "--operator-namespace")

	var tenants []runtime.Object
	for i := range 2 * maxAccounts {
		tenants = append(tenants, operatorPod(fmt.Sprintf("tenant%02d", i), "x", corev1.ConditionTrue))
	}
	for _, pods := range [][]runtime.Object{tenants, {operatorPod("tenant", "x", corev1.ConditionTrue), authority("tenant", ca)}} {
		c, _ = clusterWith(o, token, pods...)
		expectError(t, ask(c), "pods in tenant", "status of GatewayClasses", "--operator-namespace")
		reviews := 0
		for _, a := range c.Client.(*fake.Clientset).Actions() {
			if a.GetResource().Resource == "subjectaccessreviews" {
				reviews++
			}
		}
		if reviews > maxAccounts {
			t.Errorf("%d reviews", reviews)
		}
	}
	c, _ = clusterWith(o, token, operatorPod("ops", "x", corev1.ConditionTrue))
	forbid(c, "create", "subjectaccessreviews")
	expectError(t, ask(c), "pods in ops", "may not create subjectaccessreviews", "--operator-namespace")

	c, _ = clusterWith(o, rest.Config{BearerToken: "t", Impersonate: rest.ImpersonationConfig{UserName: "eve"}}, pod,
		authority("stunner-system", ca))
	expectError(t, ask(c), "--as", "impersonation")
	if len(o.requests) > 0 {
		t.Error("the operator got requests")
	}
}

// A pod with the label of the operator that has no certificate of the CA gets no token.
func TestClusterSendsNoTokenWithoutVerifiedTLS(t *testing.T) {
	_, ca := startOperator(t, "stunner-config-discovery.stunner-system.svc")
	for name, attacker := range map[string][]string{
		"another CA":   {"stunner-config-discovery.stunner-system.svc"},
		"another name": {"stunner-config-discovery.other.svc"},
	} {
		t.Run(name, func(t *testing.T) {
			o, itsCA := startOperator(t, attacker...)
			if name == "another name" {
				ca = itsCA
			}
			c, _ := clusterWith(o, rest.Config{BearerToken: "t", TLSClientConfig: rest.TLSClientConfig{Insecure: true}},
				operatorPod("stunner-system", "a", corev1.ConditionTrue), authority("stunner-system", ca))
			_, err := c.Ask(t.Context(), Request{Gateway: gateway, Path: "status"})
			expectError(t, err, "certificate")
			if len(o.requests) > 0 {
				t.Error("a request was sent")
			}
		})
	}
}

// A tenant's pod with the label of the operator gets no request, although its namespace has a CA and a certificate of
// the tenant.
func TestClusterDoesNotTakeThePodOfATenant(t *testing.T) {
	for name, ready := range map[string]corev1.ConditionStatus{"operator ready": corev1.ConditionTrue, "operator not ready": corev1.ConditionFalse} {
		t.Run(name, func(t *testing.T) {
			forged, itsCA := startOperator(t, "stunner-config-discovery.tenant.svc")
			c, dialed := clusterWith(forged, rest.Config{BearerToken: "t"}, operatorPod("ops", "a", ready),
				operatorPod("tenant", "a", corev1.ConditionTrue), authority("tenant", itsCA))
			_, _ = c.Ask(t.Context(), Request{Gateway: gateway, Path: "status"})
			if slices.ContainsFunc(*dialed, func(to string) bool { return strings.HasPrefix(to, "tenant/") }) || len(forged.requests) > 0 {
				t.Errorf("connections to %v, %d requests", *dialed, len(forged.requests))
			}
			if found, err := c.Installation(t.Context(), ""); err != nil || found.Namespace != "ops" {
				t.Errorf("installation %+v, %v", found, err)
			}
		})
	}
}

func TestClusterObjects(t *testing.T) {
	object := func(kind, namespace, name string, spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
			"metadata": map[string]any{"namespace": namespace, "name": name}, "spec": spec,
		}}
	}
	version := schema.GroupVersion{Group: KindGateway.Group, Version: "v1"}
	lists := map[schema.GroupVersionResource]string{
		version.WithResource("gateways"): "GatewayList", version.WithResource("gatewayclasses"): "GatewayClassList",
	}
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists)
	for _, o := range []*unstructured.Unstructured{
		object("GatewayClass", "", "ours", map[string]any{"controllerName": ControllerPrefix + "gateway-operator"}),
		object("GatewayClass", "", "theirs", map[string]any{"controllerName": "example.com/c"}),
		object("Gateway", "shop", "turn", map[string]any{"gatewayClassName": "ours"}),
		object("Gateway", "shop", "web", map[string]any{"gatewayClassName": "theirs"}),
		object("Gateway", "other", "turn", map[string]any{"gatewayClassName": "ours"}),
	} {
		resource := version.WithResource(
			map[string]string{"Gateway": "gateways", "GatewayClass": "gatewayclasses"}[o.GetKind()],
		)
		if err := client.Tracker().Create(resource, o, o.GetNamespace()); err != nil {
			t.Fatal(err)
		}
	}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{version})
	mapper.AddSpecific(version.WithKind("Gateway"), version.WithResource("gateways"), version.WithResource("gateway"),
		meta.RESTScopeNamespace)
	mapper.AddSpecific(version.WithKind("GatewayClass"), version.WithResource("gatewayclasses"),
		version.WithResource("gatewayclass"), meta.RESTScopeRoot)
	c := &Cluster{Dynamic: client, mapper: func() (meta.RESTMapper, error) { return mapper, nil }}

	gateways, err := c.Gateways(t.Context(), "shop")
	if err != nil || !reflect.DeepEqual(gateways, []types.NamespacedName{gateway}) {
		t.Error(gateways, err)
	}
	objects, err := c.Objects(t.Context(), "", KindGateway, KindUDPRoute, KindSecret)
	if err != nil || len(objects.Items) != 3 || len(objects.Unread) != 2 {
		t.Fatal(objects, err)
	}
	if u := objects.Unread[0]; u.Kind != KindUDPRoute || !u.Missing {
		t.Error(u)
	}
	if u := objects.Unread[1]; u.Kind != KindSecret || u.Err == nil {
		t.Error(u)
	}
	for _, action := range client.Actions() {
		if action.GetResource().Resource == "secrets" {
			t.Error("secrets were read")
		}
	}

	failsWith := func(err error) {
		client.PrependReactor("list", "gatewayclasses", func(kubetesting.Action) (bool, runtime.Object, error) {
			return true, nil, err
		})
	}
	failsWith(apierrors.NewForbidden(version.WithResource("gatewayclasses").GroupResource(), "", nil))
	if gateways, err = c.Gateways(t.Context(), "shop"); err != nil || len(gateways) != 2 {
		t.Error("without the right to read classes:", gateways, err)
	}
	failsWith(apierrors.NewServiceUnavailable("no leader"))
	if gateways, err = c.Gateways(t.Context(), "shop"); err == nil {
		t.Error("the API server does not answer for the classes, but Gateways of all classes are ours:", gateways)
	}
}
