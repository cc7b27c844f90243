package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// Default ports of the endpoints, for URLs that name none.
const (
	HealthPort  = "8086"
	MetricsPort = "8080"
)

// Endpoints are HTTP servers at addresses that the config names and may change. Each is known by what it serves; a change starts the
// new one before the old one stops, and one that cannot start leaves the old one as it is.
type Endpoints struct {
	log *slog.Logger

	mu   sync.Mutex
	open map[string]*endpoint
}

type endpoint struct {
	url  string
	stop context.CancelFunc
	done chan struct{}
}

// NewEndpoints returns a set without any endpoint.
func NewEndpoints(log *slog.Logger) *Endpoints {
	return &Endpoints{log: log, open: map[string]*endpoint{}}
}

// Set serves handler under the path of an URL http://HOST:PORT/PATH; an empty URL ends it. defaultPort is for URLs without one.
func (e *Endpoints) Set(name, rawURL, defaultPort string, handler func(path string) http.Handler) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	old := e.open[name]
	if old != nil && old.url == rawURL {
		return nil
	}
	if rawURL == "" {
		e.end(name)
		return nil
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return fmt.Errorf("read %s endpoint %q: %w", name, rawURL, err)
	}
	port := u.Port()
	if port == "" {
		port = defaultPort
	}
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return fmt.Errorf("open %s endpoint %s: %w", name, rawURL, err)
	}
	e.end(name)
	e.open[name] = e.serve(name, rawURL, ln, handler(u.Path))
	return nil
}

func (e *Endpoints) serve(name, rawURL string, ln net.Listener, h http.Handler) *endpoint {
	ctx, stop := context.WithCancel(context.Background())
	ep := &endpoint{url: rawURL, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(ep.done)
		if err := telemetry.Serve(ctx, ln, h); err != nil && !errors.Is(err, http.ErrServerClosed) {
			e.log.Error("serve endpoint", "endpoint", name, "error", err)
		}
	}()
	return ep
}

func (e *Endpoints) end(name string) {
	if old := e.open[name]; old != nil {
		old.stop()
		<-old.done
		delete(e.open, name)
	}
}

// Close ends all endpoints.
func (e *Endpoints) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name := range e.open {
		e.end(name)
	}
}

// JSON serves what a function returns as JSON, to GET only.
func JSON(value func() any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !reads(r) {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "use GET", http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(value())
	})
}

// reads tells whether a request only reads.
func reads(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }
