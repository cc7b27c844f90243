package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// Change is a difference between two configs. Old is empty for an added value, New for a removed one.
type Change struct{ Field, Old, New string }

// String returns the change in one line.
func (c Change) String() string { return fmt.Sprintf("%s: %q -> %q", c.Field, c.Old, c.New) }

// Diff lists the differences between two configs in the order of fields, for logs and statuses. Secrets are redacted,
// and long lists are shortened. Listeners and clusters are matched by name. Configs with the same revision have no
// differences.
func Diff(old, next Config) []Change {
	old.Default()
	next.Default()
	var d differences
	d.admin(old.Admin, next.Admin)
	d.auth(old.Auth, next.Auth)
	d.listeners(old.Listeners, next.Listeners)
	d.clusters(old.Clusters, next.Clusters)
	return d.changes
}

type differences struct{ changes []Change }

func (d *differences) text(field, old, next string) {
	if old != next {
		d.changes = append(d.changes, Change{field, old, next})
	}
}

func (d *differences) number(field string, old, next int) {
	d.text(field, strconv.Itoa(old), strconv.Itoa(next))
}

// secret adds a changed secret, without its value.
func (d *differences) secret(field string, old, next credential.Secret) {
	if old != next {
		d.changes = append(d.changes, Change{field, old.String(), next.String()})
	}
}

// list adds a change with the values that are only in old or only in next.
func (d *differences) list(field string, old, next []string) {
	if slices.Equal(old, next) {
		return
	}
	removed, added := without(old, next), without(next, old)
	if len(removed)+len(added) > 0 {
		d.changes = append(d.changes, Change{field, shorten(removed), shorten(added)})
	}
}

func (d *differences) admin(old, next Admin) {
	d.text("admin.name", old.Name, next.Name)
	d.text("admin.loglevel", old.LogLevel, next.LogLevel)
	d.text("admin.metrics_endpoint", old.MetricsEndpoint, next.MetricsEndpoint)
	d.text("admin.healthcheck_endpoint", *old.HealthcheckEndpoint, *next.HealthcheckEndpoint)
	d.number("admin.user_quota", old.UserQuota, next.UserQuota)
	d.number("admin.source_quota", old.SourceQuota, next.SourceQuota)
	d.number("admin.session_byte_rate", int(old.SessionByteRate), int(next.SessionByteRate))
	d.number("admin.user_byte_rate", int(old.UserByteRate), int(next.UserByteRate))
	d.text("admin.offload_engine", old.OffloadEngine, next.OffloadEngine)
	d.list("admin.offload_interfaces", old.OffloadInterfaces, next.OffloadInterfaces)
	d.text("admin.client_addresses", strconv.FormatBool(old.ClientAddresses), strconv.FormatBool(next.ClientAddresses))
	d.secret("admin.license_config", licenseText(old.License), licenseText(next.License))
}

func licenseText(l *License) credential.Secret {
	if l == nil {
		return ""
	}
	return credential.Secret("license " + l.Key + " " + l.HMAC)
}

func (d *differences) auth(old, next Auth) {
	d.text("auth.type", string(old.Type), string(next.Type))
	d.text("auth.realm", old.Realm, next.Realm)
	d.number("auth.lifetime", int(old.Lifetime), int(next.Lifetime))
	d.number("auth.session_grace", int(old.SessionGrace), int(next.SessionGrace))
	d.number("auth.credential_overlap", int(old.Overlap().Seconds()), int(next.Overlap().Seconds()))
	keys := slices.AppendSeq(slices.Collect(maps.Keys(old.Credentials)), maps.Keys(next.Credentials))
	for _, key := range set(keys) {
		d.secret("auth.credentials."+key, old.Credentials[key], next.Credentials[key])
	}
	was, is := cmp.Or(old.Former, &FormerSecret{}), cmp.Or(next.Former, &FormerSecret{})
	d.secret("auth.former.secret", was.Secret, is.Secret)
	d.text("auth.former.until", instant(was.Until), instant(is.Until))
	d.revocations(old.Revocations, next.Revocations)
}

// revocations adds the number of revocations that only one of the lists has. Users are not shown.
func (d *differences) revocations(old, next []credential.Revocation) {
	count := map[credential.Revocation]int{}
	for _, r := range next {
		count[r]++
	}
	removed, added := 0, len(next)
	for _, r := range old {
		if count[r] > 0 {
			added--
		} else {
			removed++
		}
	}
	if removed+added > 0 {
		d.text("auth.revocations", fmt.Sprintf("%d removed", removed), fmt.Sprintf("%d added", added))
	}
}

