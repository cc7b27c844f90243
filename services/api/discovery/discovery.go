// Package discovery carries dataplane configs from the operator to whoever runs or reads them.
//
// The wire protocol, which existing dataplanes and operators speak, is HTTP with one upgrade:
//
//	GET /api/v1/configs                     {"version":"v1","items":[CONFIG…]}
//	GET /api/v1/configs/NAMESPACE           the same, of one namespace
//	GET /api/v1/configs/NAMESPACE/NAME      CONFIG, or 404 {"code":404,"message":"Config not found for ID NAMESPACE/NAME"}
//	GET /api/v1/license                     every feature is on, for free
//
// With ?watch=true (and &node=NODE) the configs come over a WebSocket instead: first those that are there, then each that changes. A
// text frame is one bare CONFIG, on lists as well. A watch for what does not exist waits. A config is deleted by the frame of its zero config
// (config.Zero) and by nothing else: neither an error, nor a lost connection, nor an id that is missing after a reconnect
// means that something was deleted. The client pings every 5 s, leaves a server from which it heard nothing for 8 s, and comes back
// after a delay that grows from 0.2 to 10 s.
//
// In the other direction, dataplanes of this release send text frames {"report":{…}} about themselves; other servers ignore them.
//
// Only the newest state of a config matters, on either side: who reads slowly skips what is outdated, and never holds up the others.
package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// Source is where configs come from: a discovery server, or a file.
type Source interface {
	// Watch sends every change until ctx ends, then closes the channel. Only the newest state of an id matters: a slow reader
	// skips older ones.
	Watch(ctx context.Context) <-chan Event
	// Load returns the configs that are there now.
	Load(ctx context.Context) ([]Loaded, error)
	// String names the source for logs; it holds no secrets.
	String() string
}

// Loaded is a config that was read once; it is valid and defaulted.
type Loaded struct {
	config.Config
	// Revision names the config as its source does.
	Revision string
	// Unknown holds the fields of the config that this release does not know.
	Unknown []string
}

// Event is one thing that a watch has to say.
type Event struct {
	// ID is NAMESPACE/NAME, the admin.name of the config. It may be empty when Err is set.
	ID string
	// Config is valid and defaulted, unless Deleted or Err is set.
	Config config.Config
	// Revision names Config as its source does: that of the frame which brought it, with all that this release does not know.
	Revision string
	// Deleted is an explicit deletion; it is never derived from an error.
	Deleted bool
	// Connected marks a pure connection-state event: the source has connected, again or for the first time.
	Connected bool
	// Ahead is by how much the clock of this process was ahead of the source's when it connected, to the second or so; nil when the source does
	// not tell the time.
	Ahead *time.Duration
	// Err is a rejected config or a lost connection; nothing has changed.
	Err error
	// Unknown holds the fields of Config that this release does not know.
	Unknown []string
}

// Report is what a dataplane tells about itself over the connection that brings its config.
type Report struct {
	ID  string `json:"id"`
	Pod string `json:"pod"`
	// Revision is that of the Event which brought the config.
	Revision    string `json:"revision"`
	Accepted    bool   `json:"accepted"`
	Error       string `json:"error,omitempty"`
	Allocations int    `json:"allocations"`
	Draining    bool   `json:"draining,omitempty"`
}

// Reporter is a Source that can talk back.
type Reporter interface {
	// Report sends a report; of several that wait, the newest of an id wins. It never blocks.
	Report(Report)
}

// Options says what to read and how.
type Options struct {
	// ID is the wanted config: "" for all, "NAMESPACE/" for those of a namespace, "NAMESPACE/NAME" for one.
	ID string
	// Node is the node that the reader runs on. It is told to the server, which may fill in node addresses by it; Server does not.
	Node string
	// TokenFile holds the bearer token; it is read again for each connection.
	TokenFile string
	// Log gets connection changes; nil means none.
	Log *slog.Logger
	// CAFile holds the PEM certificates that the server is checked against; empty means those of the system.
	CAFile string
	// Lookup replaces placeholders that stand in the place of numbers in a file, which a person writes for this process. Nil means that there are none.
	// See config.ParseWith.
	Lookup func(name string) string
}

// Open returns the source that origin names: a file path, file://PATH, http(s)://…, ws(s)://… or HOST:PORT. It does not
// connect. A URL may end in the path of the wanted config, which then has to agree with o.ID. With https and wss, the connection is
// TLS, always.
func Open(origin string, o Options) (Source, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	scheme, rest, isURL := strings.Cut(origin, "://")
	switch {
	case origin == "":
		return nil, errors.New("open config source: no origin: give a file, a URL or HOST:PORT")
	case origin == "k8s":
		return nil, errors.New("open config source k8s: finding the discovery server through a kubeconfig is not supported: give its URL")
	case isURL && scheme == "file":
		return newFile(rest, o), nil
	case isURL:
		return openURL(origin, o)
	case isHostPort(origin):
		return openURL("http://"+origin, o)
	}
	return newFile(origin, o), nil
}

// schemes maps the schemes of origins to those of requests.
var schemes = map[string]string{"http": "http", "ws": "http", "https": "https", "wss": "https"}

const apiPath = "/api/v1/configs"

func openURL(origin string, o Options) (Source, error) {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" {
		return nil, errors.New("open config source: unreadable URL: write http://HOST:PORT")
	}
	scheme, ok := schemes[u.Scheme]
	if !ok {
		return nil, fmt.Errorf("open config source: unknown scheme %q: use http, https, ws, wss or file", u.Scheme)
	}
	if u.User != nil {
		return nil, errors.New("open config source: no credentials in URLs: use a token file")
	}
	if u.Hostname() == "" {
		u.Host = net.JoinHostPort("127.0.0.1", u.Port())
	}
	prefix, id, named := strings.Cut(u.Path, apiPath)
	id = wantedID(id)
	if !named {
		id = o.ID
	} else if o.ID != "" && o.ID != id {
		return nil, fmt.Errorf("open config source: the URL names %q, but %q is wanted: give one of them", id, o.ID)
	}
	base := url.URL{Scheme: scheme, Host: u.Host, Path: strings.TrimRight(prefix, "/") + apiPath}
	return newClient(base, selector(id), o), nil
}

// wantedID turns the rest of a path into an id: /NAMESPACE into NAMESPACE/, /NAMESPACE/NAME into NAMESPACE/NAME.
func wantedID(path string) string {
	id := strings.Trim(path, "/")
	if id != "" && !strings.Contains(id, "/") {
		id += "/"
	}
	return id
}

func isHostPort(s string) bool {
	host, port, err := net.SplitHostPort(s)
	n, notNumber := strconv.ParseUint(port, 10, 16)
	return err == nil && notNumber == nil && n > 0 && !strings.ContainsAny(host, "/\\")
}

// selector says which configs are meant: "" all, "NAMESPACE/" those of a namespace, "NAMESPACE/NAME" one.
type selector string

// matches tells whether id is meant.
func (s selector) matches(id string) bool {
	return s == "" || string(s) == id || strings.HasSuffix(string(s), "/") && strings.HasPrefix(id, string(s))
}

// one tells whether a single config is meant.
func (s selector) one() bool { return s != "" && !strings.HasSuffix(string(s), "/") }

// selectors are all selectors that mean id.
func selectors(id string) []selector {
	namespace, _, _ := strings.Cut(id, "/")
	return []selector{"", selector(namespace + "/"), selector(id)}
}
