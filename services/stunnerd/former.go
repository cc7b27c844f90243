package main

import (
	"cmp"
	"flag"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// originKubernetes is the value of --config with which the existing dataplane looks for config discovery through the Kubernetes API.
const originKubernetes = "k8s"

// discoveryPort is the port of config discovery where an address has none.
const discoveryPort = "13478"

// formerFlag is a flag that the existing dataplane has and this one does not.
type formerFlag struct {
	names []string
	// switches tells a flag without a value, as --name or --name=false.
	switches bool
	// instead says what to use, or why there is no need.
	instead string
}

const (
	noAPI     = "this program does not talk to the Kubernetes API"
	useOrigin = "use --config, or STUNNER_CONFIG_ORIGIN"
	useToken  = "use --discovery-token-file for config discovery"
	useCA     = "use --discovery-ca-file for config discovery"
	useID     = "use --id, or STUNNER_NAMESPACE and STUNNER_NAME"
)

// formerFlags are all flags of the existing dataplane that are none of this one, with their arity: its own and those that every client of kubectl has. A
// Dataplane of an existing installation can hold no others, because its pods would not have started with them. A flag that is in neither table is a
// mistake, for example of spelling, and remains an error.
var formerFlags = []formerFlag{
	{[]string{"cds-server-address"}, false, useOrigin},
	{[]string{"cds-server-port"}, false, useOrigin},
	{[]string{"cds-server-namespace"}, false, useOrigin},
	{[]string{"n", "namespace"}, false, useID},
	{[]string{"token"}, false, useToken},
	{[]string{"certificate-authority"}, false, useCA},
	{[]string{
		"as", "as-group", "as-uid", "as-user-extra", "cache-dir", "client-certificate", "client-key", "cluster", "context", "kubeconfig", "password",
		"request-timeout", "s", "server", "tls-server-name", "user", "username",
	}, false, noAPI},
	{[]string{"disable-compression", "insecure-skip-tls-verify"}, true, noAPI},
}

// formerValue notes that a former flag was given. It is a flag.Value.
type formerValue struct {
	name  string
	flag  formerFlag
	given map[string]string
}

// String is the default, which is none.
func (v formerValue) String() string { return "" }

// Set takes any value.
func (v formerValue) Set(value string) error {
	v.given[v.name] = value
	return nil
}

// IsBoolFlag tells package flag whether the next argument is the value.
func (v formerValue) IsBoolFlag() bool { return v.flag.switches }

// acceptFormer makes a set of flags accept the former ones, and returns what will be given of them.
func acceptFormer(fs *flag.FlagSet) (given map[string]string) {
	given = map[string]string{}
	for _, f := range formerFlags {
		for _, name := range f.names {
			fs.Var(formerValue{name, f, given}, name, "accepted for compatibility: "+f.instead)
		}
	}
	return given
}

// takeOver gives former flags the meaning that they have here, if any, and notes what comes of each.
func (o *options) takeOver(given map[string]string) error {
	used := ""
	if o.config == originKubernetes {
		var err error
		if used, err = o.findDiscovery(given); err != nil {
			return err
		}
	}
	for _, f := range formerFlags {
		for _, name := range f.names {
			if _, there := given[name]; there && name != used {
				o.warnings = append(o.warnings, fmt.Sprintf("flag %s is ignored: %s", dashed(name), f.instead))
			}
		}
	}
	return nil
}

// findDiscovery replaces the origin k8s: by that of the environment, which the operator sets in its pods, or by the address that a former flag or variable
// names. It returns the flag that was used.
func (o *options) findDiscovery(given map[string]string) (used string, err error) {
	origin, from := o.env("STUNNER_CONFIG_ORIGIN"), "STUNNER_CONFIG_ORIGIN"
	if origin == "" || origin == originKubernetes {
		origin, from = given["cds-server-address"], "--cds-server-address"
		used = "cds-server-address"
		if origin == "" {
			origin, from, used = o.env("CDS_SERVER_ADDR"), "CDS_SERVER_ADDR", ""
		}
		if origin == "" {
			return "", fmt.Errorf("--config %s: config discovery is not looked for through the Kubernetes API: %s", originKubernetes, useOrigin)
		}
		if origin, err = withPort(origin, given["cds-server-port"]); err != nil {
			return "", err
		}
	}
	o.config = origin
	o.warnings = append(o.warnings, fmt.Sprintf("flag --config %s: the config comes from %s, which %s names", originKubernetes, origin, from))
	return used, nil
}

// withPort is an address with a port, the one given or that of config discovery, where it has none. A URL stays as it is.
func withPort(address, port string) (string, error) {
	if _, _, err := net.SplitHostPort(address); err == nil || strings.Contains(address, "://") {
		return address, nil
	}
	port = cmp.Or(port, discoveryPort)
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", fmt.Errorf("--cds-server-port %q: use 1 to 65535", port)
	}
	return net.JoinHostPort(strings.Trim(address, "[]"), port), nil
}

// dashed is a flag as people write it.
func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}
