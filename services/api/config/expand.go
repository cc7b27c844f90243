package config

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
)

// variable matches a placeholder: the name of an environment variable of this product. Other variables of the environment are never asked for, so that no
// config can show them.
var variable = regexp.MustCompile(`\$(STUNNER_[A-Z0-9_]+)|\$\{(STUNNER_[A-Z0-9_]+)\}`)

// Expand returns a copy in which $NAME and ${NAME} are replaced in every text field, and validates it. lookup is asked for names that start with
// STUNNER_ only, and returns "" for a variable that is not set, which is an error. A value is not expanded again. Credentials are never expanded: a
// password may hold a dollar sign.
func (c Config) Expand(lookup func(name string) string) (Config, error) {
	c = c.Clone()
	var f findings
	c.texts(func(value *string, at place) {
		if *value == NodeAddressPlaceholder { // nobody knew the node's address
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

// unset notes a placeholder without a value.
func (f *findings) unset(field, name string) {
	f.add(field, name, "is not set", "set the variable in the environment of the process")
}

// place is the path of a text field: field, list[i].field or list[i].field[j]. A field that is in no list has no list; one that is no list has a negative j.
type place struct {
	list  string
	i     int
	field string
	j     int
}

// String gives the path in the spelling of the document.
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

// texts visits the text fields that may hold placeholders: all but the version, the license, the credentials and the former secret.
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

// holdsPlaceholder tells whether a text means something in a running process only.
func holdsPlaceholder(s string) bool { return s == NodeAddressPlaceholder || variable.MatchString(s) }
