package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/cli"
)

// Pods of existing installations start with the flags and variables of the existing auth service. Each ignored flag or
// variable causes one warning with its name and without its value. An ignored flag takes as many arguments as in the
// existing auth service, so that the following flags are parsed.
func TestContractSettingsOfExistingAuthServices(t *testing.T) {
	settings := 0
	for _, s := range formerSettings(cli.New("auth", envName), none) {
		for _, name := range append(s.Flags, s.Env...) {
			settings++
			args, env := []string{cli.Dashed(name), "a-value"}, map[string]string{}
			said := "flag " + cli.Dashed(name)
			if s.IsBool {
				args = args[:1]
			}
			if strings.ToUpper(name) == name {
				args, env, said = nil, map[string]string{name: "a-value"}, "environment variable "+name
			}
			args = append([]string{"--config=x", "--log-level=all:INFO"}, append(args, "--port", "9000")...)
			o, err := parseOptions(args, func(name string) string { return env[name] })
			if err != nil || o.port != 9000 || o.config != "x" {
				t.Errorf("%v, %v: %+v, %v", args, env, o, err)
				continue
			}
			if len(o.warnings) != 1 || !strings.HasPrefix(o.warnings[0], said+" is ignored: ") ||
				strings.HasSuffix(o.warnings[0], ": ") || strings.Contains(o.warnings[0], "a-value") {
				t.Errorf("%v, %v: warnings %q", args, env, o.warnings)
			}
		}
	}
	if settings < 25 {
		t.Errorf("%d settings checked", settings)
	}
}

// Settings of the existing auth service that have an equivalent, beginning with its default flags.
func TestContractFormerSettingsKeepTheirMeaning(t *testing.T) {
	level := func(args ...string) string {
		var r raw
		f := newFlags(&r)
		if err := f.Parse(args); err != nil {
			t.Fatal(err)
		}
		if _, err := f.SetFromFormer(none); err != nil {
			t.Fatal(err)
		}
		return r.logLevel
	}
	for args, want := range map[string]string{
		"--port=8088 -v": "all:DEBUG", "--verbose": "all:DEBUG", "-v=false": "all:INFO", "--log all:WARN": "all:WARN",
		"-v -l all:WARN": "all:WARN",
	} {
		if got := level(strings.Fields(args)...); got != want {
			t.Errorf("%s: log level %s, want %s", args, got, want)
		}
	}
	for _, c := range []struct {
		args string
		env  map[string]string
		want string
	}{
		{"--cds-server-address=stunner-config-discovery.stunner-system.svc -v", nil,
			"stunner-config-discovery.stunner-system.svc:13478"},
		{"--cds-server-port 5000 --cds-server-address=10.0.0.1", nil, "10.0.0.1:5000"},
		{"", map[string]string{"CDS_SERVER_ADDR": "10.0.0.1"}, "10.0.0.1:13478"},
		{"", map[string]string{"CDS_SERVER_ADDR": "10.0.0.1", "CDS_SERVER_PORT": "5000"}, "10.0.0.1:5000"},
		{"--cds-server-address 10.0.0.2", map[string]string{"CDS_SERVER_PORT": "5000"}, "10.0.0.2:5000"},
	} {
		o, err := parseOptions(strings.Fields(c.args), func(name string) string { return c.env[name] })
		if err != nil || o.config != c.want || len(o.warnings) > 0 {
			t.Errorf("%s %v: origin %q, warnings %q, %v", c.args, c.env, o.config, o.warnings, err)
		}
	}
}

// A wrong value of a former flag is an error that names the flag. A misspelt flag among former flags is such an error
// too.
func TestFormerSettingsThatAreErrors(t *testing.T) {
	for want, args := range map[string]string{
		"--cds-server-port": "--cds-server-address 10.0.0.1 --cds-server-port many", "-v \"loud\"": "-c x -v=loud",
		"kubeconfigs": "-c x --kubeconfig y --kubeconfigs z",
	} {
		if _, err := parseOptions(strings.Fields(args), none); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// The warnings are logged at the start.
func TestWarningsAreLogged(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var log lockedBuffer // the file source may still log when the command has ended
	command(ctx, []string{
		"--config=" + t.TempDir() + "/x", "--address=127.0.0.1", "--port=0", "--health-address=127.0.0.1:0",
		"--shutdown-delay=0", "--kubeconfig=y",
	}, none, io.Discard, &log)
	if strings.Count(log.String(), "flag --kubeconfig is ignored: ") != 1 {
		t.Errorf("log %q", log.String())
	}
}
