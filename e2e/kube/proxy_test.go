package kube

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// proxy is an HTTP proxy between an operator and the API server. It forwards requests with the operator's identity, and
// can inject faults.
type proxy struct {
	address string
	pass    http.Handler
	// name occurs in the name or namespace of every object of the test. It filters out writes to objects of other
	// tests: an operator writes statuses of all Dataplanes.
	name string

	mu     sync.Mutex
	server *http.Server
	fault  fault
	writes []write
	// writing is the number of write requests that the API server has not answered yet.
	writing int
}

// fault responds to a request in place of the API server, or forwards it.
type fault func(w http.ResponseWriter, r *http.Request, pass http.Handler)

// write is a write request.
type write struct {
	at   time.Time
	what string
}

func (w write) String() string { return w.at.Format("15:04:05.000 ") + w.what }

// behindProxy restarts the operator behind a new proxy.
func (s *installation) behindProxy() *proxy {
	s.Helper()
	s.stop()
	p := s.proxied()
	s.start()
	return p
}

// proxied makes later operators use a proxy.
func (s *installation) proxied() *proxy {
	s.Helper()
	port := harnesstest.Port(s.T)
	transport, err := rest.TransportFor(s.access.Config)
	s.must(err)
	target, err := url.Parse(s.access.Config.Host)
	s.must(err)
	p := &proxy{address: fmt.Sprintf("%s:%d", harness.Loopback, port), name: s.name}
	p.pass = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1,                         // forward watch events at once
		ErrorLog:      log.New(io.Discard, "", 0), // killed operators would cause errors
	}
	s.access.Kubeconfig = filepath.Join(s.dir, fmt.Sprintf("proxy-%d.kubeconfig", port))
	s.must(os.WriteFile(s.access.Kubeconfig, fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: proxy,
clusters: [{name: proxy, cluster: {server: "http://%s"}}], contexts: [{name: proxy, context: {cluster: proxy, user: nobody}}], users: [{name: nobody}]}`, p.address), 0o600))
	s.must(p.up())
	s.Cleanup(p.down)
	return p
}

// up accepts connections.
func (p *proxy) up() error {
	ln, err := net.Listen("tcp", p.address)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = &http.Server{Handler: p}
	go p.server.Serve(ln)
	return nil
}

// down closes all connections and refuses new connections until up.
func (p *proxy) down() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server.Close()
}

// make applies a fault to all later requests. nil removes it.
func (p *proxy) make(f fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	f := p.fault
	if p.isWrite(r) {
		p.writes = append(p.writes, write{time.Now(), r.Method + " " + r.URL.Path})
		p.writing++
		defer func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.writing--
		}()
	}
	p.mu.Unlock()
	if f == nil {
		f = pass
	}
	f(w, r, p.pass)
}

func pass(w http.ResponseWriter, r *http.Request, pass http.Handler) { pass.ServeHTTP(w, r) }

// since returns the write requests since a time, including held requests.
func (p *proxy) since(t time.Time) (list []write) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.writes {
		if w.at.After(t) {
			list = append(list, w)
		}
	}
	return list
}

// busy reports whether a write request is in progress.
func (p *proxy) busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.writing > 0
}

// isWrite reports whether a request writes an object of the test, other than leases and events.
func (p *proxy) isWrite(r *http.Request) bool {
	for _, other := range []string{"/leases", "/events", "reviews"} {
		if strings.Contains(r.URL.Path, other) {
			return false
		}
	}
	return r.Method != http.MethodGet && r.Method != http.MethodHead && strings.Contains(r.URL.Path, p.name)
}

// leaseReleased returns a channel that is closed when a replica sets the holder of its Lease to another identity than
// its own.
func (p *proxy) leaseReleased(identity string) <-chan struct{} {
	released := make(chan struct{})
	var once sync.Once
	p.make(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/leases/") {
			body, err := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			if err == nil && !strings.Contains(string(body), `"holderIdentity":"`+identity+`"`) {
				once.Do(func() { close(released) })
			}
		}
		pass.ServeHTTP(w, r)
	})
	return released
}

// holdWrites blocks the write with the given number, and all later writes, until their clients disconnect. The returned
// channel is closed when the first write is blocked.
func (p *proxy) holdWrites(from int) <-chan struct{} {
	held := make(chan struct{})
	var mu sync.Mutex
	seen := 0
	p.make(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if !p.isWrite(r) {
			pass.ServeHTTP(w, r)
			return
		}
		mu.Lock()
		seen++
		n := seen
		if n == from {
			close(held)
		}
		mu.Unlock()
		if n < from {
			pass.ServeHTTP(w, r)
			return
		}
		io.Copy(io.Discard, r.Body) // the server detects a disconnect only after it has read the body
		<-r.Context().Done()
	})
	return held
}
