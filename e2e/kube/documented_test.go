package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// documentedController is the controller name in the manifests of the documentation.
const documentedController = "stunner.l7mp.io/gateway-operator"

// TestDocumentedExamplesWorkAtAPIServer applies every manifest of testdata/documented with kubectl. The objects of the
// operator have the expected outcome, and equal the output of stunnerctl render. The rows run one after another, and
// not beside other tests, because the manifests have fixed names, Gateways of other tests could use the address of
// their Node, and the operators of several tests have the same controller name.
func TestDocumentedExamplesWorkAtAPIServer(t *testing.T) {
	s := prepare(t, t.TempDir(), nameOf(t))
	s.must(installKEDA())
	s.allow("objects", "workloadNames", "['stunner']") // of the profile for manifests of the platform
	s.startWatching(
		"", "--controller-name", documentedController, "--discovery-url", renderedDiscovery, "--scaler-url", renderedScaler,
	)
	common, pair := s.tenant(t), certificatePair(t)
	stunnerctl := filepath.Join(harnesstest.Build(t, harness.Stunnerctl), filepath.Base(harness.Stunnerctl))
	for _, row := range documentation {
		t.Run(row.name(), func(t *testing.T) {
			n := common.in(metav1.NamespaceDefault)
			n.T = t
			row.onServer(server{n}, pair, stunnerctl)
		})
	}
}

// TestDocumentedExamplesWorkInFolder gives the same manifests to the file provider. Each operator has a network
// namespace of its own, because it assigns another port to a listener if the port of the manifest is in use on the
// host.
func TestDocumentedExamplesWorkInFolder(t *testing.T) {
	t.Parallel()
	operator, pair := filepath.Join(harnesstest.Build(t, harness.Operator), filepath.Base(harness.Operator)),
		certificatePair(t)
	for _, row := range documentation {
		t.Run(row.name(), func(t *testing.T) {
			t.Parallel()
			row.inFolder(t, operator, pair)
		})
	}
}

// Every manifest of testdata/documented has a row.
func TestEachDocumentedExampleHasARow(t *testing.T) {
	files, err := filepath.Glob("testdata/documented/*/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("found no manifests: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(file, "testdata/documented/"), ".yaml")
		if !slices.ContainsFunc(documentation, func(row documented) bool { return row.manifest == name }) {
			t.Errorf("no row is about %s", file)
		}
	}
}

func (row documented) name() string {
	if row.when == "" {
		return row.manifest
	}
	return row.manifest + " " + row.when
}

// file is YAML that is applied before the manifest of a row.
type file struct {
	name, text string
	shown      bool // the outcome includes its Gateways
}

// before returns these files, in their order.
func (row documented) before(t *testing.T, pair *strings.Replacer) []file {
	t.Helper()
	files := []file{{name: "around", text: pair.Replace(around)}}
	for _, manifest := range row.with {
		if manifest != row.manifest {
			files = append(files, file{manifest, readManifest(t, manifest), true})
		}
	}
	if row.also != "" {
		files = append(files, file{name: "also", text: row.also})
	}
	return files
}

