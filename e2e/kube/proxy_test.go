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
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

// proxy stands between an operator and the API server. It passes requests on under the operator's name, unless there is a fault to make.
type proxy struct {
	address string
	pass    http.Handler
	// stage is in the name or the namespace of all that belongs to the stage. All operators say something on objects that belong to no class, such
	// as the routes that other tests leave.
	stage string

	mu     sync.Mutex
	server *http.Server
	fault  fault
	writes []write
}

// fault answers a request in the place of the API server, or passes it on.
type fault func(w http.ResponseWriter, r *http.Request, pass http.Handler)

// write is a change that was asked for.
type write struct {
	at   time.Time
	what string
}

func (w write) String() string { return w.at.Format("15:04:05.000 ") + w.what }

// behindProxy restarts the operator of a stage behind a proxy of its own.
func (s *stage) behindProxy() *proxy {
	s.Helper()
	s.stop()
	p := s.proxied()
	s.start()
	return p
}

// proxied has operators of the stage reach the API server by a proxy from now on.
func (s *stage) proxied() *proxy {
	s.Helper()
	port, err := bed.FreePort()
	s.must(err)
	transport, err := rest.TransportFor(s.agent.Config)
	s.must(err)
	target, err := url.Parse(s.agent.Config.Host)
	s.must(err)
	p := &proxy{address: fmt.Sprintf("%s:%d", bed.Loopback, port), stage: s.name}
	p.pass = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1,                         // watches
		ErrorLog:      log.New(io.Discard, "", 0), // operators are killed here
	}
	s.agent.Kubeconfig = filepath.Join(s.dir, fmt.Sprintf("proxy-%d.kubeconfig", port))
	s.must(os.WriteFile(s.agent.Kubeconfig, fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: proxy,
clusters: [{name: proxy, cluster: {server: "http://%s"}}], contexts: [{name: proxy, context: {cluster: proxy, user: nobody}}], users: [{name: nobody}]}`, p.address), 0o600))
	s.must(p.up())
	s.Cleanup(p.down)
	return p
}

// up lets connections in.
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

// down cuts all connections, and refuses others until up.
func (p *proxy) down() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server.Close()
}

// make makes a fault of all requests from now on; nil ends it.
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
	}
	p.mu.Unlock()
	if f == nil {
		f = pass
	}
	f(w, r, p.pass)
}

func pass(w http.ResponseWriter, r *http.Request, pass http.Handler) { pass.ServeHTTP(w, r) }

// since returns the writes that were asked for since, held ones included.
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

// isWrite tells whether a request changes an object of the stage that people or dataplanes rely on: leases and events come and go.
func (p *proxy) isWrite(r *http.Request) bool {
	for _, other := range []string{"/leases", "/events", "reviews"} {
		if strings.Contains(r.URL.Path, other) {
			return false
		}
	}
	if setsRight(r) {
		return false
	}
	return r.Method != http.MethodGet && r.Method != http.MethodHead && strings.Contains(r.URL.Path, p.stage)
}

// setsRight tells whether a request says of an object without class that it is used. All operators say who uses these, and those of other tests
// catch up after the outages that they are made to bear: what they say too early of an object of this stage, every other operator sets right.
func setsRight(r *http.Request) bool {
	shared := slices.ContainsFunc([]string{"/gatewayconfigs/", "/dataplanes/", "/staticservices/"}, func(kind string) bool { return strings.Contains(r.URL.Path, kind) })
	if r.Method != http.MethodPut || !shared || !strings.HasSuffix(r.URL.Path, "/status") {
		return false
	}
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	return err == nil && bytes.Contains(body, []byte(`"type":"InUse","status":"True"`))
}

// holdWrites holds a write, and all that come after it, until their clients go. It returns what is closed when the first one is held.
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
		io.Copy(io.Discard, r.Body) // the server notices that a client goes only when it has read all
		<-r.Context().Done()
	})
	return held
}
