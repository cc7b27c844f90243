// Package multicall combines several programs in one binary. It runs the component with the name of the symbolic link,
// or of the first argument; without either it lists the components. The binary needs one link step and a quarter of the
// size of separate binaries.
package multicall

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // the metrics of the published binaries
	_ "k8s.io/component-base/metrics/prometheus/version"
)

// Main runs one of the components, which ends the process.
func Main(components map[string]func()) {
	names := slices.Sorted(maps.Keys(components))
	program, called := filepath.Base(os.Args[0]), os.Args
	if !slices.Contains(names, program) {
		called = called[1:]
	}
	switch {
	case len(called) == 0:
		fmt.Println(strings.Join(names, "\n"))
	case components[filepath.Base(called[0])] == nil:
		fmt.Fprintf(
			os.Stderr, "%s: run %q: no such component: name one of %s\n", program, called[0], strings.Join(names, ", "),
		)
		os.Exit(2)
	default:
		os.Args = called // the component parses its flags from os.Args
		components[filepath.Base(called[0])]()
	}
}

// Run runs a command as the binaries of Kubernetes do.
func Run(c *cobra.Command) { os.Exit(cli.Run(c)) }
