package config

import (
	"slices"
	"strings"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// credentialVariables are the variables that may be the value of a credential in a file. Every other dollar sign in a
// credential is literal, because a password may contain one.
var credentialVariables = []string{"STUNNER_USERNAME", "STUNNER_PASSWORD", "STUNNER_SHARED_SECRET"}

// credentialKeys are the credentials that an authentication type needs.
var credentialKeys = map[AuthType][]string{AuthStatic: {KeyUsername, KeyPassword}, AuthEphemeral: {KeySecret}}

// credentials replaces the credentials that consist of one of the credentialVariables. It drops a credential whose
// variable is not set, unless the authentication type needs it.
func (in *placeholders) credentials(a Auth) map[string]credential.Secret {
	if in.lookup == nil {
		return a.Credentials
	}
	if name, ok := variableName(string(a.Type)); ok {
		a.Type = AuthType(in.lookup(name))
	}
	needed := credentialKeys[canonical(authTypes, a.Type, AuthStatic)]
	for key, value := range a.Credentials {
		name, ok := variableName(string(value))
		if !ok || !slices.Contains(credentialVariables, name) {
			continue
		}
		if a.Credentials[key] = credential.Secret(in.lookup(name)); a.Credentials[key] != "" {
			continue
		}
		delete(a.Credentials, key)
		if slices.Contains(needed, key) {
			in.unset("auth.credentials."+key, name)
		}
	}
	return a.Credentials
}

// dropUnset removes the placeholders STUNNER_PUBLIC_ADDR and STUNNER_PUBLIC_PORT of a listener if the variables are not
// set, because a standalone process does not need a public address.
func (in *placeholders) dropUnset(l *listenerDocument) {
	unset := func(text, variable string) bool {
		name, ok := variableName(text)
		return in.lookup != nil && ok && name == variable && in.lookup(name) == ""
	}
	if unset(l.PublicAddress, "STUNNER_PUBLIC_ADDR") {
		l.PublicAddress = ""
	}
	if unset(l.PublicPort.placeholder, "STUNNER_PUBLIC_PORT") {
		l.PublicPort = number[int]{}
	}
}

// variableName returns the name of the variable if text consists of one placeholder.
func variableName(text string) (name string, ok bool) {
	return strings.Trim(text, "${}"), isVariable(text)
}
