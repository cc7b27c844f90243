package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// The table of places: the URLs that clients of a Gateway get, depending on where they reach its pods. A row is an
// archive testdata/places/NAME.txtar; its comment describes the place. A new place is a new archive:
//
//	config.yaml, dataplane.yaml  fields of spec of the GatewayConfig and of the Dataplane; may be missing
//	gateway.yaml                 the Gateway, named door. NAMESPACE is replaced; it is also the name of the GatewayClass
//	cluster.yaml                 what other controllers write: the status of Services, and Nodes
//	host                         with a folder: addresses of the host, one of each family
//	want/server.txt              status, published config, ICE URLs and Services with the API server
//	want/folder.txt              the same with a folder. A URL at an address of the host is marked as "reached" after a
//	                             client has called a media server through it
//
// A row without one of the want/ files does not exist there. With the API server no pods run in this suite. Calls to
// the addresses of these places are made in e2e/shapes, behaviour ToldAddressesAreReachable.
const placeFiles = "testdata/places/*.txtar"

// placeSetting contains the other objects of a row: all except the Gateway.
const placeSetting = `apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: NAMESPACE}
spec:
  controllerName: CONTROLLER
  parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, namespace: NAMESPACE, name: turn}
---
apiVersion: v1
kind: Secret
metadata: {name: turn, namespace: NAMESPACE}
stringData: {type: ephemeral, secret: signs-the-credentials-of-all-calls}
---
apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata: {name: turn, namespace: NAMESPACE}
spec: {authRef: {name: turn}, dataplane: NAMESPACE}
---
apiVersion: stunner.l7mp.io/v1
kind: Dataplane
metadata: {name: NAMESPACE}
spec: {}
---
apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: echo, namespace: NAMESPACE}
spec:
  parentRefs: [{name: door}]
  rules: [{backendRefs: [{name: echo}]}]
---
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: NAMESPACE}
spec: {clusterIP: None}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: echo4, namespace: NAMESPACE, labels: {kubernetes.io/service-name: echo}}
addressType: IPv4
endpoints: [{addresses: [198.51.100.200]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: echo6, namespace: NAMESPACE, labels: {kubernetes.io/service-name: echo}}
addressType: IPv6
endpoints: [{addresses: ["2001:db8::200"]}]
`

// placeEchoes are the addresses of the media server of a row.
var placeEchoes = []netip.Addr{netip.MustParseAddr("198.51.100.200"), netip.MustParseAddr("2001:db8::200")}

// TestPlacesAtAPIServer compares each row with the API server. The rows run one after another, and not beside other
// tests, because a Gateway could use the Nodes of another row.
func TestPlacesAtAPIServer(t *testing.T) {
	common := newTenant(t)
	auth := startAuth(t, common.discovery, func(start func()) { start() })
	for i, row := range archiveRows(t, placeFiles) {
		if !row.has("want/server.txt") {
			continue
		}
		t.Run(row.name, func(t *testing.T) {
			n := common.in(fmt.Sprintf("place%d", i))
			n.T = t
			n.must(n.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.name}}))
			names := strings.NewReplacer("NAMESPACE", n.name, "CONTROLLER", n.controller())
			n.apply(names.Replace(row.setting(t)))
			gateway := n.objects(names.Replace(row.text("gateway.yaml")))[0]
			n.must(n.try(gateway))
			n.answer(row.text("cluster.yaml"))
			s := silentServer{server{n}}
			row.compare(t, "want/server.txt", n.name, func(ctx context.Context) (string, error) {
				return placeOutcome(ctx, s, gateway, auth.urls)
			})
			// The Nodes of this row must not serve the Gateways of the next rows.
			n.must(n.Delete(context.WithoutCancel(t.Context()), gateway))
		})
	}
}

// silentServer is a server that assigns no addresses to load balancers.
type silentServer struct{ server }

func (s silentServer) made(ctx context.Context, gateway *unstructured.Unstructured) ([]client.Object, error) {
	return s.generated(ctx, gateway)
}