func readManifest(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(manifestPath(name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func manifestPath(name string) string { return filepath.Join("testdata/documented", name+".yaml") }

// certificatePair replaces CERTIFICATE and KEY in YAML.
func certificatePair(t *testing.T) *strings.Replacer {
	t.Helper()
	chain, private, err := harness.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer("CERTIFICATE", quoted(chain), "KEY", quoted(private))
}

// onServer applies the manifest of a row, and compares the error of the API server, the outcome, and the objects of the
// operator with the output of stunnerctl render.
func (row documented) onServer(s server, pair *strings.Replacer, stunnerctl string) {
	s.Helper()
	var applied, compared []*unstructured.Unstructured
	defer func() { s.clear(applied) }()
	for _, f := range row.before(s.T, pair) {
		list := s.objects(f.text)
		applied, compared = append(applied, list...), append(compared, f.gateways(list)...)
		for _, o := range list {
			s.must(s.try(o))
		}
	}
	path := manifestPath(row.manifest)
	if row.refused != "" {
		if _, err := control.Kubectl(s.Context(), "apply", "-f", path); err == nil {
			s.Errorf("kubectl applies %s", path)
		}
		for _, o := range s.objects(readManifest(s.T, row.manifest)) {
			err := s.Create(s.Context(), o, client.DryRunAll)
			rejected := apierrors.IsBadRequest(err) || apierrors.IsInvalid(err)
			if !rejected || !strings.Contains(err.Error(), row.refused) {
				s.Errorf("API server: %v, want an error with %q", err, row.refused)
			}
		}
		path = s.file(row.remedy.Replace(readManifest(s.T, row.manifest)))
	}
	text, err := os.ReadFile(path)
	s.must(err)
	list := s.objects(string(text))
	applied = append(applied, list...)
	_, err = control.Kubectl(s.Context(), "apply", "-f", path)
	s.must(err)
	row.compare(s.T, s, append(compared, list...), row.outcome)
	s.equalsRendered(stunnerctl)
}

// inFolder gives the manifest of a row to the file provider, and compares its problems and the outcome.
func (row documented) inFolder(t *testing.T, operator string, pair *strings.Replacer) {
	f := newFolder(t, operator)
	var compared []*unstructured.Unstructured
	for _, before := range row.before(t, pair) {
		f.write(before.name, before.text)
		compared = append(compared, before.gateways(f.objects(before.text))...)
	}
	text := readManifest(t, row.manifest)
	f.write(row.manifest, text)
	f.start()
	f.awaitProblems(row.manifest, row.problem)
	if row.remedy != nil && strings.HasPrefix(row.problem, "Error ") {
		text = row.remedy.Replace(text)
		f.write(row.manifest, text)
		f.awaitProblems(row.manifest, "")
	}
	want := row.outcome
	if row.folder != nil {
		want = row.folder.Replace(want)
	}
	row.compare(t, f, append(compared, f.objects(text)...), want)
}

// gateways returns the Gateways of a list if the outcome includes the Gateways of the file.
func (f file) gateways(list []*unstructured.Unstructured) (all []*unstructured.Unstructured) {
	for _, o := range list {
		if f.shown && o.GetKind() == "Gateway" {
			all = append(all, o)
		}
	}
	return all
}

// applier is an API server, or a folder.
type applier interface {
	// status returns an object with its status.
	status(context.Context, *unstructured.Unstructured) ([]byte, error)
	// config returns the published config of a Gateway, or an empty config.
	config(context.Context, *unstructured.Unstructured) (config.Config, error)
	// made returns the Services and Deployments of a Gateway.
	made(context.Context, *unstructured.Unstructured) ([]client.Object, error)
	// address returns the public address of all Gateways.
	address() string
}

// compare waits until the outcome equals the expected text, and the messages of conditions contain the texts of the
// row.
func (row documented) compare(t *testing.T, a applier, all []*unstructured.Unstructured, want string) {
	t.Helper()
	if row.contradicts != "" {
		t.Log(row.contradicts)
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if err := harness.Until(ctx,
		func(ctx context.Context) error { return row.differs(ctx, a, all, want) }); err != nil {
		t.Error(err)
	}
}

// differs compares the outcome with the wanted text, and the messages of conditions with the texts of the row.
func (row documented) differs(ctx context.Context, a applier, all []*unstructured.Unstructured, want string) error {
	got, messages, err := outcome(ctx, a, all)
	if err != nil {
		return err
	}
	if err := differ("outcome", want, got); err != nil {
		return err
	}
	if !strings.Contains(messages, row.says) {
		return fmt.Errorf("no condition says %q:\n%s", row.says, messages)
	}
	return nil
}

// outcome formats the conditions of objects, and the configs, Services and Deployments of Gateways.
func outcome(ctx context.Context, a applier, all []*unstructured.Unstructured) (text, messages string, err error) {
	var b, said strings.Builder
	for _, o := range all {
		data, err := a.status(ctx, o)
		if err != nil {
			return "", "", err
		}
		var live reported
		if err := yaml.Unmarshal(data, &live); err != nil {
			return "", "", err
		}
		live.write(&b, &said, o)
		if o.GetKind() == "Gateway" {
			if err := writeGateway(ctx, &b, a, o); err != nil {
				return "", "", err
			}
		}
	}
	return strings.ReplaceAll(b.String(), a.address(), "ADDRESS"), said.String(), nil
}

// reported has the status of every kind, and the target of a ScaledObject.
type reported struct {
	Metadata struct {
		Generation int64 `json:"generation"`
	} `json:"metadata"`
	Spec struct {
		Target struct {
			Name string `json:"name"`
		} `json:"scaleTargetRef"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition             `json:"conditions"`
		Addresses  []gwapiv1.GatewayStatusAddress `json:"addresses"`
		Listeners  []gwapiv1.ListenerStatus       `json:"listeners"`
		Parents    []gwapiv1.RouteParentStatus    `json:"parents"`
	} `json:"status"`
}

func (r reported) write(b, said *strings.Builder, o *unstructured.Unstructured) {
	version, generation := o.GetAPIVersion()[strings.LastIndex(o.GetAPIVersion(), "/")+1:], r.Metadata.Generation
	conditions := func(list []metav1.Condition) string {
		list = slices.DeleteFunc(list, func(c metav1.Condition) bool { return c.Type == controllerConflict })
		for _, c := range list {
			if c.Message != "" {
				fmt.Fprintln(said, c.Message)
			}
		}
		return brief(list, generation)
	}
	fmt.Fprintf(b, "%s %s %s: ", o.GetKind(), version, strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/"))
	if target := r.Spec.Target.Name; target != "" {
		fmt.Fprintf(b, "scales Deployment %s\n", target)
		return
	}
	fmt.Fprint(b, conditions(r.Status.Conditions))
	for _, a := range r.Status.Addresses {
		fmt.Fprintf(b, " at %s", a.Value)
	}
	for _, l := range r.Status.Listeners {
		fmt.Fprintf(b, "\n  %s, %d routes: %s", l.Name, l.AttachedRoutes, conditions(l.Conditions))
	}
	for _, p := range r.Status.Parents {
		if p.ControllerName == documentedController {
			fmt.Fprintf(b, "%s %s", p.ParentRef.Name, conditions(p.Conditions))
		}
	}
	fmt.Fprintln(b)
}

func writeGateway(ctx context.Context, b *strings.Builder, a applier, o *unstructured.Unstructured) error {
	c, err := a.config(ctx, o)
	if err != nil {
		return err
	}
	if c.Admin.Name == "" {
		fmt.Fprintln(b, "no config")
	} else {
		keys := strings.Join(slices.Sorted(maps.Keys(c.Auth.Credentials)), " ")
		fmt.Fprintf(b, "config: %s, %s, %s for realm %s", c.Admin.LogLevel, c.Auth.Type, keys, c.Auth.Realm)
		if c.Auth.Lifetime != 0 {
			fmt.Fprintf(b, " for %d s", c.Auth.Lifetime)
		}
		fmt.Fprintln(b)
	}
	for _, l := range c.Listeners {
		fmt.Fprintf(b, "  %s on %s, public %s:%s", l.Protocol, port(l.Port), l.PublicAddress, port(l.PublicPort))
		if l.TLSAtBalancer {
			b.WriteString(", TLS at the load balancer")
		}
		if l.Cert != "" {
			b.WriteString(", with a certificate")
		}
		if len(l.Routes) > 0 {
			fmt.Fprintf(b, ", to %s", strings.Join(l.Routes, " "))
		}
		fmt.Fprintln(b)
	}
	for _, cluster := range c.Clusters {
		fmt.Fprintf(b, "  %s: %s\n", cluster.Name, strings.Join(cluster.Endpoints, " "))
	}
	made, err := a.made(ctx, o)
	for _, object := range made {
		switch object := object.(type) {
		case *corev1.Service:
			fmt.Fprintf(b, "Service %s: %s", object.Name, object.Spec.Type)
			for _, p := range object.Spec.Ports {
				fmt.Fprintf(b, ", %s %d to %s", p.Protocol, p.Port, p.TargetPort.String())
			}
			for _, key := range slices.Sorted(maps.Keys(object.Annotations)) {
				if !strings.HasPrefix(key, "stunner.l7mp.io/") {
					fmt.Fprintf(b, "\n  %s: %s", key, object.Annotations[key])
				}
			}
			fmt.Fprintln(b)
		case *appsv1.Deployment:
			pod := object.Spec.Template.Spec
			c := pod.Containers[0]
			fmt.Fprintf(b, "Deployment %s: %s", object.Name, strings.Join(append([]string{c.Image}, c.Args...), " "))
			for _, resources := range []corev1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
				if len(resources) > 0 {
					fmt.Fprintf(b, ", %s CPU %s", resources.Cpu(), resources.Memory())
				}
			}
			fmt.Fprintf(b, ", %d s\n", *pod.TerminationGracePeriodSeconds)
		}
	}
	return err
}

// port formats a port. Node ports, and ports that the file provider chooses, differ between runs.
func port(n int) string {
	if n >= 20000 && n < 32768 {
		return "ANY"
	}
	return strconv.Itoa(n)
}

// readConfig reads the config of a Gateway from config discovery.
func readConfig(
	ctx context.Context, by *http.Client, port int, gateway *unstructured.Unstructured,
) (c config.Config, err error) {
	code, body, err := harness.GetBy(ctx, by, fmt.Sprintf(
		"http://127.0.0.1:%d/api/v1/configs/%s/%s", port, gateway.GetNamespace(), gateway.GetName(),
	))
	if err == nil && code == http.StatusOK {
		err = json.Unmarshal(body, &c)
	}
	return c, err
}

// server is the API server with an operator. It gives load balancers an address.
type server struct{ *tenant }

func (server) address() string { return "203.0.113.20" }

func (s server) status(ctx context.Context, o *unstructured.Unstructured) ([]byte, error) {
	live := o.DeepCopy()
	if err := s.Get(ctx, client.ObjectKeyFromObject(o), live); err != nil {
		return nil, err
	}
	return live.MarshalJSON()
}

func (s server) config(ctx context.Context, gateway *unstructured.Unstructured) (config.Config, error) {
	return readConfig(ctx, http.DefaultClient, s.discovery, gateway)
}

func (s server) made(ctx context.Context, gateway *unstructured.Unstructured) (all []client.Object, err error) {
	all, err = s.generated(ctx, gateway)
	for _, o := range all {
		service, ok := o.(*corev1.Service)
		if ok && service.Spec.Type == corev1.ServiceTypeLoadBalancer && len(service.Status.LoadBalancer.Ingress) == 0 {
			service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: s.address()}}
			err = errors.Join(err, s.Status().Update(ctx, service))
		}
	}
	return all, err
}

// generated returns the Services and Deployments of a Gateway.
func (s server) generated(ctx context.Context, gateway *unstructured.Unstructured) (all []client.Object, err error) {
	of := []client.ListOption{
		client.InNamespace(gateway.GetNamespace()),
		client.MatchingLabels{gwapiv1.GatewayNameLabelKey: gateway.GetName()},
	}
	services, deployments := &corev1.ServiceList{}, &appsv1.DeploymentList{}
	if err := errors.Join(s.List(ctx, services, of...), s.List(ctx, deployments, of...)); err != nil {
		return nil, err
	}
	for i := range services.Items {
		all = append(all, &services.Items[i])
	}
	for i := range deployments.Items {
		all = append(all, &deployments.Items[i])
	}
	return all, nil
}

// clear deletes objects, the last first, and waits until the objects of Gateways are deleted too.
func (s server) clear(list []*unstructured.Unstructured) {
	s.Helper()
	list = slices.DeleteFunc(list, func(o *unstructured.Unstructured) bool { return o.GetKind() == "Namespace" })
	for _, o := range slices.Backward(list) {
		s.must(client.IgnoreNotFound(s.Delete(s.Context(), o)))
	}
	s.await(func(ctx context.Context) error {
		for _, o := range list {
			if _, err := s.status(ctx, o); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s %s still exists: %v", o.GetKind(), o.GetName(), err)
			}
			if o.GetKind() != "Gateway" {
				continue
			}
			if made, err := s.made(ctx, o); err != nil || len(made) > 0 {
				return fmt.Errorf("%d objects of Gateway %s still exist: %v", len(made), o.GetName(), err)
			}
		}
		return nil
	})
}

// folder is the input and output of a file provider that starts no dataplanes and runs in a network namespace.
type folder struct {
	*testing.T
	operator string
	in, out  string
	space    *netns.Space
	client   *http.Client // connects in the namespace
}

// folderDiscovery is the port of config discovery in the namespace of a folder.
const folderDiscovery = 13478

func newFolder(t *testing.T, operator string) *folder {
	t.Helper()
	f := &folder{T: t, operator: operator, in: t.TempDir(), out: t.TempDir(), space: netns.New(t, "folder")}
	connections := &http.Transport{DialContext: f.space.Dial}
	t.Cleanup(connections.CloseIdleConnections)
	f.client = &http.Client{Transport: connections}
	return f
}

// write writes YAML to the file with a name in the input folder.
func (f *folder) write(name, text string) {
	f.Helper()
	path := filepath.Join(f.in, name+".yaml")
	draft := filepath.Join(f.out, "draft")
	if err := errors.Join(
		os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(draft, []byte(text), 0o600), os.Rename(draft, path),
	); err != nil {
		f.Fatal(err)
	}
}

func (f *folder) start(more ...string) {
	f.Helper()
	command := harness.Command{Name: "operator", Path: f.operator, Logs: f.TempDir(), Args: append([]string{
		"--input", f.in, "--output", f.out, "--discovery-address", "127.0.0.1:" + strconv.Itoa(folderDiscovery),
		"--discovery-auth=off",
	}, more...)}
	var p *harness.Process
	var err error
	f.space.Do(func() { p, err = harness.Start(command) })
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if f.Failed() {
			f.Logf("last log lines of the operator:\n%s", strings.Join(p.Tail(20), "\n"))
		}
		_ = p.Stop(timeout) // the operator ends its dataplanes
	})
}

// awaitProblems waits until a file has the wanted problems, as SEVERITY FIELD: MESSAGE.
func (f *folder) awaitProblems(name, want string) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), timeout)
	defer cancel()
	if err := harness.Until(ctx, func(context.Context) error {
		data, err := os.ReadFile(filepath.Join(f.out, "problems.yaml"))
		if err != nil {
			return err
		}
		var problems []struct{ File, Severity, Field, Message string }
		if err := yaml.Unmarshal(data, &problems); err != nil {
			return err
		}
		var found []string
		for _, p := range problems {
			if p.File == name+".yaml" {
				found = append(found, p.Severity+" "+p.Field+": "+p.Message)
			}
		}
		if got := strings.Join(found, "\n"); got != want {
			return fmt.Errorf("problems of %s:\n%s\nwant\n%s", name, got, want)
		}
		return nil
	}); err != nil {
		f.Fatal(err)
	}
}

// objects reads YAML. Objects without a namespace get the default namespace.
func (f *folder) objects(text string) (list []*unstructured.Unstructured) {
	f.Helper()
	for document := range strings.SplitSeq(text, "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
			f.Fatal(err)
		}
		if o.GetNamespace() == "" && o.GetKind() != "GatewayClass" && o.GetKind() != "Dataplane" {
			o.SetNamespace(metav1.NamespaceDefault)
		}
		list = append(list, o)
	}
	return list
}

func (*folder) address() string { return "127.0.0.1" }

func (f *folder) status(_ context.Context, o *unstructured.Unstructured) ([]byte, error) {
	kind := strings.ToLower(o.GetKind())
	if kind == "scaledobject" {
		return os.ReadFile(filepath.Join(f.out, "objects", o.GetNamespace(), kind+"-"+o.GetName()+".yaml"))
	}
	if gvk := o.GroupVersionKind(); kind == "udproute" && gvk.Group == gwapiv1.GroupName {
		kind += "." + gvk.Version + "." + gvk.Group
	}
	name := strings.TrimPrefix(o.GetNamespace()+"_"+o.GetName(), "_") + ".yaml"
	return os.ReadFile(filepath.Join(f.out, "status", kind, name))
}

func (f *folder) config(ctx context.Context, gateway *unstructured.Unstructured) (config.Config, error) {
	return readConfig(ctx, f.client, folderDiscovery, gateway)
}

func (f *folder) made(_ context.Context, gateway *unstructured.Unstructured) (all []client.Object, err error) {
	return madeIn(f.out, gateway)
}

// madeIn returns the Services and Deployments of a Gateway in an output folder.
func madeIn(out string, gateway *unstructured.Unstructured) (all []client.Object, err error) {
	read := func(kind string, object func() client.Object) {
		files, e := filepath.Glob(filepath.Join(out, "objects", gateway.GetNamespace(), kind+"-*.yaml"))
		err = errors.Join(err, e)
		var list []client.Object
		for _, file := range files {
			data, e := os.ReadFile(file)
			o := object()
			err = errors.Join(err, e, yaml.Unmarshal(data, o))
			if o.GetLabels()[gwapiv1.GatewayNameLabelKey] == gateway.GetName() {
				list = append(list, o)
			}
		}
		slices.SortFunc(list, func(a, b client.Object) int { return strings.Compare(a.GetName(), b.GetName()) })
		all = append(all, list...)
	}
	read("service", func() client.Object { return &corev1.Service{} })
	read("deployment", func() client.Object { return &appsv1.Deployment{} })
	return all, err
}
