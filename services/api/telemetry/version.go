package telemetry

import (
	"cmp"
	"runtime/debug"
)

// Version returns name, version, Go version and commit of a program in one line.
func Version(program string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return program + " (unknown build)"
	}
	line := program + " " + cmp.Or(info.Main.Version, "(devel)") + " " + info.GoVersion
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			line += " " + s.Value
		}
	}
	return line
}