// answer writes the objects of other controllers of a cluster: the status of Services, once they exist, and Nodes.
func (n *tenant) answer(text string) {
	n.Helper()
	for _, o := range n.objects(text) {
		if o.GetKind() == "Node" {
			n.must(n.Create(n.Context(), o.DeepCopy()))
			n.Cleanup(func() { n.must(n.Delete(context.Background(), o)) })
		}
		status, err := json.Marshal(map[string]any{"status": o.Object["status"]})
		n.must(err)
		n.await(func(ctx context.Context) error {
			return n.Status().Patch(ctx, o.DeepCopy(), client.RawPatch(types.MergePatchType, status))
		})
	}
}

// TestPlacesInFolder compares each row with a file provider, which has a network namespace of its own and runs
// dataplanes.
func TestPlacesInFolder(t *testing.T) {
	t.Parallel()
	programs := harnesstest.Build(t, harness.Operator, harness.Stunnerd, harness.Auth)
	for _, row := range archiveRows(t, placeFiles) {
		if !row.has("want/folder.txt") {
			continue
		}
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			f := newFolder(t, filepath.Join(programs, "operator"))
			hosts := strings.Fields(row.text("host"))
			echo := f.network(hosts)
			names := strings.NewReplacer("NAMESPACE", "place", "CONTROLLER", documentedController)
			f.write("setting", names.Replace(row.setting(t)))
			f.write("gateway", names.Replace(row.text("gateway.yaml")))
			f.start("--address="+strings.Join(hosts, ","), "--stunnerd="+filepath.Join(programs, "stunnerd"),
				"--stop-grace=1s")
			auth := startAuth(t, folderDiscovery, f.space.Do)
			gateway := f.objects(names.Replace(row.text("gateway.yaml")))[0]
			row.compare(t, "want/folder.txt", "place", func(ctx context.Context) (string, error) {
				return placeOutcome(ctx, f, gateway, func(ctx context.Context, o *unstructured.Unstructured) ([]string, error) {
					return f.reach(ctx, o, auth, hosts, echo)
				})
			})
		})
	}
}

// network adds the addresses of the host, and starts the media server of a row. It returns the address of the media
// server in the family of the relays of clients that request no family.
func (f *folder) network(hosts []string) (echo netip.AddrPort) {
	f.Helper()
	all := slices.Clone(placeEchoes[:])
	for _, a := range hosts {
		all = append(all, netip.MustParseAddr(a))
	}
	for _, a := range all {
		harnesstest.NoError(f.T, f.space.AddAddress(netip.PrefixFrom(a, a.BitLen()), "lo"))
	}
	wanted := placeEchoes[1]
	if slices.ContainsFunc(hosts, func(a string) bool { return netip.MustParseAddr(a).Is4() }) {
		wanted = placeEchoes[0]
	}
	f.space.Do(func() { echo = harnesstest.Echo(f.T, wanted) })
	return echo
}

// reach returns the URLs of a Gateway. It calls through each URL whose host is one of the hosts.
func (f *folder) reach(
	ctx context.Context, gateway *unstructured.Unstructured, auth placeAuth, hosts []string, echo netip.AddrPort,
) (urls []string, err error) {
	servers, err := auth.servers(ctx, f.client, gateway)
	if err != nil {
		return nil, err
	}
	for _, s := range servers {
		for _, url := range s.URLs {
			uri, err := config.ParseURI(url)
			if err != nil {
				return nil, err
			}
			if !slices.Contains(hosts, uri.Host) {
				urls = append(urls, url)
				continue
			}
			at := netip.AddrPortFrom(netip.MustParseAddr(uri.Host), uint16(uri.Port))
			one, err := call.Start(ctx, call.Options{
				Gateway: at, Network: call.Network(uri.Transport), Do: f.space.Do, Username: s.Username, Password: s.Credential,
				Peer: echo,
			})
			if err == nil {
				err = one.Await(ctx, 3)
				one.End(0)
			}
			if err != nil {
				return nil, fmt.Errorf("call through %s: %w", url, err)
			}
			urls = append(urls, url+" reached")
		}
	}
	return urls, nil
}

// placeRow is a row of a table of archives.
type placeRow struct {
	name, file string
	archive    *txtar.Archive
}

