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

// inside is the environment variable that marks the child process in the clients' network. Its value is the folder of
// the cluster.
const inside = "E2E_NODE"

// needs are the required programs that a minimal Debian lacks, with their packages.
var needs = []struct{ program, debian string }{
	{"containerd", "containerd"}, {"ctr", "containerd"}, {"runc", "runc"},
	{"/usr/lib/cni/bridge", "containernetworking-plugins"},
	{"nft", "nftables"}, {"iptables", "iptables"}, {"ip", "iproute2"}, {"unshare", "util-linux"},
	{"nsenter", "util-linux"},
}

// Main runs the tests of a package with a cluster in *c, in a network namespace of their own, and returns the exit code
// for [os.Exit]. If the host lacks a prerequisite, Main prints it and returns 1.
func Main(tests interface{ Run() int }, c **Cluster) int {
	if err := possible(); err != nil {
		fmt.Fprintf(os.Stderr, "THE CLUSTER CANNOT RUN ON THIS HOST; no test was run:\n%v\n", err)
		return 1
	}
	if os.Getenv(inside) == "" {
		return again()
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	begun := time.Now()
	started, err := Start(
		ctx, func(step string, took time.Duration) { fmt.Printf("%7s  %s\n", took.Round(100*time.Millisecond), step) },
	)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Printf("%7s  total: the cluster is ready\n", time.Since(begun).Round(100*time.Millisecond))
	*c = started
	code := tests.Run()
	begun = time.Now()
	if err := started.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	fmt.Printf("%7s  cluster stopped\n", time.Since(begun).Round(100*time.Millisecond))
	return code
}

// possible returns all missing prerequisites in one error.
func possible() (err error) {
	if os.Geteuid() != 0 {
		err = errors.New("namespaces, mounts and control groups need root: run as root")
	}
	for _, n := range needs {
		if _, missing := exec.LookPath(n.program); missing != nil {
			err = errors.Join(err, fmt.Errorf("%s is missing: apt-get install %s", n.program, n.debian))
		}
	}
	return err
}

// again runs this program as a child process, in a network namespace and with a folder of its own. It removes the whole
// cluster in every case, also after an interrupt.
func again() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "stunner-node-")
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
		fmt.Fprintf(os.Stderr, "make a network namespace: %v\n", err)
		return 0, 1
	}
	if child.Wait() != nil { // the child has printed the reason
		code = max(child.ProcessState.ExitCode(), 1)
	}
	return child.Process.Pid, code
}
