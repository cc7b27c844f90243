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

// Shell runs commands in bash as an administrator whose current namespace is given, and returns their output. The
// folders are added to PATH. Background processes are killed at the end.
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
	cmd.Env = append(
		append(os.Environ(), caches...), "KUBECONFIG="+config, "HOME="+c.dir,
		"PATH="+strings.Join(path, string(filepath.ListSeparator)),
	)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	// The output goes to a file: reading a pipe would block until the last background process has closed it.
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
		return "", fmt.Errorf("%w in\n%s\noutput:\n%s", errors.Join(err, context.Cause(ctx)), commands, text)
	}
	return string(text), lost
}

// goCaches returns the variables with Go's build and module caches, because HOME is changed and there is no network for
// downloads.
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
