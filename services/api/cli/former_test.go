package cli

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// A former setting sets the flag with its meaning, unless that flag is set itself. All others cause one warning each,
// with the name and without the value.
func TestFormerSettings(t *testing.T) {
	settings := []Former{
		{Flags: []string{"old-size"}, Env: []string{"OLD_SIZE"}, Flag: "size"},
		{Flags: []string{"old-name"}, Flag: "name", Convert: func(value string) (string, error) {
			if value == "bad" {
				return "", errors.New("use another")
			}
			return strings.TrimPrefix(value, "none"), nil
		}},
		{Flags: []string{"q", "quiet"}, IsBool: true, Instead: "nothing is loud"},
		{Env: []string{"OLD_KEY"}, Instead: "there is no key"},
	}
	for name, tt := range map[string]struct {
		args     string
		env      map[string]string
		size     int
		name     string
		warnings []string
		err      string
	}{
		"nothing":    {size: 1, name: "a"},
		"a flag":     {args: "--old-size 5", size: 5, name: "a"},
		"a variable": {env: map[string]string{"OLD_SIZE": "5"}, size: 5, name: "a"},
		"flag and variable": {
			args: "--old-size=5", env: map[string]string{"OLD_SIZE": "6"}, size: 5, name: "a",
			warnings: []string{"environment variable OLD_SIZE is ignored: --size is set"},
		},
		"beside the own flag": {
			args: "-s 7 --old-size 5", size: 7, name: "a",
			warnings: []string{"flag --old-size is ignored: --size is set"},
		},
		"beside the own variable": {
			args: "--old-size 5", env: map[string]string{"P_SIZE": "7"}, size: 7, name: "a",
			warnings: []string{"flag --old-size is ignored: --size is set"},
		},
		"converted":         {args: "--old-name noneb", size: 1, name: "b"},
		"without an effect": {args: "--old-name none", size: 1, name: "a"},
		"values that are wrong": {
			args: "--old-name bad --old-size many", name: "a",
			err: "flag --old-size \"many\": parse error\nflag --old-name \"bad\": use another",
		},
		"ignored": {
			args: "-q --quiet=false --size 2", env: map[string]string{"OLD_KEY": "secret"}, size: 2, name: "a",
			warnings: []string{
				"flag -q is ignored: nothing is loud", "flag --quiet is ignored: nothing is loud",
				"environment variable OLD_KEY is ignored: there is no key",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := New("program", func(name string) string { return EnvName("P_", name) })
			size, text := f.Int("size", 1, "size"), f.String("name", "a", "name")
			f.Shorten(map[string]string{"s": "size"})
			f.AcceptFormer(settings)
			env := func(name string) string { return tt.env[name] }
			if err := errors.Join(f.Parse(strings.Fields(tt.args)), f.SetFromEnv(env)); err != nil {
				t.Fatal(err)
			}
			warnings, err := f.SetFromFormer(env)
			if *size != tt.size || *text != tt.name || !slices.Equal(warnings, tt.warnings) {
				t.Errorf("size %d, name %q, warnings %q", *size, *text, warnings)
			}
			if (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
				t.Errorf("error %v, want %q", err, tt.err)
			}
		})
	}
}

// The help lists former flags without an environment variable, because the program reads none for them.
func TestFormerFlagsHaveNoVariable(t *testing.T) {
	f := New("program", func(name string) string { return EnvName("P_", name) })
	f.String("name", "", "name")
	f.AcceptFormer([]Former{{Flags: []string{"old-name"}, Flag: "name"}})
	var help strings.Builder
	f.PrintHelp(&help)
	want := "\n  --old-name value\n      accepted for compatibility: use --name\n"
	if !strings.Contains(help.String(), want) {
		t.Errorf("help %s does not contain %q", help.String(), want)
	}
	if err := f.SetFromEnv(func(name string) string { return name }); err != nil || len(f.Former) != 0 ||
		f.Lookup("name").Value.String() != "P_NAME" {
		t.Errorf("former flags %v, name %q, %v", f.Former, f.Lookup("name").Value, err)
	}
}

func TestWithPort(t *testing.T) {
	for _, tt := range []struct{ address, port, want string }{
		{"10.0.0.1:5000", "", "10.0.0.1:5000"}, {"10.0.0.1", "", "10.0.0.1:13478"},
		{"10.0.0.1", "5000", "10.0.0.1:5000"}, {"fd00::1", "", "[fd00::1]:13478"},
		{"[fd00::1]", "", "[fd00::1]:13478"}, {"https://discovery", "", "https://discovery"},
	} {
		if got, err := WithPort(tt.address, tt.port); got != tt.want || err != nil {
			t.Errorf("%s, port %q: %q, %v", tt.address, tt.port, got, err)
		}
	}
	if _, err := WithPort("10.0.0.1", "many"); err == nil || !strings.Contains(err.Error(), "--cds-server-port") {
		t.Errorf("%v", err)
	}
}
