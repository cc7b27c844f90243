package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"k8s.io/client-go/tools/clientcmd"
)

// Shell runs commands as somebody types them who administrates the cluster and works in a namespace, and returns what they print. The folders have
// the programs that are needed beside kubectl. What is left running in the background ends with the shell.
func (c *Cluster) Shell(ctx context.Context, namespace, commands string, folders ...string) (string, error) {
	access, err := clientcmd.LoadFromFile(c.Kubeconfig())
	if err != nil {
		return "", err
	}
	access.Contexts[access.CurrentContext].Namespace = namespace
	config := c.file("shell-" + namespace + ".conf")
	if err := clientcmd.WriteToFile(*access, config); err != nil {
		return "", err
	}
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", commands)
	path := append(folders, c.control, os.Getenv("PATH"))
	caches, err := goCaches(ctx)
	if err != nil {
		return "", err
	}
	cmd.Env = append(append(os.Environ(), caches...), "KUBECONFIG="+config, "HOME="+c.dir, "PATH="+strings.Join(path, string(filepath.ListSeparator)))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	// A file: a pipe would be waited for until the last program in the background has closed it.
	out, err := os.CreateTemp(c.dir, "shell-")
	if err != nil {
		return "", err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return "", err
	}
	end := func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	stop := context.AfterFunc(ctx, end)
	err = cmd.Wait()
	stop()
	end()
	text, lost := os.ReadFile(out.Name())
	if err != nil {
		return "", fmt.Errorf("%w of\n%s\nwhich said\n%s", errors.Join(err, context.Cause(ctx)), commands, text)
	}
	return string(text), lost
}

// goCaches are the variables by which Go finds what it has built and downloaded, whatever the home folder is: there is no network to download from.
func goCaches(ctx context.Context) (variables []string, err error) {
	for _, name := range []string{"GOCACHE", "GOMODCACHE"} {
		folder, err := exec.CommandContext(ctx, "go", "env", name).Output()
		if err != nil {
			return nil, fmt.Errorf("find %s: %w", name, err)
		}
		variables = append(variables, name+"="+strings.TrimSpace(string(folder)))
	}
	return variables, nil
}
