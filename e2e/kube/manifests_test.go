package kube

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

var update = flag.Bool("update", false, "rewrite the want/ files of testdata/manifests, testdata/places and testdata/field")

// TestManifests applies example manifests and compares the results with golden files. The name of a file in
// testdata/manifests is the subject of the example, and the comment in the file describes the example. An example is
// one archive:
//
//	in/*.yaml           objects in order, with their namespaces; CONTROLLER, CERTIFICATE and KEY are replaced
//	cloud               addresses of load balancers, as lines NAMESPACE/SERVICE ADDRESS
//	want/status.txt     conditions
//	want/config.yaml    published configs without secrets
//	want/services.yaml, want/workload.yaml, want/configmap.yaml
//	                    generated objects without fields that the API server sets
//
// An example has only the want/ files for its subject. The examples do not run in parallel with other tests, because
// their nodes have addresses that every Gateway could use.
func TestManifests(t *testing.T) {
	common := newTenant(t)
	common.apply("{apiVersion: stunner.l7mp.io/v1, kind: Dataplane, metadata: {name: default}, spec: {}}")
	files, err := filepath.Glob("testdata/manifests/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples found: %v", err)
	}
	t.Run("of", func(t *testing.T) {
		for _, file := range files {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
				t.Parallel()
				common.tenant(t).example(file)
			})
		}
	})
}

// example applies an archive and compares the results.
func (n *tenant) example(file string) {
	archive, err := txtar.ParseFile(file)
	n.must(err)
	n.certify("pair")
	pair := &corev1.Secret{}
	n.must(n.read(n.Context(), "pair", pair))
	pem := strings.NewReplacer("CERTIFICATE", quoted(pair.Data["tls.crt"]), "KEY", quoted(pair.Data["tls.key"]))
	var applied []*unstructured.Unstructured
	for _, f := range archive.Files {
		switch dir, _ := filepath.Split(f.Name); {
		case dir == "in/":
			text := pem.Replace(string(f.Data))
			n.apply(text)
			applied = append(applied, n.objects(text)...)
		case f.Name == "cloud":
			for line := range strings.Lines(string(f.Data)) {
				service, address, _ := strings.Cut(strings.TrimSpace(line), " ")
				namespace, name, _ := strings.Cut(service, "/")
				n.in(namespace).expose(name, address)
			}
		case dir != "want/":
			n.Fatalf("%s: unknown part %s", file, f.Name)
		}
	}
	if *update {
		n.settle(applied)
	}
	for i, f := range archive.Files {
		want, isWanted := strings.CutPrefix(f.Name, "want/")
		if !isWanted {
			continue
		}
		format, known := formats[want]
		if !known {
			n.Fatalf("%s: nothing to compare with %s", file, f.Name)
		}
		if *update {
			archive.Files[i].Data = []byte(format(n, n.Context(), applied))
			continue
		}
		n.await(func(ctx context.Context) error { return differ(f.Name, string(f.Data), format(n, ctx, applied)) })
	}
	if *update {
		n.must(os.WriteFile(file, txtar.Format(archive), 0o644))
	}
}

// quoted formats text as a YAML scalar on one line.
func quoted(text []byte) string { return fmt.Sprintf("%q", text) }

// differ returns the first line in which two texts differ.
func differ(name, want, got string) error {
	wanted, gotten := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(wanted), len(gotten)) {
		if wanted[i] != gotten[i] {
			return fmt.Errorf("%s, line %d: %q, want %q, in\n%s", name, i+1, gotten[i], wanted[i], got)
		}
	}
	if len(wanted) != len(gotten) {
		return fmt.Errorf("%s has %d lines, want %d:\n%s", name, len(gotten), len(wanted), got)
	}
	return nil
}

// settle waits until the output has not changed for some time.
func (n *tenant) settle(applied []*unstructured.Unstructured) {
	n.Helper()
	last, since := "", time.Now()
	n.await(func(ctx context.Context) error {
		all := ""
		for _, name := range slices.Sorted(maps.Keys(formats)) {
			all += formats[name](n, ctx, applied)
		}
		if all != last {
			last, since = all, time.Now()
		}
		if time.Since(since) < 3*time.Second {
			return errors.New("it still changes")
		}
		return nil
	})
}

// formats format the results of an example by the name of the golden file.
var formats = map[string]func(*tenant, context.Context, []*unstructured.Unstructured) string{
	"status.txt":     (*tenant).statuses,
	"config.yaml":    (*tenant).configs,
	"services.yaml":  made("v1", "Service"),
	"workload.yaml":  made("apps/v1", "Deployment", "DaemonSet"),
	"configmap.yaml": made("v1", "ConfigMap"),
}

