package config

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// MaxHostNames is the maximum number of host names in all clusters of a config, because each is resolved every few
// seconds.
const MaxHostNames = 10_000

// MaxRevocations is the maximum number of revocations of a config.
const MaxRevocations = 10_000

// Bounds of a config. They are far above any useful config, and low enough that a malicious document can be checked
// quickly.
const (
	maxListeners    = 1_000
	maxClusters     = 10_000
	maxEndpoints    = 100_000
	maxNames        = MaxHostNames
	maxRoutes       = maxClusters
	maxCertificates = 64 // the limit of the Gateway API
	maxName         = 1_024
	maxText         = 4_096
	maxRealm        = 127 // characters: RFC 8489 §14.9
	maxUsername     = 508 // bytes: RFC 8489 §14.3
	maxFindings     = 100
)

// FieldError is an error of one field of a config.
type FieldError struct {
	// Field is the path of the field, in the spelling of the document.
	Field string
	// Value is the wrong value; it is empty if missing, too long or secret.
	Value string
	// Problem describes the error.
	Problem string
	// Remedy describes the correction.
	Remedy string
}

// Error returns field, value, problem and remedy in one line.
func (e *FieldError) Error() string {
	value := e.Value
	if _, err := strconv.Atoi(value); err != nil && value != "" {
		value = strconv.Quote(value)
	}
	if value != "" {
		value += " "
	}
	return e.Field + ": " + value + e.Problem + ": " + e.Remedy
}

// findings collects the errors of a config.
type findings struct {
	errs []error
	// lenient makes checks skip values with placeholders, which are checked after Expand has replaced them.
	lenient bool
}

// add adds an error. It truncates long values and long lists of errors, because errors are shown in conditions and
// logs.
func (f *findings) add(field, value, problem, remedy string) {
	const most = 100
	switch {
	case f.lenient && variable.MatchString(value):
		return
	case len(f.errs) > maxFindings:
		return
	case len(f.errs) == maxFindings:
		field, value, problem, remedy = "config", "", "has more problems", "correct these first"
	}
	if len(value) > most {
		value = strings.ToValidUTF8(value[:most], "") + "…"
	}
	f.errs = append(f.errs, &FieldError{Field: field, Value: value, Problem: problem, Remedy: remedy})
}

// index returns the path list[i].field.
func index(list string, i int, field string) string {
	return list + "[" + strconv.Itoa(i) + "]." + field
}

// Validate returns all errors of a config with defaults, as joined *FieldError values. It skips values with
// placeholders; Expand validates them. A route to a missing cluster is not an error; it allows no peer.
func (c Config) Validate() error { return c.validate(false) }

func (c Config) validate(expanded bool) error {
	f := findings{lenient: !expanded}
	if c.Version != Version {
		f.add("version", c.Version, "is not supported", "use "+Version)
	}
	f.admin(c.Admin)
	f.auth(c.Auth)
	f.listeners(c.Listeners)
	f.clusters(c.Clusters)
	return errors.Join(f.errs...)
}

// bound checks that a number is not negative. zero describes the meaning of 0, for the remedy.
func (f *findings) bound(field string, n int64, zero string) {
	if n < 0 {
		f.add(field, strconv.FormatInt(n, 10), "is negative", "use 0 for "+zero)
	}
}

func (f *findings) admin(a Admin) {
	f.name("admin.name", a.Name)
	f.text("admin.loglevel", a.LogLevel, maxText)
	f.endpointURL("admin.metrics_endpoint", a.MetricsEndpoint)
	if a.HealthcheckEndpoint != nil {
		f.endpointURL("admin.healthcheck_endpoint", *a.HealthcheckEndpoint)
	}
	f.bound("admin.user_quota", int64(a.UserQuota), "no bound")
	f.bound("admin.source_quota", int64(a.SourceQuota), "no bound")
	f.bound("admin.session_byte_rate", a.SessionByteRate, "no bound")
	f.bound("admin.user_byte_rate", a.UserByteRate, "no bound")
	if engines[strings.ToLower(a.OffloadEngine)] != a.OffloadEngine {
		f.add("admin.offload_engine", a.OffloadEngine, "is unknown", "use None, XDP, TC or Auto")
	}
	for i, name := range a.OffloadInterfaces {
		f.name(fmt.Sprintf("admin.offload_interfaces[%d]", i), name)
	}
}

// endpointURL checks the URL of an HTTP server of the process. An empty URL is valid, and so is an address (see
// EndpointURL).
func (f *findings) endpointURL(field, value string) {
	if value == "" || f.lenient && variable.MatchString(value) {
		return
	}
	const remedy = "write http://ADDRESS:PORT/PATH"
	u, err := url.Parse(EndpointURL(value))
	switch {
	case err != nil:
		f.add(field, "", "is no URL with a valid port", remedy)
	case u.Scheme != "http" || u.Opaque != "":
		f.add(field, u.Redacted(), "is no http URL", remedy)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		f.add(field, "", "has more than address, port and path", remedy)
	case u.Port() != "" && parsePort(u.Port()) == 0:
		f.add(field, value, "has a port out of range", "use 1 to 65535")
	case u.Hostname() != "" && !isAddress(u.Hostname()) && !isHost(u.Hostname()):
		f.add(field, value, "has an unreadable address", remedy)
	}
}

