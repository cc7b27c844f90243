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

	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// Default ports of the endpoints, for URLs that name none.
const (
	HealthPort  = "8086"
	MetricsPort = "8080"
)

// Endpoint is an HTTP server as the config wants it. It answers GET and HEAD only.
type Endpoint struct {
	// Name says what it serves: it stays when the URL changes.
	Name string
	// URL is http://HOST:PORT/PATH; empty means none.
	URL string
	// Port is for URLs without one.
	Port string
	// Handler makes what is served under the path of the URL.
	Handler func(path string) http.Handler
}

// Endpoints are HTTP servers at addresses that the config names and may change. Those that change their address do so together, because one may need
// the port of another, or its own for another spelling: if one cannot, all go back to where they were.
type Endpoints struct {
	log *slog.Logger

	mu   sync.Mutex
	open map[string]*endpoint
}

// endpoint is an open one.
type endpoint struct {
	Endpoint
	address string
	handler atomic.Pointer[http.Handler]
	socket  *socket
	stop    context.CancelFunc
	done    chan struct{}
}

// ServeHTTP serves what the endpoint has at its address now.
func (ep *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	telemetry.ReadOnly(*ep.handler.Load()).ServeHTTP(w, r)
}

// leave frees the address. Requests under way may end, for some seconds, which nobody waits for here.
func (ep *endpoint) leave() {
	ep.stop()
	<-ep.socket.closed
}

// socket is a listening socket that tells when it is closed.
type socket struct {
	net.Listener
	closed chan struct{}
}

// Close is called once: net/http sees to that.
func (s *socket) Close() error {
	defer close(s.closed)
	return s.Listener.Close()
}

// NewEndpoints returns a set without any endpoint.
func NewEndpoints(log *slog.Logger) *Endpoints {
	return &Endpoints{log: log, open: map[string]*endpoint{}}
}

// Set brings the endpoints to what is wanted, and ends all others. The error names those that could not be brought there.
func (e *Endpoints) Set(wanted ...Endpoint) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	var moving, coming []Endpoint
	leaving := maps.Clone(e.open)
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
			coming = append(coming, w)
			continue
		case old.address != address:
			moving = append(moving, w)
			continue
		case old.URL != w.URL:
			old.URL = w.URL
			old.handler.Store(new(w.Handler(path)))
		}
		delete(leaving, w.Name)
	}
	for name, old := range leaving {
		old.leave()
		delete(e.open, name)
	}
	errs = append(errs, e.move(moving, leaving))
	for _, w := range coming {
		errs = append(errs, e.start(w))
	}
	for _, old := range leaving {
		<-old.done
	}
	return errors.Join(errs...)
}

// at is the address, HOST:PORT, and the path of an endpoint.
func (w Endpoint) at() (address, path string, err error) {
	u, err := url.Parse(w.URL)
	if err != nil {
		return "", "", fmt.Errorf("read %s endpoint %q: %w", w.Name, w.URL, err)
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), w.Port)), u.Path, nil
}

// move starts endpoints that have left their addresses, all or none.
func (e *Endpoints) move(moving []Endpoint, from map[string]*endpoint) (failed error) {
	for _, w := range moving {
		failed = errors.Join(failed, e.start(w))
	}
	if failed == nil {
		return nil
	}
	for _, w := range moving {
		if moved := e.open[w.Name]; moved != nil {
			moved.leave()
			delete(e.open, w.Name)
		}
	}
	for _, w := range moving {
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
	ep := &endpoint{Endpoint: w, address: address, socket: &socket{ln, make(chan struct{})}, stop: stop, done: make(chan struct{})}
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

// Close ends all endpoints.
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

// writeJSON answers a request with a value.
func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(value)
}