// statuses formats the conditions of all objects of an example that have conditions.
func (n *tenant) statuses(ctx context.Context, applied []*unstructured.Unstructured) string {
	var all strings.Builder
	for _, o := range applied {
		name := o.GetKind() + " " + strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/")
		switch live := o.DeepCopy(); o.GetKind() {
		case "Gateway":
			gw := &gwapiv1.Gateway{}
			n.must(n.Get(ctx, client.ObjectKeyFromObject(o), gw))
			fmt.Fprintf(&all, "%s: %s\n", name, brief(gw.Status.Conditions, gw.Generation))
			for _, a := range gw.Status.Addresses {
				fmt.Fprintf(&all, "  %s %s\n", *a.Type, a.Value)
			}
			for _, l := range gw.Status.Listeners {
				fmt.Fprintf(
					&all, "  listener %s: %d routes, %s\n", l.Name, l.AttachedRoutes,
					brief(l.Conditions, gw.Generation),
				)
			}
		case "UDPRoute":
			n.must(n.Get(ctx, client.ObjectKeyFromObject(o), live))
			r := &stunnerv1.UDPRoute{} // the status has the same form in all API versions
			n.must(convert(live, r))
			fmt.Fprintf(
				&all, "%s of %s\n\t%s\n", name, o.GetAPIVersion(), n.parents(r.Status.RouteStatus, r.Generation),
			)
		case "GatewayConfig", "StaticService", "Dataplane", "GatewayClass":
			n.must(n.Get(ctx, client.ObjectKeyFromObject(o), live))
			c := &stunnerv1.GatewayConfig{} // also fits other statuses with conditions only
			live.SetKind("")
			unstructured.RemoveNestedField(live.Object, "spec")
			n.must(convert(live, c))
			fmt.Fprintf(&all, "%s: %s\n", name, brief(c.Status.Conditions, c.Generation))
		}
	}
	return all.String()
}

func convert(from *unstructured.Unstructured, to any) error {
	data, err := from.MarshalJSON()
	if err != nil {
		return err
	}
	return yaml.Unmarshal(data, to)
}

// configs formats the configs that dataplanes on the node of the example receive, without secrets and values of the
// test.
func (n *tenant) configs(ctx context.Context, applied []*unstructured.Unstructured) string {
	var all []string
	node := ""
	for _, o := range applied {
		if o.GetKind() == "Node" {
			node = o.GetName()
		}
		if o.GetKind() != "Gateway" {
			continue
		}
		c, err := n.in(o.GetNamespace()).configAt(ctx, o.GetName(), node)
		n.must(err)
		for i := range c.Listeners {
			if c.Listeners[i].Cert != "" {
				c.Listeners[i].Cert = "certificate"
			}
		}
		text, err := yaml.JSONToYAML(c.Redacted().Canonical())
		n.must(err)
		all = append(all, withoutAllocated(string(text)))
	}
	return strings.Join(all, "---\n")
}

// clusterIP matches a Service address with a port, in the Service range of the test API server.
var clusterIP = regexp.MustCompile(`10\.96\.\d+\.\d+:(\d)`)

// journalFolder matches the folder of the journal of a Gateway, whose name contains the UID of the Gateway.
var journalFolder = regexp.MustCompile(`(subPath: stunner-)[0-9a-f-]{36}`)

// withoutAllocated replaces addresses and UIDs that the API server has allocated.
func withoutAllocated(text string) string {
	return journalFolder.ReplaceAllString(clusterIP.ReplaceAllString(text, "cluster-ip:$1"), "${1}UID")
}

// made returns a function that formats the generated objects of some kinds.
func made(version string, kinds ...string) func(*tenant, context.Context, []*unstructured.Unstructured) string {
	return func(n *tenant, ctx context.Context, applied []*unstructured.Unstructured) string {
		var all []string
		for _, o := range applied {
			if o.GetKind() != "Gateway" {
				continue
			}
			for _, kind := range kinds {
				list := &unstructured.UnstructuredList{}
				list.SetGroupVersionKind(schema.FromAPIVersionAndKind(version, kind+"List"))
				n.must(n.List(
					ctx, list, client.InNamespace(o.GetNamespace()),
					client.MatchingLabels{gwapiv1.GatewayNameLabelKey: o.GetName()},
				))
				for _, object := range list.Items {
					if len(object.GetOwnerReferences()) == 1 && object.GetOwnerReferences()[0].Kind == "Gateway" {
						all = append(all, n.plain(&object))
					}
				}
			}
		}
		slices.Sort(all)
		return strings.Join(all, "---\n")
	}
}

// chosen lists fields that the API server sets.
var chosen = []string{
	"status", "metadata.uid", "metadata.resourceVersion", "metadata.generation", "metadata.creationTimestamp",
	"metadata.managedFields",
	"spec.clusterIP", "spec.clusterIPs", "spec.ipFamilies", "spec.ipFamilyPolicy", "spec.internalTrafficPolicy",
	"spec.healthCheckNodePort",
	"spec.allocateLoadBalancerNodePorts", "spec.progressDeadlineSeconds", "spec.revisionHistoryLimit", "spec.strategy",
	"spec.updateStrategy",
	"spec.template.spec.schedulerName", "spec.template.spec.restartPolicy",
}

// plain formats an object in YAML without these fields.
func (n *tenant) plain(o *unstructured.Unstructured) string {
	for _, path := range chosen {
		unstructured.RemoveNestedField(o.Object, strings.Split(path, ".")...)
	}
	annotations := o.GetAnnotations()
	_, wished := annotations["stunner.l7mp.io/nodeport"]
	for _, name := range []string{
		"stunner.l7mp.io/applied", "stunner.l7mp.io/installation", "stunner.l7mp.io/replicas", "deployment.kubernetes.io/revision",
		appsv1.DeprecatedTemplateGeneration,
	} {
		delete(annotations, name)
	}
	o.SetAnnotations(annotations)
	for _, path := range [][]string{{"metadata", "ownerReferences"}, {"spec", "ports"}} {
		items, _, _ := unstructured.NestedSlice(o.Object, path...)
		for _, item := range items {
			fields := item.(map[string]any)
			delete(fields, "uid")
			if !wished {
				delete(fields, "nodePort")
			}
		}
		if len(items) > 0 {
			n.must(unstructured.SetNestedSlice(o.Object, items, path...))
		}
	}
	text, err := yaml.Marshal(o.Object)
	n.must(err)
	return withoutAllocated(string(text))
}
