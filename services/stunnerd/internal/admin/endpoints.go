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
	"slices"
	"sync"
	"sync/atomic"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// Default ports of the endpoints, for URLs that name none.
const (
	HealthPort  = "8086"
	MetricsPort = "8080"
)

// Endpoint is an HTTP server as the config wants it.
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

// Endpoints are HTTP servers at addresses that the config names and may change. A change starts the new one before the old one stops, unless the old one
// has the port that it needs, and one that cannot start leaves the old one as it is.
type Endpoints struct {
	log *slog.Logger

	mu   sync.Mutex
	open map[string]*endpoint
}

// endpoint is an open one.
type endpoint struct {
	url, host, port string
	handler         atomic.Pointer[http.Handler]
	socket          *socket
	stop            context.CancelFunc
	done            chan struct{}
}

// ServeHTTP serves what the endpoint has at its address now.
func (ep *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	(*ep.handler.Load()).ServeHTTP(w, r)
}

// socket is a listening socket that can give up its port while its server lives.
type socket struct {
	net.Listener
	yielded, closed chan struct{}
	once            sync.Once
}

func listen(host, port string) (*socket, error) {
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, err
	}
	return &socket{Listener: ln, yielded: make(chan struct{}), closed: make(chan struct{})}, nil
}

// yield frees the port. The server goes on with the requests that it has, and does not notice.
func (s *socket) yield() {
	close(s.yielded)
	_ = s.Listener.Close()
}

// Accept waits for a connection; none comes to a socket that has yielded.
func (s *socket) Accept() (net.Conn, error) {
	conn, err := s.Listener.Accept()
	if err != nil {
		select {
		case <-s.yielded:
			<-s.closed
		default:
		}
	}
	return conn, err
}

// Close ends waiting.
func (s *socket) Close() error {
	s.once.Do(func() { close(s.closed) })
	if err := s.Listener.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// NewEndpoints returns a set without any endpoint.
func NewEndpoints(log *slog.Logger) *Endpoints {
	return &Endpoints{log: log, open: map[string]*endpoint{}}
}

// Set brings the endpoints to what is wanted, and ends all others. The error names those that could not be brought there, which stay as they are.
func (e *Endpoints) Set(wanted ...Endpoint) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	var moves []*move
	gone := maps.Clone(e.open)
	for _, w := range wanted {
		if w.URL == "" {
			continue
		}
		delete(gone, w.Name)
		m, err := e.reach(w)
		switch {
		case err != nil:
			errs = append(errs, err)
		case m != nil:
			moves = append(moves, m)
		}
	}
	for name, old := range gone {
		old.socket.yield()
		delete(e.open, name)
	}
	left := slices.Collect(maps.Values(gone))
	for _, m := range e.move(moves) {
		if m.err != nil {
			errs = append(errs, fmt.Errorf("open %s endpoint %s: %w", m.Name, m.URL, m.err))
		}
		if m.left != nil {
			left = append(left, m.left)
		}
	}
	end(left)
	return errors.Join(errs...)
}

// move is the way of an endpoint to an address that it does not have yet.
type move struct {
	Endpoint
	path, host, port string
	// old is what is open of it now, nil for nothing, and left what has to end.
	old, left *endpoint
	err       error
}

// reach gives an endpoint what it can have at its address, or returns the way to another one.
func (e *Endpoints) reach(w Endpoint) (*move, error) {
	old := e.open[w.Name]
	if old != nil && old.url == w.URL {
		return nil, nil
	}
	u, err := url.Parse(w.URL)
	if err != nil {
		return nil, fmt.Errorf("read %s endpoint %q: %w", w.Name, w.URL, err)
	}
	m := &move{Endpoint: w, path: u.Path, host: u.Hostname(), port: cmp.Or(u.Port(), w.Port), old: old}
	if old == nil || old.host != m.host || old.port != m.port {
		return m, nil
	}
	h := w.Handler(m.path)
	old.handler.Store(&h)
	old.url = w.URL
	return nil, nil
}

// move opens what can be opened, again for as long as one frees the port of another. What is left then waits for each other, or for itself, or for somebody
// else.
func (e *Endpoints) move(moves []*move) []*move {
	waiting := moves
	for tried := len(waiting) + 1; 0 < len(waiting) && len(waiting) < tried; {
		tried = len(waiting)
		waiting = slices.DeleteFunc(slices.Clone(waiting), e.beside)
	}
	e.swap(circle(waiting))
	return moves
}

// beside opens an endpoint beside all others, and reports whether that was possible.
func (e *Endpoints) beside(m *move) bool {
	var s *socket
	if s, m.err = listen(m.host, m.port); m.err != nil {
		return false
	}
	if m.old != nil {
		m.old.socket.yield()
	}
	e.arrive(m, s)
	return true
}

// arrive serves an endpoint at its new address.
func (e *Endpoints) arrive(m *move, s *socket) {
	m.left = m.old
	e.open[m.Name] = e.serve(m.Name, m.URL, m.host, m.port, s, m.Handler(m.path))
}

// circle finds those whose port another of them has, or they themselves: that of a new spelling of the same address, or two that swap.
func circle(waiting []*move) []*move {
	for {
		next := slices.DeleteFunc(slices.Clone(waiting), func(m *move) bool {
			return !slices.ContainsFunc(waiting, func(other *move) bool { return other.old != nil && other.old.port == m.port })
		})
		if len(next) == len(waiting) {
			return next
		}
		waiting = next
	}
}

// swap gives up all ports of a circle before it opens them anew: for a moment connections are refused. When one cannot be opened, all go back.
func (e *Endpoints) swap(moves []*move) {
	var failed error
	sockets := make([]*socket, len(moves))
	for _, m := range moves {
		if m.old != nil {
			m.old.socket.yield()
		}
	}
	for i, m := range moves {
		if sockets[i], m.err = listen(m.host, m.port); m.err != nil {
			failed = m.err
			break
		}
	}
	if failed == nil {
		for i, m := range moves {
			e.arrive(m, sockets[i])
		}
		return
	}
	for _, s := range sockets {
		if s != nil {
			_ = s.Close()
		}
	}
	for _, m := range moves {
		m.err = failed
		if m.old != nil {
			e.back(m)
		}
	}
}

// back serves an endpoint again where it was.
func (e *Endpoints) back(m *move) {
	old := m.old
	m.left = old
	s, err := listen(old.host, old.port)
	if err != nil {
		delete(e.open, m.Name)
		m.err = errors.Join(m.err, err)
		return
	}
	e.open[m.Name] = e.serve(m.Name, old.url, old.host, old.port, s, *old.handler.Load())
}

func (e *Endpoints) serve(name, rawURL, host, port string, s *socket, h http.Handler) *endpoint {
	ctx, stop := context.WithCancel(context.Background())
	ep := &endpoint{url: rawURL, host: host, port: port, socket: s, stop: stop, done: make(chan struct{})}
	ep.handler.Store(&h)
	go func() {
		defer close(ep.done)
		if err := telemetry.Serve(ctx, s, ep); err != nil && !errors.Is(err, http.ErrServerClosed) {
			e.log.Error("serve endpoint", "endpoint", name, "error", err)
		}
	}()
	return ep
}

// end lets running requests end, for some seconds.
func end(endpoints []*endpoint) {
	for _, ep := range endpoints {
		ep.stop()
	}
	for _, ep := range endpoints {
		<-ep.done
	}
}

// Close ends all endpoints.
func (e *Endpoints) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	end(slices.Collect(maps.Values(e.open)))
	clear(e.open)
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
