// Package bill lists what Go programs consist of: the modules in their build information, with versions, checksums and
// licences. It writes them as an SPDX document and as a notice.
//
// # Files
//
//	program.go   programs and their modules
//	licence.go   licences of modules
//	document.go  the SPDX document
//	notice.go    the notice
package bill

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// Repository is the module path that the modules of this repository begin with.
const Repository = "github.com/stunner-gateway/stunner"

// Program is a Go binary with its build information.
type Program struct {
	Info    *debug.BuildInfo
	Content []byte
	// Release is the version that the program is published with.
	Release string
}

// Open reads a program.
func Open(file, release string) (Program, error) {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return Program{}, fmt.Errorf("read program: %w: build it with Go", err)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return Program{}, fmt.Errorf("read program: %w", err)
	}
	return Program{Info: info, Content: content, Release: release}, nil
}

// Setting returns a build setting; empty if it is not set.
func (p Program) Setting(key string) string {
	for _, s := range p.Info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// Name is the name of the folder of the main package.
func (p Program) Name() string { return path.Base(p.Info.Path) }

// Sum returns the SHA-256 of the program in hexadecimal.
func (p Program) Sum() string { return fmt.Sprintf("%x", sha256.Sum256(p.Content)) }

// Version is the release, or else the version of the commit; empty if there is neither.
func (p Program) Version() string {
	return cmp.Or(p.Release, strings.TrimPrefix(p.Info.Main.Version, "(devel)"))
}

// Created is the time of the commit, so that it does not depend on the build.
func (p Program) Created() time.Time {
	t, err := time.Parse(time.RFC3339, p.Setting("vcs.time"))
	if err != nil {
		return time.Unix(0, 0).UTC() // not built from a repository
	}
	return t.UTC()
}

// stdlib is the name by which vulnerability databases know the standard library.
const stdlib = "stdlib"

// Module is a part of a program.
type Module struct {
	Path, Version string
	// Sum is the checksum in go.sum; empty for the standard library and for modules of this repository.
	Sum string
}

func (m Module) compare(other Module) int {
	return cmp.Or(strings.Compare(m.Path, other.Path), strings.Compare(m.Version, other.Version))
}

// ours reports whether a module is in this repository.
func (m Module) ours() bool { return m.Path == Repository || strings.HasPrefix(m.Path, Repository+"/") }

// Linked returns the modules of programs and the standard library, each once and in order. It excludes the modules of
// the main packages.
func Linked(programs ...Program) []Module {
	var all []Module
	for _, p := range programs {
		all = append(all, Module{Path: stdlib, Version: strings.TrimPrefix(p.Info.GoVersion, "go")})
		for _, m := range p.Info.Deps {
			switch {
			case m.Replace == nil:
			case strings.HasPrefix(m.Replace.Path, "."): // a folder of this repository
				m = &debug.Module{Path: m.Path, Version: p.Version()}
			default:
				m = m.Replace
			}
			all = append(all, Module{m.Path, m.Version, m.Sum})
		}
	}
	slices.SortFunc(all, Module.compare)
	return slices.CompactFunc(all, func(a, b Module) bool { return a.compare(b) == 0 })
}
