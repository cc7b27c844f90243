// Command node is what a cluster with a node needs beside its control plane, in one program. It stands apart because
// tests that need no pods need not wait for its build.
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
		"kubeadm":        func() { util.CheckErr(kubeadm.Run()) },
		"kubelet":        func() { multicall.Run(kubelet.NewKubeletCommand(context.Background())) }, // takes signals itself
		"kube-proxy":     func() { multicall.Run(proxy.NewProxyCommand()) },
		"kube-scheduler": func() { multicall.Run(scheduler.NewSchedulerCommand()) },
	})
}
