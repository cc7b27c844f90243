package charts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/cert"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// The programs run with the flags and rights of the chart. The documented example becomes a Gateway, and a web app gets
// credentials for it.
func TestInstallation_ServesAGateway(t *testing.T) {
	in := install(t, release{chart: app})
	kubectl(t, "apply", "-n", home, "-f", file(t, harnesstest.Read(t, "docs/examples/cluster/gateway.yaml")))
	in.expose(home, "front-door")
	image := kubectl(
		t, "get", "deployment/front-door", "-n", home, "-o", "jsonpath={.spec.template.spec.containers[0].image}",
	)
	if image != "ghcr.io/stunner-gateway/stunnerd:0.1.0" {
		t.Errorf("the dataplane runs %s", image)
	}
	in.offers("turn:192.0.2.7:3478?transport=udp", "turn:192.0.2.7:3478?transport=tcp")
}

// With the profile openova, manifests with their own GatewayConfig that scale a Deployment by its name work.
func TestInstallation_OfTheProfileOpenova(t *testing.T) {
	in := install(t, release{chart: app, files: []string{"values-openova.yaml"}})
	restricted(t, "stunner")
	restricted(t, "apps")
	kubectl(t, "apply", "-f", file(t, `
apiVersion: v1
kind: Secret
metadata: {name: turn-password, namespace: stunner}
stringData: {password: one-for-all}
---
apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata: {name: stunner-config, namespace: stunner}
spec:
  realm: stunner.example.org
  authType: longterm
  userName: ada
  password: {name: turn-password, namespace: stunner, key: password}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: stunner}
spec:
  gatewayClassName: stunner-gatewayclass
  listeners:
    - {name: udp, port: 3478, protocol: TURN-UDP}
    - {name: tcp, port: 3478, protocol: TURN-TCP}
---
apiVersion: v1
kind: Service
metadata: {name: sfu, namespace: apps}
spec: {selector: {app: sfu}, ports: [{port: 5000, protocol: UDP}]}
---
apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: media, namespace: stunner}
spec:
  parentRefs: [{name: edge}]
  rules: [{backendRefs: [{name: sfu, namespace: apps}]}]
`))
	in.expose("stunner", "edge")
	kubectl(t, "get", "deployment/stunner", "-n", "stunner")
	accepted := kubectl(
		t, "get", "udproutes.stunner.l7mp.io/media", "-n", "stunner", "-o",
		`jsonpath={.status.parents[0].conditions[*].status}`,
	)
	if strings.Contains(accepted, "False") || accepted == "" {
		t.Errorf("conditions of the route: %s", accepted)
	}
	in.offers("turn:192.0.2.7:3478?transport=udp", "turn:192.0.2.7:3478?transport=tcp")
}

// With the profile offload, the admission policies allow the capabilities of in-kernel forwarding. The operator adds
// them only if the Pod Security level of the namespace allows them too.
func TestInstallation_OfTheProfileOffload(t *testing.T) {
	const namespace = "offload"
	in := install(t, release{chart: app, files: []string{"values-offload.yaml"}})
	restricted(t, namespace)
	kubectl(t, "apply", "-n", namespace, "-f", file(t, harnesstest.Read(t, "docs/examples/cluster/gateway.yaml")))
	in.expose(namespace, "front-door")
	for _, c := range []struct{ level, want string }{{"restricted", ""}, {"privileged", `["BPF","NET_ADMIN"]`}} {
		kubectl(t, "label", "namespace", namespace, "--overwrite", "pod-security.kubernetes.io/enforce="+c.level)
		await(t, func(ctx context.Context) error {
			got, err := control.Field(ctx, namespace, "deployment/front-door",
				".spec.template.spec.containers[0].securityContext.capabilities.add")
			if err == nil && got != c.want {
				err = fmt.Errorf("the level is %s: capabilities %q, want %q", c.level, got, c.want)
			}
			return err
		})
		in.programmed(namespace, "front-door")
	}
}

// installation is a release whose operator and auth service run on this host like their pods.
type installation struct {
	t    *testing.T
	auth string // URL
}

// install applies a release and runs its programs. Only addresses and kubeconfig differ from the chart, because the
// programs run outside the cluster.
func install(t *testing.T, r release) installation {
	t.Helper()
	restricted(t, home)
	begun := time.Now()
	objects := r.objects(t)
	apply(t, objects)
	return start(t, objects, begun)
}

// start runs the programs of a release whose objects have been created since begun.
func start(t *testing.T, objects []object, begun time.Time) installation {
	t.Helper()
	bin := harnesstest.Build(t, harness.Operator, harness.Auth)
	pods := byName(t, objects)
	account := "system:serviceaccount:" + home + ":stunner-operator"
	access, err := control.User(account, "system:serviceaccounts", "system:serviceaccounts:"+home)
	if err != nil {
		t.Fatal(err)
	}
	granted(t, objects, account)

	discovery, health := harnesstest.Address(t), harnesstest.Address(t)
	run(t, filepath.Join(bin, "operator"), pods["Deployment/"+home+"/stunner-operator"], health,
		"--kubeconfig", access.Kubeconfig, "--discovery-address", discovery, "--discovery-token-file",
		token(t, "stunner-operator"), "--health-address", health,
		"--scaler-address", harnesstest.Address(t))
	in := installation{t: t}
	ca := in.authority()
	port := harnesstest.Port(t)
	in.auth = fmt.Sprintf("http://%s:%d/v1/ice-servers", harness.Loopback, port)
	health = harnesstest.Address(t)
	run(t, filepath.Join(bin, "auth"), pods["Deployment/"+home+"/stunner-auth"], health,
		"--config", "https://"+discovery, "--discovery-token-file", token(t, "stunner-auth"), "--discovery-ca-file", ca,
		"--address", harness.Loopback, "--port", fmt.Sprint(port), "--health-address", health, "--shutdown-delay=0")

	t.Cleanup(func() {
		all, err := control.Audit(begun)
		if err != nil {
			t.Error(err)
		}
		asked := 0
		for _, e := range all {
			if e.User == account {
				asked++
				if e.Code == http.StatusForbidden {
					t.Errorf("forbidden: %s %s/%s %s/%s", e.Verb, e.Resource, e.Subresource, e.Namespace, e.Name)
				}
			}
		}
		if asked == 0 {
			t.Error("the audit log has no request of the operator")
		}
	})
	return in
}

