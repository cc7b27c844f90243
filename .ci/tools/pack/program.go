package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"os"
	"path"
	"runtime/debug"
	"time"
)

// program is a Go binary with its build information.
type program struct {
	info    *debug.BuildInfo
	content []byte
}

// demands are the required build settings.
var demands = []struct{ setting, value, why string }{
	{"GOOS", "linux", "the image is for Linux"},
	{"CGO_ENABLED", "0", "there is no C library in the image"},
	{"-trimpath", "true", "the image must not depend on the folder that it was built in"},
}

func open(file string) (program, error) {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return program{}, fmt.Errorf("read program: %w: build it with Go", err)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return program{}, fmt.Errorf("read program: %w", err)
	}
	p := program{info: info, content: content}
	for _, d := range demands {
		if got := p.setting(d.setting); got != d.value {
			return program{}, fmt.Errorf(
				"pack %s: it was built with %s=%q: build with %s=%s, because %s", file, d.setting, got, d.setting,
				d.value, d.why,
			)
		}
	}
	return p, nil
}

func (p program) setting(key string) string {
	for _, s := range p.info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// name is the name of the folder of the main package.
func (p program) name() string { return path.Base(p.info.Path) }

func (p program) sum() string { return fmt.Sprintf("%x", sha256.Sum256(p.content)) }

// created is the time of the commit, so that it does not depend on the build.
func (p program) created() time.Time {
	t, err := time.Parse(time.RFC3339, p.setting("vcs.time"))
	if err != nil {
		return time.Unix(0, 0).UTC() // not built from a repository
	}
	return t
}
