package main

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// pack returns the initramfs: this program, the modules and the job.
func pack(kernel string, modules []string, command []string) ([]byte, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	init, err := os.ReadFile(self)
	if err != nil {
		return nil, err
	}
	folder, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(job{folder, os.Getenv("PATH"), command})
	if err != nil {
		return nil, err
	}
	files, err := inOrder(kernel, modules)
	if err != nil {
		return nil, err
	}
	var a archive
	a.add("dev", directory, nil)
	a.add("dev/console", consoleDevice, nil) // stdout of init
	a.add("modules", directory, nil)
	a.add("init", file, init)
	a.add(jobFile[1:], file, text)
	for i, f := range files {
		content, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		a.add(fmt.Sprintf("%s/%02d-%s", moduleDir[1:], i, filepath.Base(f)), file, content)
	}
	a.add("TRAILER!!!", 0, nil)
	return a.Bytes(), nil
}

// Modes of the entries of an archive.
const (
	directory     = 0o040755
	file          = 0o100755
	consoleDevice = 0o020600
)

// archive is in the format newc of cpio, which the kernel unpacks (driver-api/early-userspace/buffer-format).
type archive struct{ bytes.Buffer }

func (a *archive) add(name string, mode int, content []byte) {
	var major, minor int
	if mode == consoleDevice {
		major, minor = 5, 1
	}
	fmt.Fprintf(a, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X", a.Len()+1, mode, 0, 0, 1, 0,
		len(content), 0, 0, major, minor, len(name)+1, 0)
	a.WriteString(name + "\x00")
	a.align()
	a.Write(content)
	a.align()
}

func (a *archive) align() { a.Write(make([]byte, -a.Len()&3)) }

// inOrder returns the files of modules, each behind those that it needs. A module that is built in has no file.
func inOrder(kernel string, modules []string) (files []string, err error) {
	all := map[string]string{}
	err = filepath.WalkDir(filepath.Join(kernel, "lib", "modules"), func(path string, d fs.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(filepath.Base(path), ".ko"); ok {
			all[strings.ReplaceAll(name, "-", "_")] = path
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var add func(name string) error
	add = func(name string) error {
		path := all[name]
		delete(all, name)
		if path == "" {
			return nil
		}
		needs, err := dependencies(path)
		for _, n := range needs {
			if err == nil {
				err = add(n)
			}
		}
		files = append(files, path)
		return err
	}
	for _, name := range modules {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// dependencies returns the names of the modules that a module needs.
func dependencies(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("read module %s: no section .modinfo", path)
	}
	info, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("read module %s: %w", path, err)
	}
	for field := range strings.SplitSeq(string(info), "\x00") {
		if list, ok := strings.CutPrefix(field, "depends="); ok {
			return split(strings.ReplaceAll(list, "-", "_")), nil
		}
	}
	return nil, nil
}