func archiveRows(t *testing.T, pattern string) (rows []placeRow) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no archives found: %v", err)
	}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, placeRow{strings.TrimSuffix(filepath.Base(file), ".txtar"), file, archive})
	}
	return rows
}

func (r placeRow) index(name string) int {
	return slices.IndexFunc(r.archive.Files, func(f txtar.File) bool { return f.Name == name })
}

func (r placeRow) has(name string) bool { return r.index(name) >= 0 }

// text returns a file of the archive, or "".
func (r placeRow) text(name string) string {
	if i := r.index(name); i >= 0 {
		return string(r.archive.Files[i].Data)
	}
	return ""
}

// setting returns placeSetting with the fields of config.yaml and dataplane.yaml.
func (r placeRow) setting(t *testing.T) string {
	t.Helper()
	var documents []string
	for document := range strings.SplitSeq(placeSetting, "---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
			t.Fatal(err)
		}
		part := map[string]string{"GatewayConfig": "config.yaml", "Dataplane": "dataplane.yaml"}[o.GetKind()]
		if part != "" {
			spec := o.Object["spec"].(map[string]any)
			if err := yaml.Unmarshal([]byte(r.text(part)), &spec); err != nil {
				t.Fatal(err)
			}
		}
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		documents = append(documents, string(text))
	}
	return strings.Join(documents, "---\n")
}