// instant formats a time in seconds since 1970; "" for 0.
func instant(seconds int64) string {
	if seconds == 0 {
		return ""
	}
	return time.Unix(seconds, 0).UTC().Format(time.RFC3339)
}

func (d *differences) listeners(old, next []Listener) {
	name := func(l Listener) string { return l.Name }
	text := func(l Listener) string { return fmt.Sprintf("%s port %d", l.Protocol, l.Port) }
	pairs(d, "listeners", old, next, name, text, func(field string, old, next Listener) {
		d.text(field+"protocol", string(old.Protocol), string(next.Protocol))
		d.text(field+"public_address", old.PublicAddress, next.PublicAddress)
		d.text(field+"public_addresses", strings.Join(old.PublicAddresses, ", "), strings.Join(next.PublicAddresses, ", "))
		d.text(field+"public_host", old.PublicHost, next.PublicHost)
		d.number(field+"public_port", old.PublicPort, next.PublicPort)
		d.list(field+"service_addresses", old.ServiceAddresses, next.ServiceAddresses)
		d.text(field+"tls_at_load_balancer", strconv.FormatBool(old.TLSAtBalancer), strconv.FormatBool(next.TLSAtBalancer))
		d.list(field+"proxy_protocol", old.ProxyProtocol, next.ProxyProtocol)
		d.text(field+"address", old.Address, next.Address)
		d.number(field+"port", old.Port, next.Port)
		d.text(field+"cert", fingerprint(old.Cert), fingerprint(next.Cert))
		d.secret(field+"key", old.Key, next.Key)
		d.certificates(field+"certificates", old.Certificates, next.Certificates)
		d.list(field+"routes", old.Routes, next.Routes)
	})
	if was, is := names(old), names(next); slices.Equal(set(was), set(is)) {
		// the auth service returns the listeners in this order
		d.text("listeners", strings.Join(was, ", "), strings.Join(is, ", "))
	}
}

// certificates compares the certificates by index, because the first certificate that matches a client is used.
func (d *differences) certificates(field string, old, next []Certificate) {
	for i := range max(len(old), len(next)) {
		var was, is Certificate
		if i < len(old) {
			was = old[i]
		}
		if i < len(next) {
			is = next[i]
		}
		d.text(index(field, i, "cert"), fingerprint(was.Cert), fingerprint(is.Cert))
		d.secret(index(field, i, "key"), was.Key, is.Key)
	}
}

func (d *differences) clusters(old, next []Cluster) {
	name := func(c Cluster) string { return c.Name }
	text := func(c Cluster) string { return fmt.Sprintf("%s %s", c.Type, shorten(c.Endpoints)) }
	pairs(d, "clusters", old, next, name, text, func(field string, old, next Cluster) {
		d.text(field+"type", string(old.Type), string(next.Type))
		d.text(field+"protocol", old.Protocol, next.Protocol)
		d.list(field+"endpoints", old.Endpoints, next.Endpoints)
		d.list(field+"except", old.Except, next.Except)
	})
}

// pairs matches the entries of two lists by name. It calls compare for entries that are in both lists, and adds a
// change for any other entry.
func pairs[T any](
	d *differences, list string, old, next []T, name, text func(T) string, compare func(field string, old, next T),
) {
	before := map[string]T{}
	for _, entry := range old {
		before[name(entry)] = entry
	}
	for _, entry := range next {
		field := list + "[" + name(entry) + "]"
		was, both := before[name(entry)]
		if !both {
			d.text(field, "", text(entry))
			continue
		}
		compare(field+".", was, entry)
		delete(before, name(entry))
	}
	for _, entry := range old {
		if _, gone := before[name(entry)]; gone {
			d.text(list+"["+name(entry)+"]", text(entry), "")
			delete(before, name(entry))
		}
	}
}

func names(listeners []Listener) (all []string) {
	for _, l := range listeners {
		all = append(all, l.Name)
	}
	return all
}

// without returns the entries of a that are not in b, sorted.
func without(a, b []string) (only []string) {
	b = set(b)
	for _, s := range set(a) {
		for len(b) > 0 && b[0] < s {
			b = b[1:]
		}
		if len(b) == 0 || b[0] != s {
			only = append(only, s)
		}
	}
	return only
}

// shorten joins the first values of a list, and adds the number of the others.
func shorten(values []string) string {
	const most = 5
	if len(values) <= most {
		return strings.Join(values, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(values[:most], ", "), len(values)-most)
}

// fingerprint returns a short hash of a certificate.
func fingerprint(cert string) string {
	if cert == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(cert))
	return "sha256:" + hex.EncodeToString(sum[:6])
}
