package command

import (
	"github.com/spf13/cobra"
)

func newLicense(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "license",
		Short: "Tell which features are on: all",
		Long: `The existing system has features that need a licence. Here every feature is on,
and no licence is read.`,
		Args:   cobra.NoArgs,
		Hidden: true,
		RunE: func(*cobra.Command, []string) error {
			p := g.printer()
			if !p.IsTable() {
				return p.Value(map[string]any{"features": "all", "license": "Apache-2.0"})
			}
			return p.Text("Every feature is on. STUNner is free software under the Apache License 2.0.\n")
		},
	}
}
