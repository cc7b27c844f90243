// Command node contains the programs that a cluster with a node needs in addition to its control plane. It is separate,
// because tests without pods do not need it.
package main

import (
	"context"

	"k8s.io/kubectl/pkg/cmd/util"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	"github.com/stunner-gateway/stunner/.ci/kube/internal/multicall"
)

func main() {
	multicall.Main(map[string]func(){
		"kubeadm": func() { util.CheckErr(kubeadm.Run()) },
		// handles signals itself
		"kubelet":        func() { multicall.Run(kubelet.NewKubeletCommand(context.Background())) },
		"kube-proxy":     func() { multicall.Run(proxy.NewProxyCommand()) },
		"kube-scheduler": func() { multicall.Run(scheduler.NewSchedulerCommand()) },
	})
}
