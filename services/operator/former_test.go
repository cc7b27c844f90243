package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/cli"
)

// inCluster are the flags that the chart sets.
var inCluster = []string{"--provider=kubernetes", "--discovery-address=:13478", "--health-address=:8086"}

// Pods of existing installations start with the flags and variables of the existing operator. Each ignored flag or
// variable causes one warning with its name and without its value. An ignored flag takes as many arguments as in the
// existing operator, so that the following flags are parsed.
func TestContractSettingsOfExistingOperators(t *testing.T) {
	// settings that cause no warning: they have the same meaning here, or no flag above overrides them
	silent := map[string]string{
		"zap-log-level": "error", "zap-encoder": "json", "dataplane-mode": "managed",
		formerPrefix + "DATAPLANE_MODE": "managed", formerPrefix + "ADDRESS": "192.0.2.1",
		formerPrefix + "CONTROLLER_NAME": "example.org/operator",
	}
	settings := 0
	check := func(name, said string, args []string, env map[string]string) {
		settings++
		args = append(append(inCluster[:3:3], args...), "--cluster-domain", "last")
		o, err := parse(args, environment(env), io.Discard)
		if err != nil || o.clusterDomain != "last" || o.healthAddress != ":8086" || o.discoveryAddress != ":13478" {
			t.Errorf("%v, %v: %+v, %v", args, env, o, err)
			return
		}
		if silent[name] != "" {
			if len(o.warnings) > 0 {
				t.Errorf("%v, %v: warnings %q", args, env, o.warnings)
			}
			return
		}
		if len(o.warnings) != 1 || !strings.HasPrefix(o.warnings[0], said+" is ignored: ") ||
			strings.HasSuffix(o.warnings[0], ": ") || strings.Contains(o.warnings[0], "a-value") {
			t.Errorf("%v, %v: warnings %q", args, env, o.warnings)
		}
	}
	for _, s := range formerSettings {
		for _, name := range s.Flags {
			value := silent[name]
			if value == "" {
				value = "a-value"
			}
			forms := [][]string{{"--" + name, value}, {"--" + name + "=" + value}}
			if s.IsBool {
				forms = [][]string{{"--" + name + "=false"}}
			}
			for _, form := range forms {
				check(name, "flag "+cli.Dashed(name), form, nil)
			}
		}
		for _, name := range s.Env {
			value := silent[name]
			if value == "" {
				value = "a-value"
			}
			check(name, "environment variable "+name, nil, map[string]string{name: value})
		}
	}
	if settings < 25 {
		t.Errorf("%d settings checked", settings)
	}
}

// The default flags of the existing operator, and its settings that have an equivalent.
func TestContractFormerSettingsKeepTheirMeaning(t *testing.T) {
	for _, c := range []struct {
		args string
		env  map[string]string
		got  func(o options) string
		want string
	}{
		{"--leader-elect --endpoint-discovery=false", nil, func(o options) string {
			return strings.Join(o.warnings, "\n")
		}, ""},
		{"--leader-elect --health-probe-bind-address=:8081 --metrics-bind-address=127.0.0.1:8080", nil,
			func(o options) string { return o.healthAddress }, ":8081"},
		{"--health-probe-bind-address=0", nil, func(o options) string { return o.healthAddress }, "127.0.0.1:0"},
		{"--config-discovery-address=:14000", nil, func(o options) string { return o.discoveryAddress }, ":14000"},
		{"--zap-log-level=DEBUG", nil, func(o options) string { return o.log }, "all:DEBUG"},
		{"--zap-log-level=panic", nil, func(o options) string { return o.log }, "all:ERROR"},
		{"--zap-log-level=1", nil, func(o options) string { return o.log }, "all:DEBUG"},
		{"--zap-log-level=5", nil, func(o options) string { return o.log }, "all:TRACE"},
		{"--log=all:WARN --zap-log-level=debug", nil, func(o options) string { return o.log }, "all:WARN"},
		{"--zap-encoder=console", nil, func(o options) string { return o.logFormat }, "text"},
		{"--zap-encoder json", nil, func(o options) string { return o.logFormat }, "json"},
		{"", map[string]string{formerPrefix + "ADDRESS": "192.0.2.1"}, func(o options) string { return o.address },
			"192.0.2.1"},
		{"", map[string]string{formerPrefix + "CONTROLLER_NAME": "a/b"},
			func(o options) string { return o.controllerName }, "a/b"},
	} {
		args := append([]string{"--provider=kubernetes"}, strings.Fields(c.args)...)
		o, err := parse(args, environment(c.env), io.Discard)
		if got := c.got(o); err != nil || got != c.want {
			t.Errorf("%s %v: %q, %v, want %q", c.args, c.env, got, err, c.want)
		}
	}
}

// A value is an error that names the setting, if the operator would interpret it differently from the existing
// operator. A misspelt flag among former ones is an error too.
func TestFormerSettingsThatAreErrors(t *testing.T) {
	for want, c := range map[string]struct {
		args string
		env  map[string]string
	}{
		`flag --dataplane-mode "legacy": `: {args: "--dataplane-mode=legacy"},
		`environment variable ` + formerPrefix + `DATAPLANE_MODE "legacy": `: {
			env: map[string]string{formerPrefix + "DATAPLANE_MODE": "legacy"},
		},
		`flag --zap-log-level "loud": is unknown: use --log`: {args: "--zap-log-level=loud"},
		`--log-format "xml"`: {args: "--zap-encoder=xml"},
		"leader-electt":      {args: "--leader-elect --leader-electt"},
	} {
		args := append([]string{"--provider=kubernetes"}, strings.Fields(c.args)...)
		_, err := parse(args, environment(c.env), io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got error %v, want one with %q", c, err, want)
		}
	}
}

// The warnings are logged at the start.
func TestWarningsAreLogged(t *testing.T) {
	out, in := t.TempDir(), t.TempDir()
	log, err := os.Create(filepath.Join(out, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	defer func(previous *os.File) { os.Stderr = previous }(os.Stderr)
	os.Stderr = log
	o, err := parse([]string{
		"--input", in, "--output", filepath.Join(out, "state"), "--watch=false", "--enable-finalizer",
	}, environment(nil), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if err := run(o); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(log.Name())
	if err != nil || strings.Count(string(text), "flag --enable-finalizer is ignored: ") != 1 {
		t.Errorf("log %q, %v", text, err)
	}
}
