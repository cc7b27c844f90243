package discovery_test

import (
	"context"
	"fmt"
	"net/http/httptest"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// A source sends the current config, then every change. Here it is a discovery server; a file works the same way.
func ExampleOpen() {
	server := discovery.NewServer(discovery.ServerOptions{})
	host := httptest.NewServer(server)
	defer host.Close()
	publish := func(realm string) {
		c := config.Zero("media/edge")
		c.Auth.Realm = realm
		server.Publish(c)
	}
	publish("first.example.org")

	source, err := discovery.Open(host.URL, discovery.Options{ID: "media/edge"})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	events := source.Watch(ctx)
	for e := range events {
		switch {
		case e.Err != nil:
			fmt.Println(e.Err) // the source is unreachable, or a config is invalid: keep the last config
		case e.Connected:
			fmt.Println("connected")
		case e.Deleted:
			fmt.Println("deleted", e.ID)
			cancel() // closes events
		default:
			fmt.Println(e.ID, e.Config.Auth.Realm)
			if e.Config.Auth.Realm == "first.example.org" {
				publish("second.example.org")
			} else {
				server.Delete("media/edge")
			}
		}
	}
	// Output:
	// connected
	// media/edge first.example.org
	// media/edge second.example.org
	// deleted media/edge
}
