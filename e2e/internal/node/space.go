package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

// group is the control group of the pods, in each hierarchy.
const group = "stunner-e2e"

// groups is where control groups are: one hierarchy, or with version 1 a folder for each.
const groups = "/sys/fs/cgroup"

// unshare makes the namespaces of the node, and a cable from its network to ours.
func (n *Node) unshare(ctx context.Context) (err error) {
	n.holder, err = bed.Start(bed.Command{
		Name: "holder", Path: "unshare", Logs: n.dir, Death: syscall.SIGKILL,
		Args: strings.Fields("--mount --net --pid --uts --ipc --fork --mount-proc --kill-child=KILL sleep infinity"),
	})
	if err != nil {
		return err
	}
	if err := n.holder.Until(ctx, n.held); err != nil {
		return logged(n.holder, err)
	}
	for _, command := range []string{
		"link set lo up",
		fmt.Sprintf("link add eth0 type veth peer name eth0 netns %d", n.pid),
		"address add " + clientAddress + "/24 dev eth0",
		"link set eth0 up",
		"route add default via " + nodeAddress,
	} {
		if out, err := exec.CommandContext(ctx, "ip", strings.Fields(command)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", command, err, out)
		}
	}
	if err := makeGroups(); err != nil {
		return err
	}
	return n.run(ctx, "sh", n.file("space.sh"))
}

// held tells that there is a first process in the new namespaces.
func (n *Node) held(context.Context) error {
	holder := strconv.Itoa(n.holder.PID())
	children, err := os.ReadFile(filepath.Join("/proc", holder, "task", holder, "children"))
	if err != nil {
		return err
	}
	if n.pid, err = strconv.Atoi(strings.TrimSpace(string(children))); err != nil {
		return fmt.Errorf("no process holds the namespaces: %w", err)
	}
	// Its view of processes is mounted after the namespaces are there.
	command, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(n.pid), "comm"))
	if err == nil && strings.TrimSpace(string(command)) != "sleep" {
		err = errors.New("the namespaces are not ready")
	}
	return err
}

// hierarchies of control groups.
func hierarchies() ([]string, error) {
	if _, err := os.Stat(filepath.Join(groups, "cgroup.controllers")); err == nil {
		return []string{groups}, nil
	}
	return filepath.Glob(filepath.Join(groups, "*"))
}

func makeGroups() error {
	if err := removeGroups(); err != nil { // of a test that was killed
		return err
	}
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		own := filepath.Join(h, group)
		if err := os.Mkdir(own, 0o755); err != nil {
			return fmt.Errorf("make control group: %w", err)
		}
		// In version 1 a new group has no processors and no memory.
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(h, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err := errors.Join(err, os.WriteFile(filepath.Join(own, name), value, 0)); err != nil {
				return fmt.Errorf("make control group: %w", err)
			}
		}
	}
	return nil
}

// removeGroups removes the control groups, the innermost first. Their processes have been told to end, and some are not gone yet.
func removeGroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return bed.Until(ctx, func(context.Context) error {
		var errs []error
		for _, h := range all {
			var dirs []string
			err := filepath.WalkDir(filepath.Join(h, group), func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					dirs = append(dirs, path)
				}
				return nil
			})
			errs = append(errs, err)
			for _, dir := range slices.Backward(dirs) {
				if err := syscall.Rmdir(dir); err != nil {
					errs = append(errs, fmt.Errorf("remove control group %s: %w", dir, err))
				}
			}
		}
		return errors.Join(errs...)
	})
}