func (f *findings) auth(a Auth) {
	f.realm(a.Realm)
	if a.Lifetime < 0 {
		f.add("auth.lifetime", strconv.Itoa(int(a.Lifetime)), "is negative",
			"use seconds, or 0 for the default of the auth service")
	}
	if a.SessionGrace < 0 {
		f.add("auth.session_grace", strconv.Itoa(int(a.SessionGrace)), "is negative", "use seconds, or 0 for none")
	}
	if a.CredentialOverlap != nil && *a.CredentialOverlap < 0 {
		f.add("auth.credential_overlap", strconv.Itoa(int(*a.CredentialOverlap)), "is negative",
			"use seconds, or 0 for none")
	}
	for _, key := range slices.Sorted(maps.Keys(a.Credentials)) {
		f.secret("auth.credentials."+key, a.Credentials[key])
	}
	f.former(a.Former)
	f.revocations(a.Revocations)
	switch a.Type {
	case AuthNone:
	case AuthStatic:
		f.credential(a, KeyUsername)
		f.credential(a, KeyPassword)
		if len(a.Credentials[KeyUsername]) > maxUsername {
			f.add("auth.credentials."+KeyUsername, "", "is too long", fmt.Sprintf("use at most %d bytes", maxUsername))
		}
	case AuthEphemeral:
		f.credential(a, KeySecret)
	default:
		f.add("auth.type", string(a.Type), "is unknown", "use none, static or ephemeral")
	}
}

func (f *findings) former(former *FormerSecret) {
	switch {
	case former == nil:
	case former.Secret == "" || len(former.Secret) > maxText:
		f.add("auth.former.secret", "", "is missing or too long",
			fmt.Sprintf("use 1 to %d bytes, or leave auth.former out", maxText))
	case former.Until <= 0:
		f.add("auth.former.until", strconv.FormatInt(former.Until, 10), "is no time", "use seconds since 1970")
	default:
		f.secret("auth.former.secret", former.Secret)
	}
}

func (f *findings) revocations(revocations []credential.Revocation) {
	if !f.atMost("auth.revocations", len(revocations), MaxRevocations) {
		return
	}
	for i, r := range revocations {
		if err := CheckRevocation(r); err != nil {
			f.add(index("auth.revocations", i, err.Field), err.Value, err.Problem, err.Remedy)
		}
	}
}

// CheckRevocation returns an error for a revocation that a config must not have. Its Field is a field of the
// revocation, and it does not contain the user.
func CheckRevocation(r credential.Revocation) *FieldError {
	field, subject := "user", r.User
	if r.Credential != "" {
		field, subject = "credential", r.Credential
	}
	switch {
	case (r.User == "") == (r.Credential == ""):
		return &FieldError{Field: "user", Problem: "is missing, or credential is set too", Remedy: "set one of user and credential"}
	case len(subject) > maxUsername:
		return &FieldError{Field: field, Problem: "is too long", Remedy: fmt.Sprintf("use at most %d bytes", maxUsername)}
	case !utf8.ValidString(subject):
		return &FieldError{Field: field, Problem: "is not UTF-8", Remedy: "write it as it is in credentials"}
	case r.IssuedBefore < 0:
		return &FieldError{Field: "issued_before", Value: strconv.FormatInt(r.IssuedBefore, 10), Problem: "is no time",
			Remedy: "use seconds since 1970"}
	case r.Until <= 0:
		return &FieldError{Field: "until", Value: strconv.FormatInt(r.Until, 10), Problem: "is no time",
			Remedy: "use seconds since 1970"}
	}
	return nil
}

// secret adds an error for the value credential.Redacted, which means that a secret was left out of the config.
func (f *findings) secret(field string, value credential.Secret) {
	if value == credential.Redacted {
		f.add(field, "", "is "+credential.Redacted+": the secret was left out",
			"read the config with a token that config discovery accepts, or write the secret itself")
	}
}

func (f *findings) credential(a Auth, key string) {
	field, value := "auth.credentials."+key, a.Credentials[key]
	switch {
	case value == "":
		f.add(field, "", "is missing or empty", fmt.Sprintf(
			"authentication of type %s needs it, and config discovery leaves it out for readers without a valid token", a.Type))
	case len(value) > maxText:
		f.add(field, "", "is too long", fmt.Sprintf("use at most %d bytes", maxText))
	}
}

