package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// inside names the folder of the cluster to the process that is in the network of clients.
const inside = "E2E_NODE"

// needs are programs of Debian that are not part of every machine, with the package of each.
var needs = []struct{ program, debian string }{
	{"containerd", "containerd"}, {"ctr", "containerd"}, {"runc", "runc"}, {"/usr/lib/cni/bridge", "containernetworking-plugins"},
	{"nft", "nftables"}, {"iptables", "iptables"}, {"ip", "iproute2"}, {"unshare", "util-linux"}, {"nsenter", "util-linux"},
}

// Main runs the tests of a package with *c, in a network of their own, and returns the exit code for [os.Exit]. Where it cannot run them
// it says so and fails.
func Main(tests interface{ Run() int }, c **Cluster) int {
	if err := possible(); err != nil {
		fmt.Fprintf(os.Stderr, "THE CLUSTER CANNOT RUN HERE, and nothing was tested:\n%v\n", err)
		return 1
	}
	if os.Getenv(inside) == "" {
		return again()
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	begun := time.Now()
	started, err := Start(ctx, func(step string, took time.Duration) { fmt.Printf("%7s  %s\n", took.Round(100*time.Millisecond), step) })
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Printf("%7s  in all: the cluster is ready\n", time.Since(begun).Round(100*time.Millisecond))
	*c = started
	code := tests.Run()
	begun = time.Now()
	if err := started.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	fmt.Printf("%7s  end of the cluster\n", time.Since(begun).Round(100*time.Millisecond))
	return code
}

// possible tells what is missing, all of it at once.
func possible() (err error) {
	if os.Geteuid() != 0 {
		err = errors.New("it makes namespaces, mounts and control groups: run as root")
	}
	for _, n := range needs {
		if _, missing := exec.LookPath(n.program); missing != nil {
			err = errors.Join(err, fmt.Errorf("%s is missing: apt-get install %s", n.program, n.debian))
		}
	}
	return err
}

// again runs this program once more, in a network and with a folder of its own. However that ends, an interrupt from the terminal included, nothing
// of the cluster is left.
func again() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "node-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	pid, code := child(ctx, dir)
	if err := errors.Join(removeGroups(groupOf(pid)), os.RemoveAll(dir)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}

func child(ctx context.Context, dir string) (pid, code int) {
	program, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 0, 1
	}
	child := exec.CommandContext(ctx, program, os.Args[1:]...)
	child.Env = append(os.Environ(), inside+"="+dir)
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := child.Start(); err != nil {
		fmt.Fprintf(os.Stderr, "make a network of its own: %v\n", err)
		return 0, 1
	}
	if child.Wait() != nil { // the child has said why
		code = max(child.ProcessState.ExitCode(), 1)
	}
	return child.Process.Pid, code
}
