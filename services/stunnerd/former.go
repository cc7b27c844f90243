package main

import (
	"cmp"
	"flag"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/stunner-gateway/stunner/services/api/cli"
)

// originKubernetes is the value of --config that made the former dataplane find config discovery through the Kubernetes
// API.
const originKubernetes = "k8s"

// discoveryPort is the default port of config discovery.
const discoveryPort = "13478"

// formerFlag is a flag of the former dataplane that this program does not have.
type formerFlag struct {
	names []string
	// isBool is set for a boolean flag, which is given without a value: --name, or --name=false.
	isBool bool
	// instead names the replacement, or says why there is none.
	instead string
}

const (
	noAPI     = "this program does not talk to the Kubernetes API"
	useOrigin = "use --config, or STUNNER_CONFIG_ORIGIN"
	useToken  = "use --discovery-token-file for config discovery"
	useCA     = "use --discovery-ca-file for config discovery"
	useID     = "use --id, or STUNNER_NAMESPACE and STUNNER_NAME"
)

// formerFlags are all flags of the former dataplane that this program does not have: its own flags, and the connection
// flags of kubectl. The Dataplane of an existing installation cannot contain other flags, because its pods would not
// have started. A flag that is in neither program, such as a misspelled one, is an error.
var formerFlags = []formerFlag{
	{[]string{"cds-server-address"}, false, useOrigin},
	{[]string{"cds-server-port"}, false, useOrigin},
	{[]string{"cds-server-namespace"}, false, useOrigin},
	{[]string{"n", "namespace"}, false, useID},
	{[]string{"token"}, false, useToken},
	{[]string{"certificate-authority"}, false, useCA},
	{[]string{
		"as", "as-group", "as-uid", "as-user-extra", "cache-dir", "client-certificate", "client-key", "cluster",
		"context", "kubeconfig", "password",
		"request-timeout", "s", "server", "tls-server-name", "user", "username",
	}, false, noAPI},
	{[]string{"disable-compression", "insecure-skip-tls-verify"}, true, noAPI},
}

// formerValue is a flag.Value that records that a former flag was given.
type formerValue struct {
	name  string
	flag  formerFlag
	given map[string]string
}

// String returns the default, which is empty.
func (v formerValue) String() string { return "" }

// Set accepts any value.
func (v formerValue) Set(value string) error {
	v.given[v.name] = value
	return nil
}

// IsBoolFlag tells package flag that a boolean flag needs no value on the command line.
func (v formerValue) IsBoolFlag() bool { return v.flag.isBool }

// acceptFormer defines the former flags in a flag set. When the command line is parsed, the former flags in it are
// added to the returned map, with their values.
func acceptFormer(fs *flag.FlagSet) (given map[string]string) {
	given = map[string]string{}
	for _, f := range formerFlags {
		for _, name := range f.names {
			fs.Var(formerValue{name, f, given}, name, "accepted for compatibility: "+f.instead)
		}
	}
	return given
}

// translateFormer applies the former flags that have an equivalent, and adds a warning for each that it ignores.
func (o *options) translateFormer(given map[string]string) error {
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
				o.warnings = append(o.warnings, fmt.Sprintf("flag %s is ignored: %s", cli.Dashed(name), f.instead))
			}
		}
	}
	return nil
}

// findDiscovery replaces the value k8s of --config by the address of config discovery: the value of
// STUNNER_CONFIG_ORIGIN, which the operator sets in its pods, or else an address in a former flag or variable. It
// returns the name of the former flag that contained the address, or "".
func (o *options) findDiscovery(given map[string]string) (used string, err error) {
	origin, from := o.env("STUNNER_CONFIG_ORIGIN"), "STUNNER_CONFIG_ORIGIN"
	if origin == "" || origin == originKubernetes {
		origin, from = given["cds-server-address"], "--cds-server-address"
		used = "cds-server-address"
		if origin == "" {
			origin, from, used = o.env("CDS_SERVER_ADDR"), "CDS_SERVER_ADDR", ""
		}
		if origin == "" {
			return "", fmt.Errorf("--config %s: config discovery is not looked for through the Kubernetes API: %s",
				originKubernetes, useOrigin)
		}
		if origin, err = withPort(origin, given["cds-server-port"]); err != nil {
			return "", err
		}
	}
	o.config = origin
	o.warnings = append(o.warnings,
		fmt.Sprintf("flag --config %s: the config comes from %s, which %s names", originKubernetes, origin, from))
	return used, nil
}

// withPort adds a port to an address without a port. If port is empty, it adds the default port of config discovery. It
// does not change a URL.
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
