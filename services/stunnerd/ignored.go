package main

import (
	"cmp"
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
		"with a TURN URI, which contains the whole config", func(o *options) bool { return o.uri != nil },
		[]string{"config", "id", "node", "discovery-token-file", "discovery-ca-file", "standby-config"},
	},
	{
		"without --watch", func(o *options) bool { return o.uri == nil && !o.watch },
		[]string{"standby-config", "healthcheck-endpoint"},
	},
	{
		"without --state-dir or --journal-dir, because there is no journal of sessions",
		func(o *options) bool { return o.stateDir == "" && o.journalDir == "" },
		[]string{"hand-over"},
	},
	{"because --log is given too", func(o *options) bool { return o.log != "all:DEBUG" }, []string{"verbose"}},
}

// off are values that switch something off. Such a value is never ignored, even where its flag has no effect.
var off = []string{"false", "none"}

// warnIgnored returns a warning for each flag or environment variable that is set and has no effect. A dry run uses few
// flags, so it has no warnings.
func (o *options) warnIgnored(f *cli.Flags) (warnings []string) {
	if o.dryRun {
		return nil
	}
	f.Visit(func(given *flag.Flag) {
		name := cmp.Or(f.Short[given.Name], given.Name)
		for _, i := range ignored {
			if !slices.Contains(off, given.Value.String()) && slices.Contains(i.flags, name) && i.applies(o) {
				warnings = append(warnings, fmt.Sprintf("--%s has no effect %s", name, i.text))
			}
		}
	})
	return warnings
}
