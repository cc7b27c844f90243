//go:build node

package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// home is the namespace of the documented installation.
const home = "stunner-system"

// installMethod is a documented method to install the product. Each block of commands on a page is identified by its
// beginning.
type installMethod struct {
	name      string
	programs  []string // from .ci/programs, in addition to kubectl
	install   []block  // including a first Gateway
	uninstall block
	literal   bool // run the commands unmodified, including the first Gateway, and no further tests
	thorough  bool // run all further tests
}

// block is a block of commands on a page, identified by its beginning.
type block struct{ page, begins string }

const (
	readme  = "README.md"
	manual  = "docs/install.md"
	example = "docs/examples/cluster"
)

// installMethods are the documented methods, including the method of the README, whose uninstallation is on the page
// about installation.
var installMethods = []installMethod{
	{
		name: "README word for word", programs: []string{"helm"}, literal: true,
		install: []block{
			{readme, "git clone"}, {readme, "for image in"}, {readme, "helm install stunner charts/"},
		},
	},
	{
		name: "README", programs: []string{"helm"}, thorough: true,
		install: []block{
			{readme, "git clone"}, {readme, "for image in"}, {readme, "helm install stunner charts/"},
		},
		uninstall: block{manual, "helm uninstall"},
	},
	{
		name: "Helm 3", programs: []string{"helm3"},
		install:   []block{{manual, "helm install stunner "}, firstGateway},
		uninstall: block{manual, "helm uninstall"},
	},
	{
		name:      "kustomize",
		install:   []block{{manual, "kubectl apply --server-side"}, firstGateway},
		uninstall: block{manual, "kubectl delete --kustomize"},
	},
}

var (
	firstGateway = block{manual, "kubectl apply --namespace stunner-system --kustomize"}
	credentials  = block{manual, "kubectl port-forward"}
)

// text returns the commands of a block.
func (b block) text(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(harnesstest.Root(t), b.page))
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile("(?ms)^```\\w*\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		if strings.HasPrefix(found[1], b.begins) {
			return found[1]
		}
	}
	t.Fatalf("%s has no block of commands that begins with %q", b.page, b.begins)
	return ""
}

// published matches the published locations in the documentation. They are replaced by the repository. The commands are
// otherwise unmodified, and the images have their published names and tags.
var published = regexp.MustCompile(
	`oci://ghcr\.io/stunner-gateway/|https://github\.com/stunner-gateway/stunner\n|'https://github\.com/stunner-gateway/stunner//([^'?]+)\?ref=[^']+'`,
)

// first moves the documented first Gateway to the namespace of the test, and allows the auth service to give
// credentials for all namespaces.
var first = strings.NewReplacer(
	"kubectl apply --namespace stunner-system --kustomize", "kubectl apply --kustomize",
	"kubectl wait --namespace stunner-system gateway/", "kubectl wait gateway/",
	"helm install stunner charts/stunner ",
	"helm install stunner charts/stunner --set 'stunnerAuthService.gateways={*/*}' ",
	"helm install stunner oci:", "helm install stunner --set 'stunnerAuthService.gateways={*/*}' oci:",
	"helm upgrade stunner oci:", "helm upgrade stunner --set 'stunnerAuthService.gateways={*/*}' oci:",
	"kubectl wait --namespace stunner-system deployment --all", `kubectl patch --namespace stunner-system deployment stunner-auth --type=json --patch '[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--gateways=*/*"}]'
kubectl rollout status --namespace stunner-system deployment stunner-auth --timeout=5m
kubectl wait --namespace stunner-system deployment --all`)

// follow runs blocks of a page in the namespace as a user would, and returns their output. Each block starts in the
// working directory in which the previous block ended.
func (s testNamespace) follow(programs []string, blocks ...block) string {
	s.Helper()
	var all strings.Builder
	folder := s.TempDir()
	for _, b := range blocks {
		text := b.text(s.T)
		if s.namespace != home {
			text = first.Replace(text)
		}
		commands := published.ReplaceAllStringFunc(text, func(text string) string {
			switch m := published.FindStringSubmatch(text); {
			case m[1] != "":
				return filepath.Join(harnesstest.Root(s.T), m[1])
			case strings.HasSuffix(text, "\n"): // git clones into the folder stunner, like the documented command
				return harnesstest.Root(s.T) + " stunner\n"
			}
			return harnesstest.Root(s.T) + "/"
		})
		left := filepath.Join(s.TempDir(), "left")
		all.WriteString(s.shell(programs, fmt.Sprintf("cd %q\n%spwd > %q\n", folder, commands, left)))
		at, err := os.ReadFile(left)
		if err != nil {
			s.Fatal(err)
		}
		folder = strings.TrimSpace(string(at))
	}
	return all.String()
}