// granted waits until each role that is bound to an account is effective. The authorizer gets Roles, ClusterRoles and
// their bindings through separate watches.
func granted(t *testing.T, objects []object, account string) {
	t.Helper()
	named, roles := byName(t, objects), 0
	for _, o := range objects {
		if o.GetKind() != "RoleBinding" && o.GetKind() != "ClusterRoleBinding" {
			continue
		}
		var b rbacv1.RoleBinding // a ClusterRoleBinding has the same fields
		decode(t, o, &b)
		if !slices.ContainsFunc(
			b.Subjects, func(s rbacv1.Subject) bool { return account == "system:serviceaccount:"+s.Namespace+":"+s.Name },
		) {
			continue
		}
		roles++
		key := path.Join(b.RoleRef.Kind, b.RoleRef.Name)
		if b.RoleRef.Kind == "Role" {
			key = path.Join(b.RoleRef.Kind, o.GetNamespace(), b.RoleRef.Name)
		}
		var role rbacv1.ClusterRole // a Role has the same fields
		decode(t, named[key], &role)
		first := role.Rules[0]
		await(t, func(ctx context.Context) error {
			resource := strings.Trim(first.Resources[0]+"."+first.APIGroups[0], ".")
			allowed, err := control.May(ctx, account, first.Verbs[0], resource, o.GetNamespace())
			if err == nil && !allowed {
				err = fmt.Errorf("%s may not %s %s yet", account, first.Verbs[0], resource)
			}
			return err
		})
	}
	if roles < 2 {
		t.Fatalf("%d roles are bound to %s", roles, account)
	}
}

func decode(t *testing.T, o object, into any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, into); err != nil {
		t.Fatalf("%s: %v", name(o), err)
	}
}

// run starts the program of a Deployment with its flags and environment, and waits until it is ready. If a flag occurs
// twice, the last one counts.
func run(t *testing.T, program string, deployment object, health string, more ...string) {
	t.Helper()
	c := container(t, deployment)
	own := map[string]string{"POD_NAMESPACE": home, "POD_IP": harness.Loopback}
	var expand []string
	env := []string{}
	for _, e := range c.Env {
		value, given := own[e.Name]
		if !given {
			value = e.Value
		}
		expand = append(expand, "$("+e.Name+")", value)
		env = append(env, e.Name+"="+value)
	}
	args := slices.Clone(c.Args)
	for i := range args {
		args[i] = strings.NewReplacer(expand...).Replace(args[i])
	}
	p, err := harness.Start(harness.Command{
		Name: filepath.Base(program), Path: program, Args: append(args, more...), Env: env, Logs: t.TempDir(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last log lines of %s:\n%s", p.Name, strings.Join(p.Tail(30), "\n"))
		}
		if err := p.Stop(15 * time.Second); err != nil {
			t.Errorf("stop %s: %v", p.Name, err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if err := p.Until(ctx, harness.Answers("http://"+health+"/ready", http.StatusOK)); err != nil {
		t.Fatal(err)
	}
}

// token writes the token that a kubelet would mount into a pod, and returns the file.
func token(t *testing.T, account string) string {
	t.Helper()
	return file(
		t, strings.TrimSpace(kubectl(t, "create", "token", account, "-n", home, "--audience", "stunner-discovery")),
	)
}

// authority writes the CA certificates that the auth service's pods mount, and returns the file.
func (in installation) authority() string {
	in.t.Helper()
	var text string
	await(in.t, func(ctx context.Context) (err error) {
		text, err = control.Field(ctx, home, "configmap/stunner-discovery-ca", `.data.ca\.crt`)
		if err == nil {
			_, err = cert.ParseCertsPEM([]byte(text))
		}
		return err
	})
	return file(in.t, text)
}

// expose writes a load balancer address into the status of the Services of a Gateway, and waits until it is programmed.
func (in installation) expose(namespace, gateway string) {
	in.t.Helper()
	for _, service := range []string{"service/" + gateway, "service/" + gateway + "-tcp"} {
		await(in.t, func(ctx context.Context) error {
			return control.Patch(ctx, namespace, service, types.MergePatchType,
				`{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.7"}]}}}`, "status")
		})
	}
	in.programmed(namespace, gateway)
}

func (in installation) programmed(namespace, gateway string) {
	in.t.Helper()
	kubectl(in.t, "wait", "-n", namespace, "gateway/"+gateway, "--for=condition=Programmed", "--timeout="+timeout.String())
}

// offers waits until the auth service returns these servers to a web app.
func (in installation) offers(want ...string) {
	in.t.Helper()
	await(in.t, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, in.auth, nil)
		if err != nil {
			return err
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		var offer struct {
			ICEServers []struct {
				URLs                 []string
				Username, Credential string
			}
		}
		if err := json.NewDecoder(answer.Body).Decode(&offer); err != nil {
			return err
		}
		for _, s := range offer.ICEServers {
			if slices.Equal(s.URLs, want) && s.Username != "" && s.Credential != "" {
				return nil
			}
		}
		return errors.New(answer.Status + fmt.Sprintf(": offered %+v", offer.ICEServers))
	})
}
