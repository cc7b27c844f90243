package main

import (
	"flag"
	"fmt"
	"net"
	"strings"

	"github.com/stunner-gateway/stunner/services/api/cli"
)

// originKubernetes is the value of --config that made the former dataplane find config discovery through the Kubernetes
// API.
const originKubernetes = "k8s"

// discoveryService is the name of the Service of config discovery, in the namespace of the operator.
const discoveryService = "stunner-config-discovery"

const useOrigin = "use --config, or STUNNER_CONFIG_ORIGIN"

// formerSettings are all flags and environment variables of the former dataplane that this program does not have. The
// Dataplane of an existing installation cannot contain other flags, because its pods would not have started. A flag
// that is in neither program, such as a misspelled one, is an error. Variables that are placeholders in a config file
// are not in the list. The variables for relay ports are in it nevertheless, because the config fields that contain
// them have no effect.
var formerSettings = append([]cli.Former{
	{Flags: []string{"cds-server-address"}, Env: []string{"CDS_SERVER_ADDR"}, Instead: useOrigin},
	{Flags: []string{"cds-server-namespace"}, Env: []string{"CDS_SERVER_NAMESPACE"}, Instead: useOrigin},
	{Flags: []string{"cds-server-port"}, Env: []string{"CDS_SERVER_PORT"}, Instead: useOrigin},
	{Env: []string{"STUNNER_MIN_PORT", "STUNNER_MAX_PORT"}, Instead: "use --relay-ports, or STUNNER_RELAY_PORTS"},
	{Flags: []string{"n", "namespace"}, Instead: "use --id, or STUNNER_NAMESPACE and STUNNER_NAME"},
}, cli.KubectlFlags...)

// translateFormer replaces the origin k8s, and adds a warning for each setting of the former dataplane that is ignored.
func (o *options) translateFormer(f *cli.Flags) error {
	in := formerReader{flags: f.Former, env: o.env, used: map[string]bool{}}
	if o.config == originKubernetes {
		origin, err := in.origin()
		if err != nil {
			return err
		}
		o.config = origin
		o.warnings = append(o.warnings, fmt.Sprintf("flag --config %s: the config comes from %s, as set by %s",
			originKubernetes, origin, strings.Join(in.from, " and ")))
	}
	warnings, err := f.SetFromFormer(func(name string) string {
		if in.used[name] {
			return ""
		}
		return o.env(name)
	})
	o.warnings = append(o.warnings, warnings...)
	return err
}

// formerReader reads settings of the former dataplane, and records the settings that have an effect.
type formerReader struct {
	flags map[string]string // values of flags; value deletes a flag that is used
	env   func(string) string
	used  map[string]bool // variables
	from  []string        // names of flags and variables
}

// value returns the value of a flag of the former dataplane. If the flag is not set, it returns the value of the
// variable.
func (in *formerReader) value(flag, variable string) string {
	if value := in.flags[flag]; value != "" {
		delete(in.flags, flag)
		in.from = append(in.from, cli.Dashed(flag))
		return value
	}
	value := in.env(variable)
	if value != "" {
		in.used[variable] = true
		in.from = append(in.from, variable)
	}
	return value
}

// origin returns the URL that the origin k8s stands for. It is the value of STUNNER_CONFIG_ORIGIN, which the operator
// sets in its pods. Without that variable, it is the address in a flag or variable of the former dataplane. Without
// that address, it is the Service of config discovery in the namespace that a flag or variable of the former dataplane
// names.
func (in *formerReader) origin() (string, error) {
	const variable = "STUNNER_CONFIG_ORIGIN"
	if origin := in.env(variable); origin != "" && origin != originKubernetes {
		in.from = append(in.from, variable)
		return origin, nil
	}
	address := in.value("cds-server-address", "CDS_SERVER_ADDR")
	if _, _, err := net.SplitHostPort(address); err == nil || strings.Contains(address, "://") {
		return address, nil
	}
	if address == "" {
		namespace := in.value("cds-server-namespace", "CDS_SERVER_NAMESPACE")
		if namespace == "" {
			return "", fmt.Errorf("--config %s: config discovery is not looked for through the Kubernetes API: %s, "+
				"such as https://%s.NAMESPACE.svc:13478", originKubernetes, useOrigin, discoveryService)
		}
		address = discoveryService + "." + namespace + ".svc"
	}
	return cli.WithPort(address, in.value("cds-server-port", "CDS_SERVER_PORT"))
}

// splitFormer rewrites arguments in forms that the former dataplane accepts and package flag does not: several
// one-letter flags in one argument (-wv), a one-letter flag and its value in one argument (-u16), and flags after the
// TURN URI.
func splitFormer(args []string, f *cli.Flags) []string {
	var flags, others []string
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			others = append(others, args[i+1:]...)
			break
		}
		if len(arg) < 2 || arg[0] != '-' {
			others = append(others, arg)
			continue
		}
		split := splitLetters(arg, f)
		flags = append(flags, split...)
		name, _, hasValue := strings.Cut(strings.TrimLeft(split[len(split)-1], "-"), "=")
		if defined := f.Lookup(name); defined == nil || hasValue || isBool(defined) {
			continue
		}
		if i++; i == len(args) {
			return flags // package flag reports the missing value
		}
		flags = append(flags, args[i])
	}
	return append(append(flags, "--"), others...)
}

// splitLetters returns the flags in an argument such as -wu16. It returns any other argument unchanged, so that package
// flag reports a misspelled name.
func splitLetters(arg string, f *cli.Flags) (flags []string) {
	name, _, _ := strings.Cut(arg[1:], "=")
	if arg[1] == '-' || f.Lookup(name) != nil {
		return []string{arg}
	}
	for i := 1; i < len(arg); i++ {
		letter := arg[i : i+1]
		if f.Short[letter] == "" {
			return []string{arg}
		}
		if rest := arg[i+1:]; rest != "" && !isBool(f.Lookup(letter)) {
			return append(flags, "-"+letter+"="+strings.TrimPrefix(rest, "="))
		}
		flags = append(flags, "-"+letter)
	}
	return flags
}

// warnTransport adds a warning for a TURN URI whose transport the former dataplane reads differently: to the former
// dataplane, turns without a transport means DTLS. To this program it means TLS over TCP (RFC 5928 §3).
func (o *options) warnTransport(uri string) {
	if o.uri.Scheme == "turns" && !strings.Contains(uri, "?") {
		o.warnings = append(o.warnings, "TURN URI turns without a transport means TLS: for DTLS add ?transport=dtls")
	}
}

// isBool reports whether a flag has no value, as package flag does.
func isBool(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}