func (s testNamespace) shell(programs []string, commands string) string {
	s.Helper()
	var folders []string
	for _, p := range programs {
		folder, err := harness.Published(s.Context(), harnesstest.Root(s.T), p)
		if err != nil {
			s.Fatal(err)
		}
		folders = append(folders, folder)
	}
	folders = append(folders, s.kind())
	begun := time.Now()
	ctx, cancel := context.WithTimeout(s.Context(), 2*timeout)
	defer cancel()
	out, err := cluster.Shell(ctx, s.namespace, commands, folders...)
	if err != nil {
		s.Fatal(err)
	}
	s.Logf("after %s: %s", since(begun), strings.TrimSpace(commands))
	return out
}

// kind returns a folder with a replacement of the program kind that loads images into the node.
func (s testNamespace) kind() string {
	s.Helper()
	folder := s.TempDir()
	script := fmt.Sprintf(
		"#!/bin/sh\n[ \"$1 $2\" = 'load image-archive' ] && exec %s \"$3\"\nexit 2\n",
		strings.Join(cluster.ImportCommand(), " "),
	)
	if err := os.WriteFile(filepath.Join(folder, "kind"), []byte(script), 0o700); err != nil {
		s.Fatal(err)
	}
	return folder
}

// install installs the product by one method, with a first Gateway in the namespace of the test, and returns the
// output. All namespaces enforce the restricted Pod Security Standard. The cluster is restored at the end of the test.
func (s testNamespace) install(w installMethod) string {
	s.Helper()
	s.prepare()
	said := s.follow(w.programs, w.install...)
	testNamespace{s.T, home}.wait("condition=Available", "deployment", "--all")
	s.wait("condition=Available", "deployment", "--all")
	return said
}

// prepare creates the namespace for the installation, and registers the restoration of the cluster.
func (s testNamespace) prepare() {
	s.Helper()
	before, system := inventory(s.T), testNamespace{s.T, home}
	s.Cleanup(func() {
		if s.Failed() {
			system.explain()
			s.explain()
		}
		s.remove()
		before.restore(s.T)
	})
	system.open()
}

// newCaller makes the first documented call, with credentials that it gets from the auth service through kubectl.
func (s testNamespace) newCaller() caller {
	s.Helper()
	m := caller{testNamespace: s, peer: s.echo()}
	said := s.follow(nil, credentials)
	var ice harness.ICE
	answer := said[max(0, strings.Index(said, "{")):]
	if err := json.Unmarshal([]byte(answer), &ice); err != nil || len(ice.Servers) != 1 {
		s.Fatalf("no ICE servers (%v): %s", err, said)
	}
	for network := range protocols {
		// kube-proxy may have no endpoint for the pod yet
		s.until("a call by "+string(network)+" is set up", func(ctx context.Context) error {
			c, err := m.with(ctx, ice.Servers[0], network)
			if err == nil {
				m.echoes(s.T, network, c)
				m.end(s.T, network, c)
			}
			return err
		})
	}
	m.auth = s.publish()
	return m
}

// objects are names of objects of a cluster: KIND NAMESPACE NAME.
type objects []string

// inventory returns all objects except objects that controllers create and delete continuously.
func inventory(t *testing.T) objects {
	t.Helper()
	all, err := list(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func list(ctx context.Context) (all objects, err error) {
	kinds, err := cluster.Kubectl(ctx, "api-resources", "--verbs=list", "--output=name")
	if err != nil {
		return nil, err
	}
	resources := slices.DeleteFunc(strings.Fields(kinds), func(r string) bool {
		return strings.HasPrefix(r, "event") || strings.HasSuffix(r, "metrics.k8s.io") || r == "componentstatuses"
	})
	out, err := cluster.Kubectl(ctx, "get", strings.Join(resources, ","), "--all-namespaces", "--no-headers",
		"--output=custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		// A node creates its lease when it becomes ready. A drain replaces the pods of the system.
		if len(fields) != 3 || fields[1] == "kube-node-lease" || fields[0] == "Pod" && fields[1] == "kube-system" {
			continue
		}
		all = append(all, strings.Join(fields, " "))
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// since returns the objects that exist now and did not exist before.
func (before objects) since(ctx context.Context) (more objects, err error) {
	all, err := list(ctx)
	return slices.DeleteFunc(all, func(o string) bool { return slices.Contains(before, o) }), err
}

// restore deletes objects that did not exist before.
func (before objects) restore(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	err := harness.Until(ctx, func(ctx context.Context) error {
		more, err := before.since(ctx)
		if err != nil || len(more) == 0 {
			return err
		}
		var own []string // cluster-scoped objects, including namespaces with their content
		for _, o := range more {
			if fields := strings.Fields(o); fields[1] == "<none>" && fields[0] != "PersistentVolume" {
				own = append(own, fields[0]+"/"+fields[2])
			}
		}
		if len(own) > 0 {
			_, err = cluster.Kubectl(ctx, append([]string{"delete", "--wait=false", "--ignore-not-found"}, own...)...)
		}
		return errors.Join(fmt.Errorf("left: %s", strings.Join(more, ", ")), err)
	})
	if err != nil {
		t.Errorf("restore the cluster: %v", err)
	}
}
