package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// Default ports of the endpoints, for URLs without a port.
const (
	HealthPort  = "8086"
	MetricsPort = "8080"
)

// Endpoint is the configuration of an HTTP server that answers GET and HEAD only.
type Endpoint struct {
	// Name identifies the endpoint when its URL changes.
	Name string
	// URL is http://HOST:PORT/PATH, or an address (see config.EndpointURL). If it is empty, the HTTP server is not
	// started, or is stopped.
	URL string
	// Port is the default port of the URL.
	Port string
	// Handler returns the handler for the path of the URL.
	Handler func(path string) http.Handler
}

// Endpoints are HTTP servers whose addresses are in a config and may change. All changes of addresses are made
// together, because one endpoint may need the port of another, or its own port with another host. If the new address of
// an endpoint cannot be opened, all moved endpoints return to their previous addresses.
type Endpoints struct {
	log   *slog.Logger
	meter atomic.Pointer[meter.Meter]

	mu   sync.Mutex
	open map[string]*endpoint
}

// Count makes the endpoints count the requests that they refuse, and log them.
func (e *Endpoints) Count(m *meter.Meter) { e.meter.Store(m) }

type endpoint struct {
	Endpoint
	set     *Endpoints
	address string
	handler atomic.Pointer[http.Handler]
	socket  *socket
	stop    context.CancelFunc
	done    chan struct{}
}

// ServeHTTP calls the current handler.
func (ep *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	counted(ep.set.meter.Load(), telemetry.ReadOnly(*ep.handler.Load())).ServeHTTP(w, r)
}

// release closes the listening socket of the endpoint, so that its address can be opened again. It does not wait for
// running requests, which may take some seconds.
func (ep *endpoint) release() {
	ep.stop()
	<-ep.socket.closed
}

// socket is a listening socket with a channel that is closed by Close. endpoint.release waits for that channel, because
// the address can be opened again only after that.
type socket struct {
	net.Listener
	closed chan struct{}
}

// Close closes the socket. net/http calls it once.
func (s *socket) Close() error {
	defer close(s.closed)
	return s.Listener.Close()
}

func NewEndpoints(log *slog.Logger) *Endpoints {
	return &Endpoints{log: log, open: map[string]*endpoint{}}
}

// Set opens, moves and closes endpoints so that exactly the wanted endpoints are open, with their handlers. The error
// names the endpoints that failed.
func (e *Endpoints) Set(wanted ...Endpoint) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	var moved, added []Endpoint
	closing := maps.Clone(e.open)
	for _, w := range wanted {
		if w.URL == "" {
			continue
		}
		address, path, err := w.at()
		old := e.open[w.Name]
		switch {
		case err != nil:
			errs = append(errs, err)
		case old == nil:
			added = append(added, w)
			continue
		case old.address != address:
			moved = append(moved, w)
			continue
		default:
			old.URL = w.URL
			old.handler.Store(new(w.Handler(path)))
		}
		delete(closing, w.Name)
	}
	for name, old := range closing {
		old.release()
		delete(e.open, name)
	}
	errs = append(errs, e.move(moved, closing))
	for _, w := range added {
		errs = append(errs, e.start(w))
	}
	for _, old := range closing {
		<-old.done
	}
	return errors.Join(errs...)
}

// at returns the address (HOST:PORT) and the path of an endpoint.
func (w Endpoint) at() (address, path string, err error) {
	u, err := url.Parse(config.EndpointURL(w.URL))
	if err != nil {
		return "", "", fmt.Errorf("read %s endpoint %q: %w", w.Name, w.URL, err)
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), w.Port)), u.Path, nil
}

// move starts endpoints at new addresses. The map from contains their previous versions, which release has closed. If
// an endpoint cannot be started, all of them are started at their previous addresses.
func (e *Endpoints) move(endpoints []Endpoint, from map[string]*endpoint) (failed error) {
	for _, w := range endpoints {
		failed = errors.Join(failed, e.start(w))
	}
	if failed == nil {
		return nil
	}
	for _, w := range endpoints {
		if moved := e.open[w.Name]; moved != nil {
			moved.release()
			delete(e.open, w.Name)
		}
	}
	for _, w := range endpoints {
		failed = errors.Join(failed, e.start(from[w.Name].Endpoint))
	}
	return failed
}

// start serves an endpoint.
func (e *Endpoints) start(w Endpoint) error {
	address, path, err := w.at()
	if err != nil {
		return err
	}
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
	if err != nil {
		return fmt.Errorf("open %s endpoint %s: %w", w.Name, w.URL, err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ep := &endpoint{
		Endpoint: w, set: e, address: address, socket: &socket{ln, make(chan struct{})}, stop: stop, done: make(chan struct{}),
	}
	ep.handler.Store(new(w.Handler(path)))
	e.open[w.Name] = ep
	go func() {
		defer close(ep.done)
		if err := telemetry.Serve(ctx, ep.socket, ep); err != nil && !errors.Is(err, http.ErrServerClosed) {
			e.log.Error("serve endpoint", "endpoint", w.Name, "error", err)
		}
	}()
	return nil
}

// Close closes all endpoints and waits for running requests.
func (e *Endpoints) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ep := range e.open {
		ep.stop()
	}
	for _, ep := range e.open {
		<-ep.done
	}
	clear(e.open)
}

// writeJSON answers a request with a value in JSON.
func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(value)
}
