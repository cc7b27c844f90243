package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// Credentials of the zero config. They give no access, because the config has no listener.
const (
	zeroUsername = "dummy-username"
	zeroPassword = "dummy-password"
)

// Canonical returns the canonical JSON form of a config. Configs that differ only in aliases, explicit defaults, or the
// order of sets have the same canonical form. The order of listeners is kept, because clients receive them in that
// order.
func (c Config) Canonical() []byte {
	c.Default()
	slices.SortStableFunc(c.Clusters, byClusterName)
	for i := range c.Clusters {
		c.Clusters[i].Endpoints = set(c.Clusters[i].Endpoints)
		c.Clusters[i].Except = set(c.Clusters[i].Except)
	}
	return encode(c)
}

// Revision returns a hash of the canonical form.
func (c Config) Revision() string { return RevisionOf(c.Canonical()) }

// RevisionOf returns the revision of a config from its canonical form.
func RevisionOf(canonical []byte) string {
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:6])
}

// Clone returns a deep copy.
func (c Config) Clone() Config {
	c.Admin.HealthcheckEndpoint = clonePointer(c.Admin.HealthcheckEndpoint)
	c.Admin.License = clonePointer(c.Admin.License)
	c.Admin.OffloadInterfaces = slices.Clone(c.Admin.OffloadInterfaces)
	c.Auth.Credentials = maps.Clone(c.Auth.Credentials)
	c.Auth.CredentialOverlap = clonePointer(c.Auth.CredentialOverlap)
	c.Auth.Former = clonePointer(c.Auth.Former)
	c.Auth.Revocations = slices.Clone(c.Auth.Revocations)
	c.Listeners = slices.Clone(c.Listeners)
	for i := range c.Listeners {
		c.Listeners[i].Routes = slices.Clone(c.Listeners[i].Routes)
		c.Listeners[i].PublicAddresses = slices.Clone(c.Listeners[i].PublicAddresses)
		c.Listeners[i].ServiceAddresses = slices.Clone(c.Listeners[i].ServiceAddresses)
		c.Listeners[i].ProxyProtocol = slices.Clone(c.Listeners[i].ProxyProtocol)
		c.Listeners[i].Certificates = slices.Clone(c.Listeners[i].Certificates)
	}
	c.Clusters = slices.Clone(c.Clusters)
	for i := range c.Clusters {
		c.Clusters[i].Endpoints = slices.Clone(c.Clusters[i].Endpoints)
		c.Clusters[i].Except = slices.Clone(c.Clusters[i].Except)
	}
	return c
}

func clonePointer[T any](p *T) *T {
	if p == nil {
		return nil
	}
	return new(*p)
}

// Redacted returns a copy for logs and statuses. It has no revocations, because they name users. credential.Redacted
// replaces every secret, and the user name, which may come from a Secret. The copy can be parsed but is not valid, so
// that the replacement cannot become a password.
func (c Config) Redacted() Config {
	c = c.Clone()
	for key, value := range c.Auth.Credentials {
		if value != "" {
			c.Auth.Credentials[key] = credential.Redacted
		}
	}
	if c.Auth.Former != nil {
		c.Auth.Former.Secret = credential.Redacted
	}
	c.Auth.Revocations = nil
	redact := func(key *credential.Secret) {
		if *key != "" {
			*key = credential.Redacted
		}
	}
	for i := range c.Listeners {
		redact(&c.Listeners[i].Key)
		for j := range c.Listeners[i].Certificates {
			redact(&c.Listeners[i].Certificates[j].Key)
		}
	}
	if c.Admin.License != nil {
		c.Admin.License = &License{}
	}
	return c
}

// Withheld returns a copy without credentials, revocations and private keys, for unauthorized readers. It is not valid.
func (c Config) Withheld() Config {
	c = c.Clone()
	c.Auth.Credentials, c.Auth.Former, c.Auth.Revocations = nil, nil, nil
	for i := range c.Listeners {
		c.Listeners[i].Key = ""
		for j := range c.Listeners[i].Certificates {
			c.Listeners[i].Certificates[j].Key = ""
		}
	}
	c.Admin.License = nil
	return c
}

// LogValue returns only name and revision, because the content has secrets.
func (c Config) LogValue() slog.Value {
	return slog.GroupValue(slog.String("name", c.Admin.Name), slog.String("revision", c.Revision()))
}

// Authority returns the authority that verifies credentials. For AuthNone it is the zero Authority, which accepts no
// credential. A secret with the value credential.Redacted is ignored, because that text is public.
func (a Auth) Authority() credential.Authority {
	authority := credential.Authority{Realm: a.Realm}
	username, password, secret := a.Credentials[KeyUsername], a.Credentials[KeyPassword], a.Credentials[KeySecret]
	switch canonical(authTypes, a.Type, AuthStatic) {
	case AuthStatic:
		secret = ""
	case AuthEphemeral:
	default:
		return credential.Authority{}
	}
	if username != "" && password != "" && password != credential.Redacted {
		authority.Username, authority.Password = string(username), password
	}
	if secret != credential.Redacted {
		authority.SharedSecret = secret
	}
	return authority
}

// FormerAuthority returns the authority of Former, and the time until which it is valid. Without Former it returns the
// zero Authority, which accepts no credential.
func (a Auth) FormerAuthority() (former credential.Authority, until time.Time) {
	if a.Former == nil || a.Former.Secret == credential.Redacted ||
		canonical(authTypes, a.Type, AuthStatic) != AuthEphemeral {
		return former, until
	}
	return credential.Authority{Realm: a.Realm, SharedSecret: a.Former.Secret}, time.Unix(a.Former.Until, 0)
}

// Zero returns the config that means "no config": it has no listeners, no clusters and dummy credentials. A discovery
// server sends it to delete the config with the name id.
func Zero(id string) Config {
	c := Config{
		Admin: Admin{Name: id},
		Auth: Auth{Type: AuthStatic, Credentials: map[string]credential.Secret{
			KeyUsername: zeroUsername,
			KeyPassword: zeroPassword,
		}},
	}
	c.Default()
	return c
}

// IsZero reports whether c equals the zero config with the same name. Log level and license do not matter.
func (c Config) IsZero() bool {
	if len(c.Listeners) > 0 || len(c.Clusters) > 0 {
		return false
	}
	c.Admin.LogLevel, c.Admin.License = "", nil
	return bytes.Equal(c.Canonical(), Zero(c.Admin.Name).Canonical())
}
