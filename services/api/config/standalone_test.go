package config_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// A file for a process without an operator in the form that existing installations have: each field is a placeholder,
// and numbers are not in quotes.
const former = `version: v1alpha1
admin: {name: $STUNNER_NAME, loglevel: $STUNNER_LOGLEVEL}
auth:
  type: $STUNNER_AUTH_TYPE
  realm: $STUNNER_REALM
  credentials: {username: $STUNNER_USERNAME, password: "${STUNNER_PASSWORD}", secret: $STUNNER_SHARED_SECRET}
listeners:
- name: udp
  protocol: udp
  address: $STUNNER_ADDR
  port: $STUNNER_PORT
  public_address: $STUNNER_PUBLIC_ADDR
  public_port: $STUNNER_PUBLIC_PORT
  min_relay_port: $STUNNER_MIN_PORT
  max_relay_port: $STUNNER_MAX_PORT
  routes: [media]
clusters:
- {name: media, endpoints: [10.0.0.0/8]}
`

// The credentials in a file may be the variables of a standalone installation. Public address and port are optional.
func TestContractStandaloneFile(t *testing.T) {
	const literal = "a $STUNNER_PASSWORD"
	full := map[string]string{
		"STUNNER_NAME": "edge", "STUNNER_LOGLEVEL": "all:WARN", "STUNNER_AUTH_TYPE": "longterm",
		"STUNNER_REALM": "calls.example.org", "STUNNER_USERNAME": "ann", "STUNNER_PASSWORD": literal,
		"STUNNER_SHARED_SECRET": "s3cret", "STUNNER_ADDR": "192.0.2.7", "STUNNER_PORT": "5000",
		"STUNNER_PUBLIC_ADDR": "203.0.113.7", "STUNNER_PUBLIC_PORT": "6000",
	}
	const public = " 203.0.113.7:6000"
	for name, tc := range map[string]struct {
		changed map[string]string
		want    string // type, credentials and public address, or the error
	}{
		"ephemeral": {nil, "ephemeral ann/" + literal + "/s3cret" + public},
		"ephemeral without user name and password": {
			map[string]string{"STUNNER_USERNAME": "", "STUNNER_PASSWORD": ""}, "ephemeral //s3cret" + public,
		},
		"static without shared secret": {
			map[string]string{"STUNNER_AUTH_TYPE": "plaintext", "STUNNER_SHARED_SECRET": ""},
			"static ann/" + literal + "/" + public,
		},
		"without a public address": {
			map[string]string{"STUNNER_PUBLIC_ADDR": "", "STUNNER_PUBLIC_PORT": ""},
			"ephemeral ann/" + literal + "/s3cret :0",
		},
		"no shared secret": {
			map[string]string{"STUNNER_SHARED_SECRET": ""},
			`auth.credentials.secret: "STUNNER_SHARED_SECRET" is not set: set the variable`,
		},
		"no password": {
			map[string]string{"STUNNER_AUTH_TYPE": "static", "STUNNER_PASSWORD": ""},
			`auth.credentials.password: "STUNNER_PASSWORD" is not set: set the variable`,
		},
		"no user name": {
			map[string]string{"STUNNER_AUTH_TYPE": "", "STUNNER_USERNAME": ""},
			`auth.credentials.username: "STUNNER_USERNAME" is not set: set the variable`,
		},
		"no port": {
			map[string]string{"STUNNER_PORT": ""}, `listeners[0].port: "STUNNER_PORT" is not set: set the variable`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			env := maps.Clone(full)
			maps.Copy(env, tc.changed)
			lookup := func(name string) string { return env[name] }
			c, unknown, err := config.ParseWith([]byte(former), lookup)
			if err == nil {
				c, err = c.Expand(lookup)
			}
			if err != nil || len(unknown) > 0 {
				if !strings.Contains(fmt.Sprint(err), tc.want) {
					t.Errorf("error %v, unknown fields %q, want %q", err, unknown, tc.want)
				}
				return
			}
			l, credentials := c.Listeners[0], c.Auth.Credentials
			got := fmt.Sprintf("%s %s/%s/%s %s:%d", c.Auth.Type, string(credentials["username"]),
				string(credentials["password"]), string(credentials["secret"]), l.PublicAddress, l.PublicPort)
			if got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

// A config from the network must not read more of the environment than Expand does: its credentials are literal.
func TestCredentialsOfReceivedConfigsAreLiteral(t *testing.T) {
	const document = `{"version":"v1","auth":{"type":"static",
		"credentials":{"username":"$STUNNER_USERNAME","password":"$STUNNER_PASSWORD"}}}`
	c, err := parse(t, document).Expand(func(name string) string {
		t.Errorf("asked for %s", name)
		return "value"
	})
	if err != nil || c.Auth.Credentials[config.KeyUsername] != "$STUNNER_USERNAME" ||
		c.Auth.Credentials[config.KeyPassword] != "$STUNNER_PASSWORD" {
		t.Errorf("%v: credentials were replaced", err)
	}
}

// Only a credential that consists of one known variable is replaced.
func TestCredentialsWithDollarSigns(t *testing.T) {
	for _, password := range []string{
		"$STUNNER_PASSWORD$", "x$STUNNER_PASSWORD", "$STUNNER_REALM", "$STUNNER_TOKEN", "$PASSWORD", "$$", "$STUNNER_",
	} {
		c, _, err := config.ParseWith(
			[]byte(`{"version":"v1","auth":{"credentials":{"username":"u","password":"`+password+`"}}}`),
			func(string) string { return "value" },
		)
		if got := string(c.Auth.Credentials[config.KeyPassword]); err != nil || got != password {
			t.Errorf("%s became %s, %v", password, got, err)
		}
	}
}
