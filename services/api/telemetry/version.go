package telemetry

import (
	"cmp"
	"runtime/debug"
)

// Version is what the build of a program knows about itself, in one line.
func Version(program string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return program + " (unknown build)"
	}
	said := program + " " + cmp.Or(info.Main.Version, "(devel)") + " " + info.GoVersion
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			said += " " + s.Value
		}
	}
	return said
}
