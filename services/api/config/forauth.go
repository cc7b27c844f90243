package config

import "github.com/stunner-gateway/stunner/services/api/credential"

// KeyWithheld stands in the place of certificates and private keys in the form of a config that ForAuth returns. It is a placeholder: readers that
// check configs accept it there, and a dataplane refuses the config, because the variable is not set.
const KeyWithheld = "$STUNNER_KEY_WITHHELD"

// ForAuth returns what an auth service needs of a config: the name of the Gateway, what signs credentials, and where clients reach the listeners.
// Certificates and their private keys, routes, clusters and settings of the process are left out. The result is a valid config if c is one.
func (c Config) ForAuth() Config {
	v := Config{
		Version: c.Version,
		Admin:   Admin{Name: c.Admin.Name},
		Auth:    Auth{Type: c.Auth.Type, Realm: c.Auth.Realm, Credentials: c.Auth.signing(), Lifetime: c.Auth.Lifetime},
	}
	for _, l := range c.Listeners {
		next := Listener{Name: l.Name, Protocol: l.Protocol, PublicAddress: l.PublicAddress, PublicPort: l.PublicPort, Port: l.Port}
		if l.Protocol.canonical().Secure() {
			next.Cert, next.Key = KeyWithheld, KeyWithheld
		}
		v.Listeners = append(v.Listeners, next)
	}
	v.Default()
	return v
}

// signing returns what [credential.Authority.Mint] uses: the shared secret, or else the static pair.
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
