package discovery

import (
	"bytes"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/coder/websocket"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// wire records what a server writes to its connections.
type wire struct {
	net.Listener
	mu      sync.Mutex
	written bytes.Buffer
}

func (w *wire) Accept() (net.Conn, error) {
	conn, err := w.Listener.Accept()
	return tapped{conn, w}, err
}

type tapped struct {
	net.Conn
	wire *wire
}

func (c tapped) Write(b []byte) (int, error) {
	c.wire.mu.Lock()
	c.wire.written.Write(b)
	c.wire.mu.Unlock()
	return c.Conn.Write(b)
}

// A reader with Grant.ForAuth never receives a private key, an endpoint or a route, for any request.
func TestReadersForAuthReceiveNoPrivateKey(t *testing.T) {
	c := sample("media/a", "r")
	c.Auth.Type = config.AuthEphemeral
	c.Auth.Credentials = map[string]credential.Secret{
		config.KeySecret: "marker-signing", config.KeyUsername: "marker-secret-user",
		config.KeyPassword: "marker-secret-password",
	}
	c.Admin.License = &config.License{Key: "marker-secret-license", HMAC: "marker-secret-hmac"}
	c.Listeners = append(c.Listeners, config.Listener{
		Name: "media/a/tls", Protocol: config.TURNTLS, Port: 5349, PublicAddress: "192.0.2.77",
		Address: config.NodeAddressPlaceholder,
		Cert:    "marker-secret-cert", Key: "marker-secret-key",
		Certificates: []config.Certificate{{Cert: "marker-secret-cert2", Key: "marker-secret-key2"}},
		Routes:       []string{"marker-secret-route"}, ServiceAddresses: []string{"marker-secret-address"},
	})
	c.Clusters = []config.Cluster{{Name: "marker-secret-route", Endpoints: []string{"marker-secret-endpoint"}}}

	s := NewServer(ServerOptions{
		Authorize: func(*http.Request) (Grant, error) { return Grant{All: true, ForAuth: true}, nil }, Permissive: true,
	})
	h := httptest.NewUnstartedServer(s)
	w := &wire{Listener: h.Listener}
	h.Listener = w
	h.Start()
	t.Cleanup(h.Close)
	conn := dial(t, h, apiPath+"?watch=true&node=north")
	s.SetNode("north", "192.0.2.1")
	s.Publish(c)
	first := frame(t, conn)
	if got, _, err := config.Parse([]byte(first)); err != nil ||
		got.Auth.Authority().SharedSecret != "marker-signing" || got.Listeners[1].PublicAddress != "192.0.2.77" {
		t.Fatalf("%v: %s", err, first)
	}
	for _, path := range []string{
		apiPath, apiPath + "/media", apiPath + "/media/a", apiPath + "/media/a?node=north", reportsPath,
	} {
		if code, body := get(t, h.URL+path); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if text := w.written.String(); strings.Contains(text, "marker-secret") ||
		strings.Count(text, "marker-signing") != 5 {
		t.Errorf("on the wire: %s", text)
	}
}

// A change that ForAuth leaves out is not sent to a reader with Grant.ForAuth. Such a reader cannot send reports.
func TestReadersForAuthGetTheirPartOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(ServerOptions{
			Authorize: func(*http.Request) (Grant, error) { return Grant{All: true, ForAuth: true}, nil },
		})
		conn := follows(t, piped(t, s), "?watch=true&node=north")
		c := sample("media/a", "r")
		c.Listeners[0].Address = config.NodeAddressPlaceholder
		s.Publish(c)
		frame(t, conn)
		received := make(chan string)
		go func() {
			for {
				_, data, err := conn.Read(t.Context())
				if err != nil {
					close(received)
					return
				}
				received <- string(data)
			}
		}()
		for i, change := range []struct {
			what string
			do   func()
			want string // in the frame; "" for none
		}{
			{"endpoints", func() { c.Clusters = []config.Cluster{{Name: "r", Endpoints: []string{"192.0.2.1"}}} }, ""},
			{"a quota", func() { c.Admin.UserQuota = 7 }, ""},
			{"the secret", func() {
				c.Auth.Credentials = map[string]credential.Secret{
					config.KeyUsername: "user", config.KeyPassword: "next",
				}
			}, `"next"`},
			{"routes", func() { c.Listeners[0].Routes = []string{"r"} }, ""},
			{"the public address", func() { c.Listeners[0].PublicAddress = "192.0.2.2" }, "192.0.2.2"},
			{"a node", func() { s.SetNode("north", "192.0.2.3") }, ""},
			{"deleted", func() { s.Delete("media/a") }, string(config.Zero("media/a").Canonical())},
			{"published again", func() {}, "192.0.2.2"},
		} {
			c = c.Clone()
			if change.do(); change.what != "deleted" {
				if _, changed := s.Publish(c); !changed && change.what != "a node" {
					t.Fatalf("%s: nothing is published", change.what)
				}
			}
			synctest.Wait()
			select {
			case got := <-received:
				if change.want == "" || !strings.Contains(got, change.want) {
					t.Errorf("%d, %s: received %s, want %q", i, change.what, got, change.want)
				}
			default:
				if change.want != "" {
					t.Errorf("%d, %s: received nothing", i, change.what)
				}
			}
		}
		if err := conn.Write(
			t.Context(), websocket.MessageText, []byte(`{"report":{"id":"media/a","pod":"p","accepted":true}}`),
		); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := s.Reports(); len(got) != 0 {
			t.Errorf("reports %+v are believed", got)
		}
		_ = conn.CloseNow()
		synctest.Wait()
	})
}
