package cli

import (
	"cmp"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Former is a setting of the existing system's program that this program accepts, so that existing command lines and
// pod templates keep working.
type Former struct {
	// Flags are the names of its flags, without dashes.
	Flags []string
	// Env are the names of its environment variables.
	Env []string
	// IsBool is set for boolean flags, which are given without a value: --name, or --name=false.
	IsBool bool
	// Flag is the flag of this program with the same meaning. It takes precedence over the former setting. Empty means
	// that there is none and the setting is ignored.
	Flag string
	// Convert returns the value for Flag; "" means that the setting does not set Flag. Nil keeps the value.
	Convert func(value string) (string, error)
	// Instead names the replacement, or the reason why there is none. It is not used if Flag is set.
	Instead string
}

const noKubernetes = "this program does not talk to the Kubernetes API"

// KubectlFlags are the connection flags of kubectl, without --namespace, for programs that use config discovery instead
// of the Kubernetes API.
var KubectlFlags = []Former{
	{Flags: []string{"token"}, Instead: "use --discovery-token-file for config discovery"},
	{Flags: []string{"certificate-authority"}, Instead: "use --discovery-ca-file for config discovery"},
	{Flags: []string{
		"as", "as-group", "as-uid", "as-user-extra", "cache-dir", "client-certificate", "client-key", "cluster",
		"context", "kubeconfig", "password", "request-timeout", "s", "server", "tls-server-name", "user", "username",
	}, Instead: noKubernetes},
	{Flags: []string{"disable-compression", "insecure-skip-tls-verify"}, IsBool: true, Instead: noKubernetes},
}

// formerValue is a flag.Value that records that a former flag was given.
type formerValue struct {
	name   string
	isBool bool
	given  map[string]string
}

// String returns the default, which is empty.
func (v formerValue) String() string { return "" }

// Set accepts any value.
func (v formerValue) Set(value string) error {
	v.given[v.name] = value
	return nil
}

// IsBoolFlag reports to package flag whether the flag needs no value.
func (v formerValue) IsBoolFlag() bool { return v.isBool }

// AcceptFormer defines the flags of former settings. Parse adds the given settings to f.Former.
func (f *Flags) AcceptFormer(settings []Former) {
	f.settings, f.Former, f.taken = settings, map[string]string{}, map[string]bool{}
	for _, s := range settings {
		instead := s.Instead
		if s.Flag != "" {
			instead = "use " + Dashed(s.Flag)
		}
		for _, name := range s.Flags {
			f.Var(formerValue{name, s.IsBool, f.Former}, name, "accepted for compatibility: "+instead)
		}
	}
	env := f.Env
	f.Env = func(flag string) string {
		if _, former := f.Lookup(flag).Value.(formerValue); former {
			return ""
		}
		return env(flag)
	}
}

// TakeFormer returns the value of a former flag, or else of a former environment variable, for the Convert function of
// another setting. If the setting of that flag or variable comes later, SetFromFormer does not report it as ignored.
func (f *Flags) TakeFormer(flag, variable string, getenv func(string) string) string {
	if value := f.Former[flag]; value != "" {
		delete(f.Former, flag)
		return value
	}
	f.taken[variable] = true
	return getenv(variable)
}

// SetFromFormer sets the flags that are given neither on the command line nor in the environment from former settings.
// It must be called after SetFromEnv. It returns a warning for each setting that is ignored. The warnings contain names
// only, because a value may be a secret.
func (f *Flags) SetFromFormer(getenv func(string) string) (warnings []string, err error) {
	given := f.given()
	var errs Errors
	for _, s := range f.settings {
		use := func(name, value string) {
			if given[s.Flag] {
				warnings = append(warnings, name+" is ignored: "+Dashed(s.Flag)+" is set")
				return
			}
			if s.Convert != nil {
				converted, err := s.Convert(value)
				if err != nil {
					errs.Addf("%s %q: %w", name, value, err)
				}
				if converted == "" {
					return
				}
				value = converted
			}
			if s.Flag == "" {
				warnings = append(warnings, name+" is ignored: "+s.Instead)
				return
			}
			given[s.Flag] = true
			if err := f.Set(s.Flag, value); err != nil {
				errs.Addf("%s %q: %w", name, value, err)
			}
		}
		for _, name := range s.Flags {
			if value, ok := f.Former[name]; ok {
				use("flag "+Dashed(name), value)
			}
		}
		for _, name := range s.Env {
			if value := getenv(name); value != "" && !f.taken[name] {
				use("environment variable "+name, value)
			}
		}
	}
	return warnings, errs.Join()
}

// discoveryPort is the default port of config discovery.
const discoveryPort = "13478"

// WithPort adds a port to an address of config discovery that has none. If port is empty, it adds the default port,
// 13478. It does not change a URL.
func WithPort(address, port string) (string, error) {
	if _, _, err := net.SplitHostPort(address); err == nil || strings.Contains(address, "://") {
		return address, nil
	}
	port = cmp.Or(port, discoveryPort)
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", fmt.Errorf("CDS_SERVER_PORT or --cds-server-port %q: use 1 to 65535", port)
	}
	return net.JoinHostPort(strings.Trim(address, "[]"), port), nil
}