// CheckRealm checks that a realm can be sent as a quoted-string of STUN (RFC 8489 §14.9), without quotes and escapes.
func CheckRealm(realm string) error {
	n := utf8.RuneCountInString(realm)
	if n < 1 || n > maxRealm || strings.ContainsAny(realm, `"\`) || strings.ContainsFunc(realm, unicode.IsControl) {
		return fmt.Errorf("must have 1 to %d characters and no quotes, backslashes or control characters", maxRealm)
	}
	return nil
}

func (f *findings) realm(realm string) {
	if CheckRealm(realm) != nil {
		f.add("auth.realm", realm, "is no realm",
			fmt.Sprintf("use 1 to %d characters without quotes, backslashes and control characters", maxRealm))
	}
}

// name checks an identifier.
func (f *findings) name(field, value string) {
	if value == "" {
		f.add(field, "", "is missing", "give a name")
	}
	f.text(field, value, maxName)
}

// entryName checks the identifier of a list entry. path is called only for an error, because a list may have thousands
// of entries.
func (f *findings) entryName(value string, path func() string) {
	if value == "" || len(value) > maxName || strings.ContainsFunc(value, unicode.IsControl) {
		f.name(path(), value)
	}
}

// text checks a text that is shown in logs and statuses.
func (f *findings) text(field, value string, most int) {
	switch {
	case len(value) > most:
		f.add(field, value, "is too long", fmt.Sprintf("use at most %d bytes", most))
	case strings.ContainsFunc(value, unicode.IsControl):
		f.add(field, value, "has control characters", "leave them out")
	}
}

// atMost reports whether a list is short enough to be checked, and adds an error if not.
func (f *findings) atMost(field string, n, most int) bool {
	if n > most {
		f.add(field, strconv.Itoa(n), "entries are too many", fmt.Sprintf("the limit is %d", most))
	}
	return n <= most
}

func (f *findings) clusters(clusters []Cluster) {
	if !f.atMost("clusters", len(clusters), maxClusters) {
		return
	}
	seen := map[string]int{}
	for i, c := range clusters {
		f.cluster(i, c)
		f.unique("clusters", i, c.Name, seen)
	}
	f.hostNames(clusters)
}

// cluster checks one cluster, except that its name is unique.
func (f *findings) cluster(i int, c Cluster) {
	f.entryName(c.Name, func() string { return index("clusters", i, "name") })
	if c.Protocol != "UDP" {
		f.add(index("clusters", i, "protocol"), c.Protocol, "is not supported", "use UDP")
	}
	if len(c.Endpoints) <= maxEndpoints ||
		f.atMost(index("clusters", i, "endpoints"), len(c.Endpoints), maxEndpoints) {
		f.endpoints(i, c)
	}
	if len(c.Except) <= maxEndpoints || f.atMost(index("clusters", i, "except"), len(c.Except), maxEndpoints) {
		f.except(i, c)
	}
}

// hostNames checks the number of host names in all clusters.
func (f *findings) hostNames(clusters []Cluster) {
	names := 0
	for i := range clusters {
		if clusters[i].Type == StrictDNS {
			names += len(clusters[i].Endpoints)
		}
	}
	if names > maxNames {
		f.add("clusters", strconv.Itoa(names), "host names are too many",
			fmt.Sprintf("the limit is %d, over all clusters", maxNames))
	}
}

func (f *findings) endpoints(i int, c Cluster) {
	field := func(j int) string { return fmt.Sprintf("clusters[%d].endpoints[%d]", i, j) }
	for j, endpoint := range c.Endpoints {
		switch c.Type {
		case Static:
			if _, err := ParseEndpoint(endpoint); err != nil {
				f.add(field(j), endpoint, "is no endpoint", errors.Unwrap(err).Error())
			}
		case StrictDNS:
			if !isHost(endpoint) {
				f.add(field(j), endpoint, "is no host name",
					"write a DNS name without port, or use type "+string(Static))
			}
		}
	}
	if c.Type != Static && c.Type != StrictDNS {
		f.add(index("clusters", i, "type"), string(c.Type), "is unknown", "use STATIC or STRICT_DNS")
	}
}

func (f *findings) except(i int, c Cluster) {
	for j, text := range c.Except {
		if a, err := netip.ParseAddr(text); err != nil || a.Zone() != "" {
			f.add(fmt.Sprintf("clusters[%d].except[%d]", i, j), text, "is no IP address",
				"write an address without prefix length and port")
		}
	}
}

// unique adds an error for the second use of a name.
func (f *findings) unique(list string, i int, name string, seen map[string]int) {
	if first, dup := seen[name]; dup {
		f.add(index(list, i, "name"), name, fmt.Sprintf("is the name of %s[%d] already", list, first),
			"choose another name")
		return
	}
	seen[name] = i
}

func isAddress(s string) bool {
	addr, err := netip.ParseAddr(s)
	return err == nil && addr.Zone() == ""
}
