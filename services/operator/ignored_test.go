package main

import (
	"flag"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// otherValues are valid values of flags that differ from their defaults. Boolean flags get the opposite value.
var otherValues = map[string]string{
	"kubeconfig": "/nowhere", "namespace": "elsewhere", "identity": "me", "discovery-token-file": "/token",
	"watch-namespaces": "media", "credentials": "turn", "discovery-readers": "media/auth", "own-gateway-configs": "deny",
	"input": "in2", "output": "out2", "address": "192.0.2.1", "stunnerd": "/bin/other",
	"discovery-address": "127.0.0.1:1", "health-address": "127.0.0.1:2", "child-lifetime": "bound", "stop-grace": "9s",
	"controller-name": "example.net/other", "cluster-domain": "example.net", "image": "example.net/image",
	"discovery-url": "https://example.net", "scaler-address": "127.0.0.1:3", "scaler-url": "example.net:4",
}

// obvious are the flags whose effect is not in the settings of a provider.
var obvious = []string{"provider", "log", "log-format", "version", "discovery-auth"}

// settings returns the settings of a provider that result from the flags.
func (o options) settings() string {
	if o.provider == providerFile {
		p := o.fileProvider()
		p.Log = nil
		return fmt.Sprintf("%+v", p)
	}
	p, err := o.kubeProvider()
	s := p.Settings
	s.Log = nil
	return fmt.Sprintf("%+v %v", s, err)
}

// Each flag has an effect with a provider, or causes a warning that it has no effect.
func TestEveryFlagHasAnEffectOrARemark(t *testing.T) {
	base := map[string][]string{
		providerFile:       {"--provider=file", "--input=in", "--output=out", "--stunnerd=/bin/stunnerd"},
		providerKubernetes: {"--provider=kubernetes", "--identity=self"},
	}
	names := []string{}
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	new(options).flags(fs)
	fs.VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
	for provider, args := range base {
		plain, err := parse(args, environment(nil), io.Discard)
		if err != nil || len(plain.warnings) > 0 {
			t.Fatalf("%s: %v, warnings %q", provider, err, plain.warnings)
		}
		for _, name := range names {
			if slices.Contains(obvious, name) {
				continue
			}
			value := otherValues[name]
			if b, ok := fs.Lookup(name).Value.(interface{ IsBoolFlag() bool }); ok && b.IsBoolFlag() {
				value = fmt.Sprint(fs.Lookup(name).DefValue == "false")
			}
			o, err := parse(append(slices.Clone(args), "--"+name+"="+value), environment(nil), io.Discard)
			if err != nil {
				t.Fatalf("%s --%s=%s: %v", provider, name, value, err)
			}
			if name == "watch" && provider == providerFile { // makes --stunnerd a flag without an effect
				o.warnings = nil
			}
			effect := !reflect.DeepEqual(o.settings(), plain.settings())
			remark := slices.ContainsFunc(o.warnings, func(w string) bool {
				return strings.HasPrefix(w, "--"+name+" has no effect ")
			})
			if effect == remark {
				t.Errorf("%s --%s=%s: effect %t, remark %t: %q", provider, name, value, effect, remark, o.warnings)
			}
		}
	}
}

// The modes of the file provider ignore flags too, and the environment counts as the command line does.
func TestModesAndEnvironmentHaveRemarks(t *testing.T) {
	folder := []string{"--input=in", "--output=out"}
	for name, tc := range map[string]struct {
		args []string
		env  map[string]string
		want []string
	}{
		"once": {
			append(folder, "--watch=false", "--stunnerd=/bin/stunnerd", "--health-address=127.0.0.1:1"), nil,
			[]string{"--health-address", "--stunnerd"},
		},
		"render only": {append(folder, "--leave-dataplanes"), nil, []string{"--leave-dataplanes"}},
		"environment": {
			folder, map[string]string{"STUNNER_OPERATOR_WATCH_NAMESPACES": "media"}, []string{"--watch-namespaces"},
		},
		"nothing": {folder, nil, nil},
	} {
		o, err := parse(tc.args, environment(tc.env), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, w := range o.warnings {
			flag, _, _ := strings.Cut(w, " ")
			got = append(got, flag)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: warnings %q, want those of %q", name, o.warnings, tc.want)
		}
	}
}
