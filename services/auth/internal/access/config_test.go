package access

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConfigErrorsNameTheFlag(t *testing.T) {
	full := Config{Issuer: "https://login.example.org", Audience: "turn", JWKSURL: "https://login.example.org/keys"}
	without := func(change func(*Config)) Config {
		c := full
		change(&c)
		return c
	}
	tests := map[string]struct {
		config Config
		want   string // part of the error; "" means none
	}{
		"nothing is open": {Config{}, ""},
		"everything":      {full, ""},
		"no issuer":       {without(func(c *Config) { c.Issuer = "" }), "--jwt-issuer"},
		"no audience":     {without(func(c *Config) { c.Audience = "" }), "--jwt-audience"},
		"no key": {
			without(func(c *Config) { c.JWKSURL = "" }), "--jwt-secret-file, --jwt-jwks-file or --jwt-jwks-url",
		},
		"algorithms alone": {Config{Algorithms: []string{"RS256"}}, "--jwt-issuer"},
		"two keys":         {without(func(c *Config) { c.SecretFile = "secret" }), "exclude each other"},
		"HMAC with a public key": {
			without(func(c *Config) { c.Algorithms = []string{"RS256", "HS256"} }), `"HS256" does not fit`,
		},
		"RSA with a secret": {
			without(func(c *Config) { c.JWKSURL, c.SecretFile, c.Algorithms = "", "secret", []string{"RS256"} }),
			`"RS256" does not fit`,
		},
		"none": {
			without(func(c *Config) { c.Algorithms = []string{"none"} }), `"none" does not fit`,
		},
		"plain http": {
			without(func(c *Config) { c.JWKSURL = "http://login.example.org/keys" }), "--jwt-jwks-url",
		},
		"plain http to this host": {without(func(c *Config) { c.JWKSURL = "http://127.0.0.1:8080/keys" }), ""},
		"plain http to its IPv6":  {without(func(c *Config) { c.JWKSURL = "http://[::1]:8080/keys" }), ""},
		"plain http to a lookalike": {
			without(func(c *Config) { c.JWKSURL = "http://127.0.0.1.example.org/keys" }), "--jwt-jwks-url",
		},
		"a file": {without(func(c *Config) { c.JWKSURL = "file:///etc/keys" }), "--jwt-jwks-url"},
		"a password in the URL": {
			without(func(c *Config) { c.JWKSURL = "https://a:b@login.example.org" }), "--jwt-jwks-url",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := tt.config.Validate()
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("%v", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("error %v does not say %q", err, tt.want)
			}
		})
	}
}

func TestInvalidKeyFilesAreRefused(t *testing.T) {
	file := func(content string) string {
		path := filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	tests := map[string]struct {
		config Config
		want   string
	}{
		"a secret that is not there": {Config{SecretFile: "nowhere"}, "--jwt-secret-file"},
		"a secret that is too short": {Config{SecretFile: file("0123456789\n")}, "at least 32"},
		"a secret that is too short for HS512": {
			Config{SecretFile: file(strings.Repeat("k", 63)), Algorithms: []string{"HS256", "HS512"}},
			"at least 64 are needed for HS512: use a longer secret, or other --jwt-algorithms",
		},
		"a secret that is only newline": {Config{SecretFile: file(strings.Repeat("\n", 40))}, "at least 32"},
		"a set that is not there":       {Config{JWKSFile: "nowhere"}, "--jwt-jwks-file"},
		"a set that is no JSON":         {Config{JWKSFile: file("-----BEGIN PUBLIC KEY-----")}, "parse key set"},
		"a set without keys":            {Config{JWKSFile: file(`{"keys":[]}`)}, "no public RSA"},
		"a set of secrets": {
			Config{JWKSFile: file(`{"keys":[{"kty":"oct","kid":"a","k":"c2VjcmV0"}]}`)}, "no public RSA",
		},
		"a set that is too large": {
			Config{JWKSFile: file(`{"keys":[` + strings.Repeat(`{},`, 64) + `{}]}`)}, "at most 64",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.config.Issuer, tt.config.Audience = "issuer", "audience"
			_, err := NewPolicy(t.Context(), tt.config, slog.New(slog.DiscardHandler))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v does not say %q", err, tt.want)
			}
		})
	}
}
