package config

import (
	"cmp"
	"slices"
	"strings"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// The accepted spellings of field values in a config, in lower case, with the canonical value of each.
var (
	authTypes = map[string]AuthType{
		"none":   AuthNone,
		"static": AuthStatic, "plaintext": AuthStatic,
		"ephemeral": AuthEphemeral, "longterm": AuthEphemeral, "timewindowed": AuthEphemeral,
	}
	clusterTypes = map[string]ClusterType{"static": Static, "strict_dns": StrictDNS}
	engines      = map[string]string{"none": "None", "xdp": "XDP", "tc": "TC", "auto": "Auto"}
)

// canonical returns the canonical spelling of a value, or def for an empty value. It returns an unknown value
// unchanged, so that the error of Validate can name it.
func canonical[T ~string](spellings map[string]T, value, def T) T {
	if value == "" {
		return def
	}
	return cmp.Or(spellings[strings.ToLower(string(value))], value)
}

// Default sets defaults and replaces every value by its canonical spelling. It does not modify lists that c shares with
// other configs. It does not set ports: Parse sets a missing port, and a port 0 is an error.
func (c *Config) Default() {
	c.Version = cmp.Or(c.Version, Version)
	c.Admin.fill()
	c.Auth.Type = canonical(authTypes, c.Auth.Type, AuthStatic)
	c.Auth.Realm = cmp.Or(c.Auth.Realm, DefaultRealm)
	if overlap := c.Auth.CredentialOverlap; overlap != nil && *overlap == DefaultCredentialOverlap {
		c.Auth.CredentialOverlap = nil
	}
	c.Auth.Revocations = credential.MergeRevocations(c.Auth.Revocations)
	c.Listeners = slices.Clone(c.Listeners)
	for i := range c.Listeners {
		c.Listeners[i].fill()
	}
	c.Clusters = slices.Clone(c.Clusters)
	for i := range c.Clusters {
		c.Clusters[i].fill()
	}
}

func (a *Admin) fill() {
	a.Name = cmp.Or(a.Name, DefaultName)
	a.LogLevel = cmp.Or(a.LogLevel, DefaultLogLevel)
	a.HealthcheckEndpoint = cmp.Or(a.HealthcheckEndpoint, new(DefaultHealthcheck))
	a.UserQuota, a.SourceQuota = max(a.UserQuota, 0), max(a.SourceQuota, 0)
	a.SessionByteRate, a.UserByteRate = max(a.SessionByteRate, 0), max(a.UserByteRate, 0)
	a.OffloadEngine = canonical(engines, a.OffloadEngine, DefaultOffload)
	a.OffloadInterfaces = set(a.OffloadInterfaces)
}

func (l *Listener) fill() {
	l.Protocol = l.Protocol.canonical()
	l.Address = cmp.Or(l.Address, DefaultAddress)
	if strings.EqualFold(l.Address, "localhost") {
		l.Address = "127.0.0.1"
	}
	l.fillPublic()
	l.ServiceAddresses = set(l.ServiceAddresses)
	l.ProxyProtocol = set(canonicalPrefixes(l.ProxyProtocol))
	l.Routes = set(l.Routes)
}

// fillPublic makes PublicAddress the first of PublicAddresses, without duplicates. A document may have either of them.
func (l *Listener) fillPublic() {
	if len(l.PublicAddresses) == 0 {
		l.PublicAddresses = nil
		return
	}
	var all []string
	for _, address := range append([]string{l.PublicAddress}, l.PublicAddresses...) {
		if address != "" && !slices.Contains(all, address) {
			all = append(all, address)
		}
	}
	if l.PublicAddresses = all; len(all) > 0 {
		l.PublicAddress = all[0]
	}
}

func (c *Cluster) fill() {
	c.Type = canonical(clusterTypes, c.Type, Static)
	c.Protocol = strings.ToUpper(cmp.Or(c.Protocol, "UDP"))
}

// set returns the values sorted and without duplicates. It returns the given list if it is already sorted, and
// otherwise a new list.
func set(values []string) []string {
	if len(values) == 0 {
		return nil
	}
	if ascending(values) {
		return slices.Clip(values)
	}
	return slices.Compact(slices.Sorted(slices.Values(values)))
}

// ascending reports whether values are sorted and without duplicates.
func ascending(values []string) bool {
	for i := 1; i < len(values); i++ {
		if values[i-1] >= values[i] {
			return false
		}
	}
	return true
}
