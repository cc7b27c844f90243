package config

import "github.com/stunner-gateway/stunner/services/api/credential"

// KeyWithheld replaces certificates and private keys in the configs of ForAuth. It has the form of a placeholder, so
// Validate accepts it. A dataplane that receives such a config rejects it, because the variable is not set.
const KeyWithheld = "$STUNNER_KEY_WITHHELD"

// ForAuth returns the part of a config that an auth service needs: the name of the Gateway, the signing credentials,
// the revocations, and the public addresses of the listeners. It leaves out certificates, private keys, routes,
// clusters and settings of the process. If c is valid, the result is valid.
func (c Config) ForAuth() Config {
	v := Config{
		Version: c.Version,
		Admin:   Admin{Name: c.Admin.Name},
		Auth: Auth{Type: c.Auth.Type, Realm: c.Auth.Realm, Credentials: c.Auth.signing(), Lifetime: c.Auth.Lifetime,
			Revocations: c.Auth.Revocations},
	}
	for _, l := range c.Listeners {
		next := Listener{Name: l.Name, Protocol: l.Protocol, PublicAddress: l.PublicAddress,
			PublicAddresses: l.PublicAddresses, PublicHost: l.PublicHost, PublicPort: l.PublicPort, Port: l.Port,
			TLSAtBalancer: l.TLSAtBalancer}
		if l.Protocol.canonical().Secure() {
			next.Cert, next.Key = KeyWithheld, KeyWithheld
		}
		v.Listeners = append(v.Listeners, next)
	}
	v.Default()
	return v
}

// signing returns the credentials that [credential.Authority.Mint] needs: the shared secret, or else the static pair.
func (a Auth) signing() map[string]credential.Secret {
	keys := []string{KeyUsername, KeyPassword}
	switch canonical(authTypes, a.Type, AuthStatic) {
	case AuthNone:
		return nil
	case AuthEphemeral:
		keys = []string{KeySecret}
	}
	signing := make(map[string]credential.Secret, len(keys))
	for _, key := range keys {
		if secret, there := a.Credentials[key]; there {
			signing[key] = secret
		}
	}
	return signing
}
