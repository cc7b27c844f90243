package main

import (
	"strconv"

	"github.com/stunner-gateway/stunner/services/api/cli"
)

const useOrigin = "use --config, or STUNNER_CONFIG_ORIGIN"

// formerSettings returns all flags and environment variables of the existing auth service that this one does not have.
func formerSettings(f *cli.Flags, getenv func(string) string) []cli.Former {
	address := func(value string) (string, error) {
		return cli.WithPort(value, f.TakeFormer("cds-server-port", "CDS_SERVER_PORT", getenv))
	}
	return append([]cli.Former{
		{Flags: []string{"v", "verbose"}, IsBool: true, Flag: "log-level", Convert: debugLevel},
		{Flags: []string{"log"}, Flag: "log-level"},
		{Flags: []string{"cds-server-address"}, Env: []string{"CDS_SERVER_ADDR"}, Flag: "config", Convert: address},
		{Flags: []string{"cds-server-port"}, Env: []string{"CDS_SERVER_PORT"}, Instead: useOrigin},
		{Flags: []string{"cds-server-namespace"}, Env: []string{"CDS_SERVER_NAMESPACE"}, Instead: useOrigin},
		{Flags: []string{"n", "namespace"}, Instead: "use --gateways"},
	}, cli.KubectlFlags...)
}

// debugLevel converts a value of --verbose to a log level; empty means the default.
func debugLevel(value string) (string, error) {
	if verbose, err := strconv.ParseBool(value); err != nil || !verbose {
		return "", err
	}
	return "all:DEBUG", nil
}
