package main

import (
	"errors"
	"strconv"
	"strings"

	"github.com/stunner-gateway/stunner/services/api/cli"
)

// formerPrefix is the prefix of the environment variables of the existing operator.
const formerPrefix = "STUNNER_GATEWAY_OPERATOR_"

const useLog = "use --log and --log-format"

// formerSettings are all flags and environment variables of the existing operator that this one does not have. A
// Deployment of the existing operator cannot contain other flags, because its pods would not have started.
var formerSettings = []cli.Former{
	{Flags: []string{"config-discovery-address"}, Flag: "discovery-address"},
	{Flags: []string{"health-probe-bind-address"}, Flag: "health-address", Convert: probeAddress},
	{Env: []string{formerPrefix + "ADDRESS"}, Flag: "address"},
	{Env: []string{formerPrefix + "CONTROLLER_NAME"}, Flag: "controller-name"},
	{Flags: []string{"zap-log-level"}, Flag: "log", Convert: zapLevel},
	{Flags: []string{"zap-encoder"}, Flag: "log-format", Convert: zapEncoder},
	{Flags: []string{"zap-stacktrace-level", "zap-time-encoding"}, Instead: useLog},
	{Flags: []string{"zap-devel"}, IsBool: true, Instead: useLog},
	{
		Flags: []string{"dataplane-mode"}, Env: []string{formerPrefix + "DATAPLANE_MODE"}, Convert: managedMode,
		Instead: "managed is the only mode",
	},
	{
		Flags: []string{"leader-elect"}, IsBool: true, Convert: unlessTrue,
		Instead: "in a cluster a leader is always elected",
	},
	{Flags: []string{"metrics-bind-address"}, Instead: "use --health-address, which serves /metrics too"},
	{Flags: []string{"throttle-timeout"}, Instead: "the operator limits the rate of translations itself"},
	{
		Flags: []string{"pprof-bind-address"}, Env: []string{formerPrefix + "PPROF_BIND_ADDRESS"},
		Instead: "the operator serves no profiles",
	},
	{
		Flags: []string{"disable-endpontslice-controller"}, IsBool: true,
		Instead: "the operator always reads EndpointSlices",
	},
	{
		Flags: []string{"enable-finalizer"}, IsBool: true,
		Instead: "statuses and objects are kept when the operator stops",
	},
	{Env: []string{formerPrefix + "LABEL_FILTER"}, Instead: "the labels that deployment tools set are never copied"},
	{Env: []string{"CUSTOMER_KEY"}, Instead: "all features are enabled"},
}

// probeAddress converts --health-probe-bind-address. It ignores the value 0, which disabled the probes, because this
// operator always serves them.
func probeAddress(value string) (string, error) {
	if value == "0" {
		return "", nil
	}
	return value, nil
}

// zapLevel converts --zap-log-level: a name, or a verbosity of which 1 means debug.
func zapLevel(value string) (string, error) {
	names := map[string]string{
		"debug": "DEBUG", "info": "INFO", "warn": "WARN", "error": "ERROR", "panic": "ERROR", "1": "DEBUG",
	}
	level := names[strings.ToLower(value)]
	if n, err := strconv.Atoi(value); err == nil && n > 1 {
		level = "TRACE"
	}
	if level == "" {
		return "", errors.New("is unknown: use --log")
	}
	return "all:" + level, nil
}

// zapEncoder converts --zap-encoder.
func zapEncoder(value string) (string, error) {
	if value == "console" {
		return "text", nil
	}
	return value, nil
}

// managedMode rejects every value of --dataplane-mode except managed, because this operator creates dataplanes
// regardless of the mode of the existing operator.
func managedMode(value string) (string, error) {
	if value != "managed" {
		return "", errors.New("the operator would create dataplanes all the same: use managed, and the annotation " +
			"stunner.l7mp.io/disable-managed-dataplane on Gateways with dataplanes of your own")
	}
	return "", nil
}

// unlessTrue drops the value true of --leader-elect without a warning, because a leader is always elected.
func unlessTrue(value string) (string, error) {
	if enabled, err := strconv.ParseBool(value); err == nil && enabled {
		return "", nil
	}
	return value, nil
}