// compare waits until the outcome equals the expected one. With -update it waits until the outcome does not change any
// more, and rewrites the file.
func (r placeRow) compare(t *testing.T, part, namespace string, outcome func(context.Context) (string, error)) {
	t.Helper()
	look := func(ctx context.Context) (string, error) {
		text, err := outcome(ctx)
		text = withoutAllocated(text)
		if namespace != "" {
			text = strings.ReplaceAll(text, namespace, "NAMESPACE")
		}
		return text, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if !*update {
		if err := harness.Until(ctx, func(ctx context.Context) error {
			got, err := look(ctx)
			return errors.Join(err, differ(part, r.text(part), got))
		}); err != nil {
			t.Error(err)
		}
		return
	}
	last, since := "", time.Now()
	if err := harness.Until(ctx, func(ctx context.Context) error {
		got, err := look(ctx)
		if got != last {
			last, since = got, time.Now()
		}
		if err == nil && time.Since(since) < 3*time.Second {
			err = errors.New("it still changes")
		}
		return err
	}); err != nil {
		t.Error(err)
		return
	}
	r.archive.Files[r.index(part)].Data = []byte(last)
	if err := os.WriteFile(r.file, txtar.Format(r.archive), 0o644); err != nil {
		t.Fatal(err)
	}
}

// placeOutcome formats everything that depends on the place of a Gateway: its status, the endpoints in its config, the
// URLs of the auth service, and its Services.
func placeOutcome(
	ctx context.Context, a applier, gateway *unstructured.Unstructured,
	urls func(context.Context, *unstructured.Unstructured) ([]string, error),
) (string, error) {
	data, err := a.status(ctx, gateway)
	if err != nil {
		return "", err
	}
	var live reported
	if err := yaml.Unmarshal(data, &live); err != nil {
		return "", err
	}
	var b strings.Builder
	write := func(name string, conditions []metav1.Condition) {
		conditions = slices.DeleteFunc(conditions, func(c metav1.Condition) bool { return c.Type == controllerConflict })
		fmt.Fprintf(&b, "%s: %s\n", name, brief(conditions, live.Metadata.Generation))
		for _, c := range conditions {
			if c.Message != "" {
				fmt.Fprintf(&b, "  %s: %s\n", c.Type, c.Message)
			}
		}
	}
	write("Gateway", live.Status.Conditions)
	for _, address := range live.Status.Addresses {
		fmt.Fprintf(&b, "address %s %s\n", *address.Type, address.Value)
	}
	for _, l := range live.Status.Listeners {
		write("listener "+string(l.Name), l.Conditions)
	}
	c, err := a.config(ctx, gateway)
	if err != nil {
		return "", err
	}
	for _, l := range c.Listeners {
		fmt.Fprintf(&b, "config %s: %s, port %d, public_address %q, public_port %d", l.Name[strings.LastIndex(l.Name, "/")+1:],
			l.Protocol, l.Port, l.PublicAddress, l.PublicPort)
		if len(l.PublicAddresses) > 0 {
			fmt.Fprintf(&b, ", public_addresses %q", l.PublicAddresses)
		}
		if l.TLSAtBalancer {
			b.WriteString(", tls_at_load_balancer")
		}
		if len(l.ProxyProtocol) > 0 {
			fmt.Fprintf(&b, ", proxy_protocol %q", l.ProxyProtocol)
		}
		b.WriteByte('\n')
	}
	told, err := urls(ctx, gateway)
	if err != nil {
		return "", err
	}
	for _, url := range told {
		fmt.Fprintln(&b, "URL", url)
	}
	err = writePlaceServices(ctx, &b, a, gateway)
	return b.String(), err
}

// writePlaceServices writes the Services of a Gateway.
func writePlaceServices(ctx context.Context, b *strings.Builder, a applier, gateway *unstructured.Unstructured) error {
	made, err := a.made(ctx, gateway)
	for _, object := range made {
		service, ok := object.(*corev1.Service)
		if !ok {
			continue
		}
		fmt.Fprintf(b, "Service %s: %s", service.Name, service.Spec.Type)
		for _, p := range service.Spec.Ports {
			fmt.Fprintf(b, ", %s %d to %s", p.Protocol, p.Port, p.TargetPort.String())
		}
		if service.Spec.LoadBalancerIP != "" {
			fmt.Fprintf(b, ", loadBalancerIP %s", service.Spec.LoadBalancerIP)
		}
		if len(service.Spec.ExternalIPs) > 0 {
			fmt.Fprintf(b, ", externalIPs %s", strings.Join(service.Spec.ExternalIPs, " "))
		}
		b.WriteByte('\n')
	}
	return err
}

// placeAuth is the base URL of an auth service.
type placeAuth string

// startAuth starts an auth service that reads config discovery at a port, in the network in which do calls a function.
func startAuth(t *testing.T, discovery int, do func(func())) placeAuth {
	t.Helper()
	programs := harnesstest.Build(t, harness.Auth)
	address, health := harnesstest.Address(t), harnesstest.Address(t)
	host, port, _ := strings.Cut(address, ":")
	var p *harness.Process
	var err error
	do(func() {
		p, err = harness.Start(harness.Command{Name: "auth", Path: filepath.Join(programs, "auth"), Logs: t.TempDir(),
			Args: []string{
				fmt.Sprintf("--config=http://127.0.0.1:%d", discovery), "--address", host, "--port", port,
				"--health-address", health,
				"--shutdown-delay=0", "--rate-limit=0", "--cluster-rate-limit=0", "--max-urls=0",
			}})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last log lines of the auth service:\n%s", strings.Join(p.Tail(20), "\n"))
		}
		_ = p.Kill()
	})
	return placeAuth("http://" + address)
}

// servers returns the ICE servers of a Gateway, or none if the auth service has no address of it.
func (a placeAuth) servers(
	ctx context.Context, by *http.Client, gateway *unstructured.Unstructured,
) (list []harness.ICEServer, err error) {
	question, err := json.Marshal(map[string]any{"dtls": true, "gateways": []map[string]string{
		{"namespace": gateway.GetNamespace(), "name": gateway.GetName()},
	}})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, string(a)+"/v1/ice-servers", bytes.NewReader(question))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	code, body, err := harness.DoBy(by, req)
	switch {
	case err != nil || code == http.StatusNotFound:
		return nil, err
	case code != http.StatusCreated:
		return nil, fmt.Errorf("ask for ICE servers: status %d: %s", code, body)
	}
	var answer harness.ICE
	err = json.Unmarshal(body, &answer)
	return answer.Servers, err
}

func (a placeAuth) urls(ctx context.Context, gateway *unstructured.Unstructured) (urls []string, err error) {
	servers, err := a.servers(ctx, http.DefaultClient, gateway)
	for _, s := range servers {
		urls = append(urls, s.URLs...)
	}
	return urls, err
}
