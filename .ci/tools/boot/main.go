// Command boot runs a command on another kernel, in a virtual machine that sees the files of this host.
//
//	boot -kernel DIR [-modules NAME,...] COMMAND...
//
// DIR is an unpacked Debian package of a kernel. The machine has no disk: its root is a copy-on-write view of the root of
// this host (9p below overlayfs), so that the programs and tests of this host run unchanged. Its two network cards are
// connected with each other only; they need the module virtio_net. The command runs as root with all capabilities in the
// current folder. What it writes is lost. The exit code of boot is that of the command.
//
// The program is also the init of the machine: the first process of a kernel has the ID 1.
//
// # Files
//
//	main.go       the part of the host
//	initramfs.go  the initramfs of the machine
//	guest.go      the part of the machine
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

func main() {
	if os.Getpid() == 1 {
		powerOff(guest())
	}
	kernel := flag.String("kernel", "", "unpacked Debian package of the kernel, a folder")
	modules := flag.String("modules", "", "kernel modules to load, separated by commas; what they need is loaded too")
	memory := flag.String("memory", "4G", "memory of the machine")
	flag.Parse()
	code, err := run(*kernel, split(*modules), *memory, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "boot:", err)
		code = 1
	}
	os.Exit(code)
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
}

// run boots the machine and returns the exit code of the command.
func run(kernel string, modules []string, memory string, command []string) (code int, err error) {
	if len(command) == 0 {
		return 0, errors.New("no command: name it behind the flags")
	}
	images, err := filepath.Glob(filepath.Join(kernel, "boot", "vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return 0, fmt.Errorf(
			"find the kernel: %d files %s/boot/vmlinuz-*, want 1: name an unpacked package with -kernel",
			len(images), kernel,
		)
	}
	folder, err := os.MkdirTemp("", "stunner-boot-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(folder)
	initramfs, result := filepath.Join(folder, "initramfs"), filepath.Join(folder, "result")
	archive, err := pack(kernel, append(needed, modules...), command)
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(initramfs, archive, 0o600); err != nil {
		return 0, err
	}
	machine := exec.Command(
		"qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", memory,
		"-nodefaults", "-display", "none", "-no-reboot",
		"-kernel", images[0], "-initrd", initramfs, "-append", "console=ttyS0 quiet panic=-1 mitigations=off",
		"-virtfs", "local,path=/,mount_tag="+tag+",security_model=none,readonly=on,multidevs=remap",
		"-netdev", "hubport,id=one,hubid=0", "-device", "virtio-net-pci,netdev=one",
		"-netdev", "hubport,id=two,hubid=0", "-device", "virtio-net-pci,netdev=two",
		"-serial", "stdio", "-serial", "file:"+result,
	)
	machine.Stdout, machine.Stderr = os.Stdout, os.Stderr
	if err := machine.Run(); err != nil {
		return 0, fmt.Errorf("run the machine: %w: it needs the Debian package qemu-system-x86", err)
	}
	text, err := os.ReadFile(result)
	if err != nil {
		return 0, err
	}
	if code, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
		return 0, errors.New("the machine ended before the command")
	}
	return code, nil
}
