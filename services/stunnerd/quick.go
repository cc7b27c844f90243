package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// quickServer returns a source with a config for a TURN URI: one listener, and one user that may reach every peer. TLS
// and DTLS use a self-signed certificate.
func quickServer(u config.URI) (discovery.Source, error) {
	if u.Username == "" || u.Password == "" {
		return nil, fmt.Errorf("read TURN URI: no user or no password: use turn://USER:PASSWORD@ADDRESS:PORT")
	}
	if strings.EqualFold(u.Host, "localhost") {
		u.Host = "127.0.0.1"
	}
	if _, err := netip.ParseAddr(u.Host); err != nil {
		return nil, fmt.Errorf("read TURN URI: host %q: use an IP address of this host", u.Host)
	}
	c := config.Config{
		Version: config.Version,
		Auth: config.Auth{Type: config.AuthStatic, Credentials: map[string]credential.Secret{
			config.KeyUsername: credential.Secret(u.Username), config.KeyPassword: u.Password,
		}},
		Listeners: []config.Listener{{
			Name: "default-listener", Protocol: u.Protocol(), Address: u.Host, Port: u.Port,
			Routes: []string{"allow-any"},
		}},
		Clusters: []config.Cluster{{Name: "allow-any", Type: config.Static, Endpoints: []string{"0.0.0.0/0"}}},
	}
	if l := &c.Listeners[0]; l.Protocol.Secure() {
		var err error
		if l.Cert, l.Key, err = selfSigned(u.Host, time.Now()); err != nil {
			return nil, err
		}
	}
	c.Default()
	return fixed{c}, c.Validate()
}

// fixed is a source with one config that never changes.
type fixed struct{ config config.Config }

func (f fixed) Load(context.Context) ([]discovery.Loaded, error) {
	return []discovery.Loaded{{Config: f.config, Revision: f.config.Revision()}}, nil
}
func (f fixed) String() string { return "command line" }

func (f fixed) Watch(ctx context.Context) <-chan discovery.Event {
	events := make(chan discovery.Event, 1)
	events <- discovery.Event{ID: f.config.Admin.Name, Config: f.config, Revision: f.config.Revision()}
	context.AfterFunc(ctx, func() { close(events) })
	return events
}
