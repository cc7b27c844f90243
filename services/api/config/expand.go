package config

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
)

// variable matches a placeholder: the name of an environment variable with the prefix STUNNER_. Other variables are not
// looked up, so that a config cannot reveal them.
var variable = regexp.MustCompile(`\$(STUNNER_[A-Z0-9_]+)|\$\{(STUNNER_[A-Z0-9_]+)\}`)

// Expand returns a validated copy in which the placeholders $NAME and ${NAME} are replaced in every text field, except
// credentials, because a password may contain a dollar sign. It calls lookup for names that start with STUNNER_. If
// lookup returns "", the variable is not set, which is an error. The values are not expanded again.
func (c Config) Expand(lookup func(name string) string) (Config, error) {
	c = c.Clone()
	var f findings
	c.texts(func(value *string, at place) {
		if *value == NodeAddressPlaceholder { // the discovery server does not have the address of the node
			*value = AddressPlaceholder
		}
		if strings.IndexByte(*value, '$') < 0 {
			return
		}
		*value = variable.ReplaceAllStringFunc(*value, func(placeholder string) string {
			name := strings.Trim(placeholder, "${}")
			text := lookup(name)
			if text == "" {
				f.unset(at.String(), name)
			}
			return text
		})
	})
	if len(f.errs) > 0 {
		return c, errors.Join(f.errs...)
	}
	c.Default()
	return c, c.validate(true)
}

// unset adds an error for a placeholder without a value.
func (f *findings) unset(field, name string) {
	f.add(field, name, "is not set", "set the variable in the environment of the process")
}

// place is the path of a text field in a document: field, list[i].field or list[i].field[j].
type place struct {
	list  string // "" if the field is not in a list
	i     int
	field string
	j     int // negative if the field is not a list
}

// String returns the path in the form that is used in errors.
func (p place) String() string {
	path := p.field
	if p.list != "" {
		path = index(p.list, p.i, p.field)
	}
	if p.j >= 0 {
		path += "[" + strconv.Itoa(p.j) + "]"
	}
	return path
}

// texts visits the text fields that may contain placeholders. These are all text fields except the version and the
// license, and except the credentials, the former secret and the revocations, because users choose these values.
func (c *Config) texts(visit func(value *string, at place)) {
	one := func(field string, value *string) { visit(value, place{field: field, j: -1}) }
	one("admin.name", &c.Admin.Name)
	one("admin.loglevel", &c.Admin.LogLevel)
	one("admin.metrics_endpoint", &c.Admin.MetricsEndpoint)
	if c.Admin.HealthcheckEndpoint != nil {
		one("admin.healthcheck_endpoint", c.Admin.HealthcheckEndpoint)
	}
	one("admin.offload_engine", &c.Admin.OffloadEngine)
	for j := range c.Admin.OffloadInterfaces {
		visit(&c.Admin.OffloadInterfaces[j], place{field: "admin.offload_interfaces", j: j})
	}
	one("auth.type", (*string)(&c.Auth.Type))
	one("auth.realm", &c.Auth.Realm)
	for i := range c.Listeners {
		c.Listeners[i].texts(func(value *string, field string, j int) { visit(value, place{"listeners", i, field, j}) })
	}
	for i := range c.Clusters {
		c.Clusters[i].texts(func(value *string, field string, j int) { visit(value, place{"clusters", i, field, j}) })
	}
}

func (l *Listener) texts(visit func(value *string, field string, j int)) {
	visit(&l.Name, "name", -1)
	visit((*string)(&l.Protocol), "protocol", -1)
	visit(&l.PublicAddress, "public_address", -1)
	for j := range l.PublicAddresses {
		visit(&l.PublicAddresses[j], "public_addresses", j)
	}
	visit(&l.PublicHost, "public_host", -1)
	visit(&l.Address, "address", -1)
	visit(&l.Cert, "cert", -1)
	visit((*string)(&l.Key), "key", -1)
	for j := range l.Certificates {
		visit(&l.Certificates[j].Cert, "certificates["+strconv.Itoa(j)+"].cert", -1)
		visit((*string)(&l.Certificates[j].Key), "certificates["+strconv.Itoa(j)+"].key", -1)
	}
	for j := range l.ServiceAddresses {
		visit(&l.ServiceAddresses[j], "service_addresses", j)
	}
	for j := range l.ProxyProtocol {
		visit(&l.ProxyProtocol[j], "proxy_protocol", j)
	}
	for j := range l.Routes {
		visit(&l.Routes[j], "routes", j)
	}
}

func (c *Cluster) texts(visit func(value *string, field string, j int)) {
	visit(&c.Name, "name", -1)
	visit((*string)(&c.Type), "type", -1)
	visit(&c.Protocol, "protocol", -1)
	for j := range c.Endpoints {
		visit(&c.Endpoints[j], "endpoints", j)
	}
	for j := range c.Except {
		visit(&c.Except[j], "except", j)
	}
}

// holdsPlaceholder reports whether a text contains a placeholder.
func holdsPlaceholder(s string) bool { return s == NodeAddressPlaceholder || variable.MatchString(s) }
