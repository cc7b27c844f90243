package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// job is what the machine runs.
type job struct {
	Folder, Path string
	Command      []string
}

const (
	tag        = "host"     // of the file system of the host
	jobFile    = "/job"     // in the initramfs, as is
	moduleDir  = "/modules" // in their order
	root       = "/root"    // of the command
	console    = "/dev/ttyS0"
	resultPort = "/dev/ttyS1"
)

// needed are the modules without which the machine has no root.
var needed = []string{"virtio_pci", "9pnet_virtio", "9p", "overlay"}

// mounts are in the order in which they are made.
var mounts = []struct{ source, target, kind, data string }{
	{"dev", "/dev", "devtmpfs", ""},
	{tag, "/host", "9p", "ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose"},
	{"changes", "/changes", "tmpfs", ""},
	{"root", root, "overlay", "lowerdir=/host,upperdir=/changes/upper,workdir=/changes/work"},
	{"dev", root + "/dev", "devtmpfs", ""},
	{"proc", root + "/proc", "proc", ""},
	{"sys", root + "/sys", "sysfs", ""},
}

// guest runs the job and returns its exit code.
func guest() (code int, err error) {
	if err := loadModules(); err != nil {
		return 0, err
	}
	for _, m := range mounts {
		if m.kind == "overlay" {
			err = errors.Join(os.MkdirAll("/changes/upper", 0o755), os.MkdirAll("/changes/work", 0o755))
		}
		if err = errors.Join(err, os.MkdirAll(m.target, 0o755)); err != nil {
			return 0, err
		}
		if err := unix.Mount(m.source, m.target, m.kind, 0, m.data); err != nil {
			return 0, fmt.Errorf("mount %s on %s: %w", m.kind, m.target, err)
		}
	}
	text, err := os.ReadFile(jobFile)
	if err != nil {
		return 0, err
	}
	var j job
	if err := json.Unmarshal(text, &j); err != nil {
		return 0, err
	}
	return j.run()
}

func loadModules() error {
	files, err := os.ReadDir(moduleDir)
	if err != nil {
		return err
	}
	for _, f := range files {
		module, err := os.Open(filepath.Join(moduleDir, f.Name()))
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(module.Fd()), "", 0)
		_ = module.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load module %s: %w", f.Name(), err)
		}
	}
	return nil
}

func (j job) run() (code int, err error) {
	out, err := os.OpenFile(console, os.O_WRONLY, 0)
	if err != nil {
		return 0, err
	}
	const files = 1 << 20 // the kernel's default of fs.nr_open
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: files}); err != nil {
		return 0, fmt.Errorf("raise RLIMIT_NOFILE: %w", err)
	}
	if err := errors.Join(unix.Chroot(root), os.Chdir(j.Folder), os.Setenv("PATH", j.Path)); err != nil {
		return 0, err
	}
	command := exec.Command(j.Command[0], j.Command[1:]...)
	command.Env = append(os.Environ(), "HOME=/root")
	command.Stdout, command.Stderr = out, out
	err = command.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); exited {
		return command.ProcessState.ExitCode(), nil
	}
	return 0, err
}

// powerOff passes the exit code to the host and ends the machine.
func powerOff(code int, err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "boot:", err)
		code = 1
	}
	// After chroot both roots have a devtmpfs, which is the same.
	if err := os.WriteFile(resultPort, fmt.Appendln(nil, code), 0); err != nil {
		fmt.Fprintln(os.Stderr, "boot:", err)
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}
