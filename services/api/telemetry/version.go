package telemetry

import (
	"cmp"
	"runtime/debug"
)

// release is the version of a release, which the linker sets. A build from a commit has the version of the commit.
var release string

// Version returns name, version, Go version and commit of a program in one line.
func Version(program string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return program + " (unknown build)"
	}
	line := program + " " + cmp.Or(release, info.Main.Version, "(devel)") + " " + info.GoVersion
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			line += " " + s.Value
		}
	}
	return line
}
