package translate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// config returns the dataplane config of the Gateway. A listener that cannot be served as specified keeps its published
// form, see held.go.
func (d draft) config() config.Config {
	c := config.Config{Admin: d.admin(), Auth: d.auth, Clusters: d.clusters}
	for _, l := range d.listeners {
		switch {
		case l.served():
			c.Listeners = append(c.Listeners, d.configListener(l))
		case l.published != nil:
			c.Listeners = append(c.Listeners, l.published.update(d.configListener(l)))
		}
	}
	c.Default()
	return c
}

func (d draft) admin() config.Admin {
	gc, template := d.parameters.config.Spec, d.parameters.dataplane.Spec
	a := config.Admin{
		Name:              resource.KeyOf(d.gateway).String(),
		LogLevel:          cmp.Or(gc.LogLevel, stunnerv1.DefaultLogLevel),
		UserQuota:         int(gc.UserQuota),
		SourceQuota:       int(gc.SourceQuota),
		SessionByteRate:   gc.SessionByteRate,
		UserByteRate:      gc.UserByteRate,
		OffloadEngine:     string(d.offloadEngine(template)),
		OffloadInterfaces: template.OffloadInterfaces,
		ClientAddresses:   d.annotations.sourceAddress,
	}
	a.MetricsEndpoint, a.HealthcheckEndpoint = d.adminEndpoints(template)
	return a
}

// offloadEngine returns the engine for the dataplane. On the network of a host, packets that the kernel forwards bypass
// the packet filter of the host, so Auto means None. The dataplane itself recognizes only the initial network
// namespace, and a node may be a container with another network namespace.
func (d draft) offloadEngine(template stunnerv1.DataplaneSpec) stunnerv1.OffloadEngine {
	onHost := template.HostNetwork || d.view.Host() != nil
	if template.OffloadEngine == stunnerv1.OffloadAuto && onHost {
		return stunnerv1.OffloadNone
	}
	return template.OffloadEngine
}

// adminEndpoints returns the URLs of the metrics and health check endpoints. In a pod, annotations of the Gateway set
// the ports. On a host, the file provider allocates ports for each process.
func (d draft) adminEndpoints(template stunnerv1.DataplaneSpec) (metrics string, health *string) {
	if host := d.view.Host(); host != nil {
		ports := host.Admin[resource.KeyOf(d.gateway)]
		return loopback(ports.Metrics, "/metrics"), new(loopback(ports.Health, ""))
	}
	if template.EnableMetricsEndpoint {
		metrics = fmt.Sprintf("http://:%d/metrics", d.annotations.processPorts.Metrics)
	}
	if template.DisableHealthCheck {
		return metrics, new("")
	}
	return metrics, new(fmt.Sprintf("http://:%d", d.annotations.processPorts.Health))
}

func loopback(port int, path string) string {
	if port == 0 {
		return ""
	}
	return fmt.Sprintf("http://127.0.0.1:%d%s", port, path)
}

func (d draft) configListener(l *listener) config.Listener {
	c := config.Listener{
		Name:     d.listenerName(l),
		Protocol: l.protocol,
		Address:  d.relayAddress(),
		Port:     int(boundPort(d.view, d.gateway, l)),
		Routes:   routeNames(l),

		ServiceAddresses: serviceAddresses(d.view, d.gateway, l),
	}
	c.TLSAtBalancer = l.protocol == config.TURNTCP && d.endsTLS(l.name())
	if l.protocol.Stream() {
		c.ProxyProtocol = d.annotations.proxyProtocol
	}
	if l.announced.known() {
		c.PublicAddress, c.PublicPort = l.announced.hosts[0], int(l.announced.port)
		c.PublicHost = d.publicHost(l)
	}
	if len(l.announced.hosts) > 1 {
		c.PublicAddresses = l.announced.hosts
	}
	for i, cert := range l.certificates {
		if i == 0 {
			c.Cert, c.Key = cert.Encoded.Cert, cert.Encoded.Key
			continue
		}
		c.Certificates = append(c.Certificates, cert.Encoded)
	}
	return c
}

func routeNames(l *listener) []string {
	var names []string
	for _, r := range l.routes {
		names = append(names, r.Ref.NamespacedName.String())
	}
	names = append(names, l.keptRoutes...)
	slices.Sort(names)
	return names
}

// relayAddress returns the address of relay sockets. In a cluster, it is a placeholder: the dataplane replaces
// config.AddressPlaceholder by the address of its pod, and the config discovery server replaces
// config.NodeAddressPlaceholder by the address of the node.
func (d draft) relayAddress() string {
	switch {
	case d.view.Host() != nil:
		return d.view.Host().Addresses[0]
	case d.annotations.relayDiscovery:
		return config.NodeAddressPlaceholder
	}
	return config.AddressPlaceholder
}

// publishable runs the checks of a dataplane, so that the operator never publishes a config that dataplanes reject.
func publishable(c config.Config) condition.Finding {
	if err := checkConfig(c); err != nil {
		return condition.ConfigInvalid(errors.New(strings.ReplaceAll(err.Error(), "\n", "; ")))
	}
	return condition.Finding{}
}

// checkConfig returns the reason why a dataplane would reject a config. A config that is too large must not be
// published, because it also affects other Gateways: a client that reads all configs over one stream would lose that
// stream at each attempt.
func checkConfig(c config.Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if estimatedSize(c) < config.MaxDocument/2 {
		return nil // the usual case; the rest encodes the config, which takes a third of the time of a translation
	}
	if size := len(c.Canonical()); size > config.MaxDocument {
		const format = "it has %d bytes, the limit is %d: let its routes lead to fewer endpoints, or to prefixes"
		return fmt.Errorf(format, size, config.MaxDocument)
	}
	return nil
}

// estimatedSize returns the total size in bytes of the parts of a config that can be large, without JSON syntax. The
// other parts, such as service addresses, stay far below config.MaxDocument.
func estimatedSize(c config.Config) (bytes int) {
	for _, l := range c.Listeners {
		bytes += len(l.Cert) + len(l.Key)
		for _, more := range l.Certificates {
			bytes += len(more.Cert) + len(more.Key)
		}
		for _, route := range l.Routes {
			bytes += len(route)
		}
	}
	for _, cluster := range c.Clusters {
		bytes += len(cluster.Name)
		for _, list := range [][]string{cluster.Endpoints, cluster.Except} {
			for _, text := range list {
				bytes += len(text)
			}
		}
	}
	return bytes
}
