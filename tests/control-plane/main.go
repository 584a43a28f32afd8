// Control-plane is several Kubernetes programs in one file: the real ones, from their published modules. Which one runs is
// told by the name it is called by, so that links named after the programs stand in for them, or by the first argument.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kubeproxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// program is one of the programs in this file. It reads os.Args and does not return before it has ended.
type program struct {
	name string
	run  func()
}

var programs = []program{
	{"etcd", func() { etcdmain.Main(os.Args) }},
	{"kube-apiserver", func() { os.Exit(cli.Run(apiserver.NewAPIServerCommand())) }},
	{"kube-controller-manager", func() { os.Exit(cli.Run(controllermanager.NewControllerManagerCommand())) }},
	{"kube-scheduler", func() { os.Exit(cli.Run(scheduler.NewSchedulerCommand())) }},
	{"kubelet", func() { os.Exit(cli.Run(kubelet.NewKubeletCommand(context.Background()))) }},
	{"kube-proxy", func() { os.Exit(cli.Run(kubeproxy.NewProxyCommand())) }},
	{"kubectl", runKubectl},
}

func main() {
	chosen, ok := choose()
	if !ok {
		var names []string
		for _, p := range programs {
			names = append(names, p.name)
		}
		fmt.Fprintf(os.Stderr, "usage: %s PROGRAM [ARGUMENT...]\nPROGRAM is one of: %s\n", os.Args[0], strings.Join(names, ", "))
		os.Exit(2)
	}
	chosen.run()
}

// choose finds the program that is meant and leaves os.Args as that program expects them.
func choose() (program, bool) {
	named := func(name string) func(program) bool {
		return func(p program) bool { return p.name == name }
	}
	if i := slices.IndexFunc(programs, named(filepath.Base(os.Args[0]))); i >= 0 {
		return programs[i], true
	}
	if len(os.Args) < 2 {
		return program{}, false
	}
	if i := slices.IndexFunc(programs, named(os.Args[1])); i >= 0 {
		os.Args = os.Args[1:]
		return programs[i], true
	}
	return program{}, false
}

// runKubectl prints errors as kubectl does, without the usage that cli.Run would add.
func runKubectl() {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
}
