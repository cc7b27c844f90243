// Package multicall puts several programs into one: it runs the component it is called by, through a symbolic link, or
// the one that its first argument names; called without any it lists them. One link step in place of one a component,
// and a quarter of the size.
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
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // the metrics that the published programs have
	_ "k8s.io/component-base/metrics/prometheus/version"
)

// Main runs one of the components, each of which ends the process.
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
		fmt.Fprintf(os.Stderr, "%s: run %q: no such component: name one of %s\n", program, called[0], strings.Join(names, ", "))
		os.Exit(2)
	default:
		os.Args = called // what the component reads its flags from
		components[filepath.Base(called[0])]()
	}
}

// Run runs a command as Kubernetes runs its own.
func Run(c *cobra.Command) { os.Exit(cli.Run(c)) }
