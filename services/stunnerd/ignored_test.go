package main

import (
	"io"
	"slices"
	"strings"
	"testing"
)

// A flag without an effect in a mode has a warning, also if it is set in the environment. Pods that the operator
// renders have no warnings.
func TestFlagsWithoutAnEffectHaveARemark(t *testing.T) {
	const quick = "turn://ann:secret@127.0.0.1:3478"
	for name, tc := range map[string]struct {
		args []string
		env  map[string]string
		want []string
	}{
		"quick server": {
			[]string{"-c", "x", "--id=a/b", "--node=n", "--discovery-token-file=t", "--discovery-ca-file=c", quick}, nil,
			[]string{"--config", "--discovery-ca-file", "--discovery-token-file", "--id", "--node"},
		},
		"a file, read once": {
			[]string{"-c", "x", "--standby-config=s", "--healthcheck-endpoint=http://:8086"}, nil,
			[]string{"--healthcheck-endpoint", "--standby-config"},
		},
		"a file, read once, and no probes": {[]string{"-c", "x", "--healthcheck-endpoint=none"}, nil, nil},
		"no journal":                       {[]string{"-w"}, map[string]string{"STUNNER_HAND_OVER": "true"}, []string{"--hand-over"}},
		"no hand-over":                     {[]string{"-w"}, map[string]string{"STUNNER_HAND_OVER": "false"}, nil},
		"two levels":                       {[]string{"-w", "-v", "--log=all:INFO"}, nil, []string{"--verbose"}},
		"one level":                        {[]string{"-w", "-v"}, nil, nil},
		"dry run":                          {[]string{"-d", "-c", "x", "--standby-config=s"}, nil, nil},
		"pod of a Gateway": {[]string{"-w", "--standby-config=s", "--node=n"}, map[string]string{
			"STUNNER_CONFIG_ORIGIN": "https://example.net", "STUNNER_STATE_DIR": "/s", "STUNNER_HAND_OVER": "true",
			"STUNNER_DISCOVERY_TOKEN_FILE": "t", "STUNNER_DISCOVERY_CA_FILE": "c", "STUNNER_POD": "p",
			"STUNNER_HEALTHCHECK_ENDPOINT": "http://:8086", "STUNNER_DRAIN_TIMEOUT": "1h",
		}, nil},
	} {
		o, err := parseFlags(tc.args, func(name string) string { return tc.env[name] }, io.Discard)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got []string
		for _, w := range o.warnings {
			if flag, _, remark := strings.Cut(w, " has no effect "); remark {
				got = append(got, flag)
			}
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: warnings %q, want those of %q", name, o.warnings, tc.want)
		}
	}
}
