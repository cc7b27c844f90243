// Command kube is Kubernetes in one program: it runs the component it is called by, through a symbolic link, or the one that its first
// argument names; called without any it lists them. One link step in place of one a component, and a quarter of the size.
package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // the metrics that the published programs have
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

// components, each with what runs it. A component is added with its line here; `make kube` makes the link from it.
var components = map[string]func(){
	"etcd":                    func() { etcdmain.Main(os.Args) },
	"kube-apiserver":          func() { run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() { run(manager.NewControllerManagerCommand()) },
	"kubectl":                 func() { util.CheckErr(cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand())) },
}

func run(c *cobra.Command) { os.Exit(cli.Run(c)) }

func main() {
	names := slices.Sorted(maps.Keys(components))
	called := os.Args
	if !slices.Contains(names, filepath.Base(called[0])) {
		called = called[1:]
	}
	switch {
	case len(called) == 0:
		fmt.Println(strings.Join(names, "\n"))
	case components[filepath.Base(called[0])] == nil:
		fmt.Fprintf(os.Stderr, "kube: run %q: no such component: name one of %s\n", called[0], strings.Join(names, ", "))
		os.Exit(2)
	default:
		os.Args = called // what the component reads its flags from
		components[filepath.Base(called[0])]()
	}
}
