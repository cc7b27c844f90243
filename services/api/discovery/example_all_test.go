package discovery_test

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// A program outside of the dataplane, such as a signaling server, watches all gateways with a token and a CA.
func ExampleOpen_allGateways() {
	operator := newOperator("media/edge", "media/core")
	defer operator.Close()
	folder, err := os.MkdirTemp("", "reader")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(folder)
	// In a cluster, the token is mounted from a projected volume with the audience stunner-discovery, and the
	// certificates are mounted from the ConfigMap stunner-discovery-ca. Both are read again for each connection.
	token, ca := filepath.Join(folder, "token"), filepath.Join(folder, "ca.crt")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: operator.Certificate().Raw})
	err = errors.Join(os.WriteFile(token, []byte("a-token"), 0o600), os.WriteFile(ca, certificate, 0o600))
	if err != nil {
		fmt.Println(err)
		return
	}

	// In a cluster, the origin is https://stunner-config-discovery.NAMESPACE.svc:13478. Without an ID, the source has
	// all gateways; the ID "media/" selects the gateways of the namespace media, and "media/edge" selects one gateway.
	source, err := discovery.Open(operator.URL, discovery.Options{TokenFile: token, CAFile: ca})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	gateways := map[string]config.Config{}
	for e := range source.Watch(ctx) {
		switch {
		case e.Err != nil:
			fmt.Println(e.Err) // keep the configs that are known
		case e.Connected:
		case e.Deleted:
			delete(gateways, e.ID)
		default:
			gateways[e.ID] = e.Config
			for _, l := range e.Config.Listeners {
				for _, uri := range l.URIs() {
					fmt.Println(e.ID, uri)
				}
			}
		}
		if len(gateways) == 2 {
			cancel() // ends the loop
		}
	}
	// Unordered output:
	// media/edge turn:203.0.113.7:3478?transport=udp
	// media/core turn:203.0.113.7:3478?transport=udp
}

// Load reads the current configs once.
func ExampleSource_load() {
	server := discovery.NewServer(discovery.ServerOptions{})
	server.Publish(gateway("media/edge"))
	server.Publish(gateway("games/edge"))
	operator := httptest.NewServer(server)
	defer operator.Close()

	source, err := discovery.Open(operator.URL, discovery.Options{ID: "media/"})
	if err != nil {
		fmt.Println(err)
		return
	}
	configs, err := source.Load(context.Background())
	for _, c := range configs {
		fmt.Println(c.Admin.Name, len(c.Listeners), err)
	}
	// Output:
	// media/edge 1 <nil>
}

// newOperator returns a discovery server that sends its gateways to readers with the token "a-token".
func newOperator(ids ...string) *httptest.Server {
	server := discovery.NewServer(discovery.ServerOptions{
		Authorize: func(r *http.Request) (discovery.Grant, error) {
			if r.Header.Get("Authorization") != "Bearer a-token" {
				return discovery.Grant{}, errors.New("unknown token")
			}
			return discovery.Grant{All: true}, nil
		},
	})
	for _, id := range ids {
		server.Publish(gateway(id))
	}
	return httptest.NewTLSServer(server)
}

// gateway returns a config with one listener.
func gateway(id string) config.Config {
	c := config.Zero(id)
	c.Listeners = []config.Listener{{
		Name: id + "/udp", Protocol: config.TURNUDP, PublicAddress: "203.0.113.7", Port: 3478,
	}}
	c.Default()
	return c
}
