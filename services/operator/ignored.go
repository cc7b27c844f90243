package main

import (
	"flag"
	"fmt"
	"slices"

	"github.com/stunner-gateway/stunner/services/api/cli"
)

// ignored are flags that have no effect while a condition holds. The texts complete "has no effect".
var ignored = []struct {
	text    string
	applies func(o *options) bool
	flags   []string
}{
	{
		"with --provider=file", func(o *options) bool { return o.provider == providerFile },
		[]string{
			"kubeconfig", "identity", "discovery-token-file", "watch-namespaces", "credentials", "discovery-readers",
			"scaler-address",
		},
	},
	{
		"with --provider=kubernetes", func(o *options) bool { return o.provider == providerKubernetes },
		[]string{"input", "output", "stunnerd", "watch", "child-lifetime", "leave-dataplanes", "stop-grace"},
	},
	{
		"with --watch=false, which serves nothing", func(o *options) bool { return o.provider == providerFile && !o.watch },
		[]string{
			"stunnerd", "child-lifetime", "leave-dataplanes", "stop-grace", "discovery-address", "health-address",
		},
	},
	{
		"without --stunnerd, because no dataplane is started",
		func(o *options) bool { return o.provider == providerFile && o.watch && o.stunnerd == "" },
		[]string{"child-lifetime", "leave-dataplanes", "stop-grace"},
	},
}

// warnIgnored returns a warning for each flag that is given, by the command line or the environment, and has no effect.
func (o *options) warnIgnored(f *cli.Flags) (warnings []string) {
	f.Visit(func(given *flag.Flag) {
		for _, i := range ignored {
			if slices.Contains(i.flags, given.Name) && i.applies(o) {
				warnings = append(warnings, fmt.Sprintf("--%s has no effect %s: remove it, or %s", given.Name, i.text,
					cli.EnvName(envPrefix, given.Name)))
			}
		}
	})
	return warnings
}
