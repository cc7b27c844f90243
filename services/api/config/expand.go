package config

import (
	"regexp"
	"strings"
)

// variable matches the placeholders that Expand replaces; submatch 1 or 2 is the name.
var variable = regexp.MustCompile(`\$(STUNNER_[A-Z0-9_]+)|\$\{(STUNNER_[A-Z0-9_]+)\}`)

// unset marks a placeholder that Expand could not replace, so that Validate refuses it where it accepted the placeholder.
const unset = "(unset)"

// Expand returns a copy in which $NAME and ${NAME} are replaced in the fields that may hold placeholders: the name and the endpoints
// of admin, and the addresses of listeners. lookup is asked for names that start with STUNNER_ only, and returns "" for what it does not
// know; Validate refuses a config in which such a name was left. Credentials are never expanded.
func (c Config) Expand(lookup func(name string) string) Config {
	c = c.Clone()
	for _, field := range c.expandable() {
		*field.value = expand(*field.value, lookup)
	}
	return c
}

func expand(s string, lookup func(name string) string) string {
	if s == NodeAddressPlaceholder { // nobody knew the node's address
		s = AddressPlaceholder
	}
	return variable.ReplaceAllStringFunc(s, func(placeholder string) string {
		if value := lookup(strings.Trim(placeholder, "${}")); value != "" {
			return value
		}
		return placeholder + unset
	})
}

type placeholderField struct {
	path  string
	value *string
}

// expandable points to the fields of c that may hold placeholders.
func (c *Config) expandable() []placeholderField {
	fields := []placeholderField{
		{"admin.name", &c.Admin.Name},
		{"admin.metrics_endpoint", &c.Admin.MetricsEndpoint},
	}
	if c.Admin.HealthcheckEndpoint != nil {
		fields = append(fields, placeholderField{"admin.healthcheck_endpoint", c.Admin.HealthcheckEndpoint})
	}
	for i := range c.Listeners {
		l := &c.Listeners[i]
		fields = append(fields,
			placeholderField{index("listeners", i, "address"), &l.Address},
			placeholderField{index("listeners", i, "public_address"), &l.PublicAddress})
	}
	return fields
}

// isPlaceholder tells whether s is one placeholder and nothing else.
func isPlaceholder(s string) bool {
	return s == NodeAddressPlaceholder || s != "" && variable.FindString(s) == s
}
