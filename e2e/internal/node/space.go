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

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// family is the prefix of the names of the control groups of nodes. The process id follows, because several test
// processes may run clusters at the same time.
const family = "stunner-e2e-"

var group = groupOf(os.Getpid())

func groupOf(pid int) string { return family + strconv.Itoa(pid) }

// groups is the root of the cgroup file system: one hierarchy in version 2, or one folder for each hierarchy in version
// 1.
const groups = "/sys/fs/cgroup"

func (m *machine) group() string { return filepath.Join(group, m.name) }

// unshare creates the namespaces of the node and a veth pair to the network of the test.
func (m *machine) unshare(ctx context.Context) (err error) {
	m.holder, err = harness.Start(harness.Command{
		Name: "holder", Path: "unshare", Logs: m.dir, Death: syscall.SIGKILL,
		Args: strings.Fields("--mount --net --pid --uts --ipc --fork --mount-proc --kill-child=KILL sleep infinity"),
	})
	if err != nil {
		return err
	}
	if err := m.holder.Until(ctx, m.held); err != nil {
		return logged(m.holder, err)
	}
	for _, command := range []string{
		fmt.Sprintf("link add %s type veth peer name eth0 netns %d", m.name, m.pid),
		"link set " + m.name + " master " + lan,
		"link set " + m.name + " up",
	} {
		if err := ip(ctx, command); err != nil {
			return err
		}
	}
	if err := makeGroups(m.group()); err != nil {
		return err
	}
	return m.run(ctx, "sh", m.file("space.sh"))
}

// lan is the bridge that connects nodes and clients.
const lan = "lan"

// connect creates the bridge. The default route leads to the first node, so that clients reach the addresses of
// Services.
func (c *Cluster) connect(ctx context.Context) error {
	for _, command := range []string{
		"link set lo up",
		"link add " + lan + " type bridge",
		"address add " + clientAddress + "/24 dev " + lan,
		"link set " + lan + " up",
		"route add default via " + c.first.address(),
	} {
		if err := ip(ctx, command); err != nil {
			return err
		}
	}
	return c.first.unshare(ctx)
}

func ip(ctx context.Context, command string) error {
	if out, err := exec.CommandContext(ctx, "ip", strings.Fields(command)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", command, err, out)
	}
	return nil
}

// held returns nil when the first process of the new namespaces runs, and records its PID.
func (m *machine) held(context.Context) error {
	holder := strconv.Itoa(m.holder.PID())
	children, err := os.ReadFile(filepath.Join("/proc", holder, "task", holder, "children"))
	if err != nil {
		return err
	}
	if m.pid, err = strconv.Atoi(strings.TrimSpace(string(children))); err != nil {
		return fmt.Errorf("no process holds the namespaces: %w", err)
	}
	// unshare mounts /proc of the node after it has created the namespaces, and executes sleep last.
	command, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(m.pid), "comm"))
	if err == nil && strings.TrimSpace(string(command)) != "sleep" {
		err = errors.New("the namespaces are not ready")
	}
	return err
}

// hierarchies returns the roots of the cgroup hierarchies in a folder. In version 1 the folder is a tmpfs, in which any
// program may have created a file. A link to a folder is another name of a hierarchy.
func hierarchies(folder string) ([]string, error) {
	if _, err := os.Stat(filepath.Join(folder, "cgroup.controllers")); err == nil {
		return []string{folder}, nil
	}
	all, err := filepath.Glob(filepath.Join(folder, "*"))
	return slices.DeleteFunc(all, func(path string) bool {
		info, err := os.Stat(path)
		return err != nil || !info.IsDir()
	}), err
}

// makeGroups creates a control group and its parent in each hierarchy, and removes groups of killed test processes.
func makeGroups(name string) error {
	left, err := abandoned()
	if err != nil {
		return err
	}
	if err := removeGroups(left...); err != nil {
		return err
	}
	all, err := hierarchies(groups)
	if err != nil {
		return err
	}
	for _, h := range all {
		for _, g := range []string{filepath.Dir(name), name} {
			if err := makeGroup(h, g); err != nil {
				return fmt.Errorf("make control group: %w", err)
			}
		}
	}
	return nil
}

func makeGroup(hierarchy, name string) error {
	own := filepath.Join(hierarchy, name)
	if err := enableControllers(filepath.Dir(own)); err != nil {
		return err
	}
	switch err := os.Mkdir(own, 0o755); {
	case errors.Is(err, fs.ErrExist):
		return nil
	case err != nil:
		return err
	}
	// A real node has CPUs of its own. With the default weight, all pods together would get as much CPU time as one other
	// process.
	for setting, weight := range map[string]string{"cpu.shares": "16384", "cpu.weight": "1600"} {
		path := filepath.Join(own, setting)
		if _, err := os.Stat(path); err != nil {
			continue // a setting of the other cgroup version or of another hierarchy
		}
		if err := os.WriteFile(path, []byte(weight), 0); err != nil {
			return err
		}
	}
	// In version 1 a new group has no CPUs and no memory nodes.
	for _, setting := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(hierarchy, setting))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := errors.Join(err, os.WriteFile(filepath.Join(own, setting), value, 0)); err != nil {
			return err
		}
	}
	return nil
}

// enableControllers enables all controllers of a control group of version 2 for the groups in it. Without the
// controllers, kubelet refuses such a group. A group of version 1 has no list of controllers.
func enableControllers(group string) error {
	list, err := os.ReadFile(filepath.Join(group, "cgroup.controllers"))
	if controllers := strings.Fields(string(list)); len(controllers) > 0 {
		all := "+" + strings.Join(controllers, " +")
		return os.WriteFile(filepath.Join(group, "cgroup.subtree_control"), []byte(all), 0)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// abandoned returns the control groups of test processes that no longer exist.
func abandoned() (names []string, err error) {
	all, err := hierarchies(groups)
	if err != nil {
		return nil, err
	}
	for _, h := range all {
		found, err := filepath.Glob(filepath.Join(h, family+"*"))
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			owner := strings.TrimPrefix(filepath.Base(f), family)
			if _, err := os.Stat(filepath.Join("/proc", owner)); errors.Is(err, fs.ErrNotExist) {
				names = append(names, filepath.Base(f))
			}
		}
	}
	return names, nil
}

// removeGroups removes control groups, the innermost first. It retries, because killed processes may take a moment to
// end.
func removeGroups(names ...string) error {
	hierarchies, err := hierarchies(groups)
	if err != nil {
		return err
	}
	var all []string
	for _, h := range hierarchies {
		for _, name := range names {
			all = append(all, filepath.Join(h, name))
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return harness.Until(ctx, func(context.Context) error {
		var errs []error
		for _, top := range all {
			var dirs []string
			err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
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
