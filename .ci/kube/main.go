// Command kube is the control plane of Kubernetes, and kubectl, in one program.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"

	"github.com/stunner-gateway/stunner/.ci/kube/internal/multicall"
)

// To add a component, add a line here; `make kube` creates its link.
func main() {
	multicall.Main(map[string]func(){
		"etcd":                    func() { etcdmain.Main(os.Args) },
		"kube-apiserver":          func() { multicall.Run(apiserver.NewAPIServerCommand()) },
		"kube-controller-manager": func() { multicall.Run(manager.NewControllerManagerCommand()) },
		"kubectl":                 func() { util.CheckErr(cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand())) },
	})
}
