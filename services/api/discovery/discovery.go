// Package discovery is the protocol between the operator and the clients of dataplane configs: dataplanes and auth
// services.
//
// The wire protocol is compatible with existing dataplanes and operators. It is HTTP with one upgrade:
//
//	GET /api/v1/configs                     {"version":"v1","items":[CONFIG…]}
//	GET /api/v1/configs/NAMESPACE           the same, of one namespace
//	GET /api/v1/configs/NAMESPACE/NAME      CONFIG, or 404 {"code":404,"message":"Config not found for ID NAMESPACE/NAME"}
//	GET /api/v1/license                     all features, subscription "free"
//
// With ?watch=true (and &node=NODE) the server sends configs over a WebSocket: first the current ones, then each
// change. Each text frame contains one CONFIG, even if the watch selects several. A watch of a config that does not
// exist waits for it. Only the frame of its zero config (config.Zero) deletes a config. An error, a lost connection, or
// an id that is missing after a reconnect does not delete it. The client sends a ping every 5 s, closes the connection
// after 8 s of silence, and reconnects after a delay that grows from 0.2 to 10 s.
//
// Dataplanes of this release send text frames {"report":{…}} with their state to the server. Other servers ignore them.
//
// A client with Options.Handler announces itself with {"serves":{…}}. Such a client gets frames {"request":{…}} too,
// and answers each with {"response":{…}}; see Server.Ask.
//
// A dataplane pod whose reports have the field peer gets frames {"peers":{…}} too, see Peers.
//
// A client of several configs with the query parameter list gets frames {"list":{…}} too, see List.
//
// A client of one config with the query parameter delta gets frames {"delta":{…}} too, see config.Delta: the difference
// from the last config of the stream. The first config of a stream, and each config of which the delta is not much
// shorter, is sent whole. If a delta does not match, the client sends {"whole":{}}, and gets the whole config. Clients
// and servers without this feature ignore the parameter and these frames.
//
// Both sides keep only the newest state of a config. A slow reader skips older states and does not delay other readers.
//
// # Clients
//
// Open and Source are the client, for programs outside of this repository too. Source.Load reads the configs once;
// Source.Watch sends each change, and reconnects until its context ends. In a cluster a client needs the certificates
// in the ConfigMap stunner-discovery-ca, and a ServiceAccount token with the audience stunner-discovery: a dataplane
// pod reads the config of its own Gateway, and an account in the operator's flag --discovery-readers reads those of all
// Gateways, in the form of config.Config.ForAuth or, marked :whole, with all fields.
//
// The package needs neither a Kubernetes client nor another package of this repository than config, credential,
// inspection and ratelimit.
//
// # Files
//
//	server.go stream.go       HTTP and WebSocket of the server; openapi/discovery.yaml is the contract
//	registry.go published.go  published configs and watchers of them
//	tombstones.go             deleted configs
//	deltas.go                 differences from the last config of a stream
//	list.go                   whether all configs have been sent
//	reports.go                reports of dataplanes
//	reportsource.go           reports of another replica of the operator
//	requests.go               requests of the server to clients
//	answers.go                answers of clients to requests
//	client.go watch.go        the client
//	inspector.go              requests of clients to the inspection API of the operator
//	file.go                   a file as the source of configs
//	grant.go                  authorization of clients
//	limit.go                  limits of streams
//	frames.go                 rate limit of one config
//	peers.go                  the list of the pods of a Gateway that forward to each other
//	peerlists.go              delivery of these lists
package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// Source is a source of configs: a discovery server or a file.
type Source interface {
	// Watch sends every change until ctx ends, and then closes the channel. If the reader is slow, it gets only the
	// newest state of each id.
	Watch(ctx context.Context) <-chan Event
	// Load returns the current configs.
	Load(ctx context.Context) ([]Loaded, error)
	// String names the source for logs. It contains no secrets.
	String() string
}

// Loaded is a valid and defaulted config.
type Loaded struct {
	config.Config
	// Revision is the revision of the config, as its source computes it.
	Revision string
	// Unknown lists fields of the config that this release does not define.
	Unknown []string
}

// Event is an event of Source.Watch.
type Event struct {
	// ID is NAMESPACE/NAME, the admin.name of the config. It may be empty if Err is set.
	ID string
	// Config is valid and defaulted, unless Deleted or Err is set.
	Config config.Config
	// Revision is the revision of the received frame, including the fields that this release does not define.
	Revision string
	// Deleted is set if the source has explicitly deleted the config. An error never causes a deletion.
	Deleted bool
	// Connected is set for a new connection to the source. All other fields except Ahead and List are then empty.
	Connected bool
	// Ahead is how far the clock of this process was ahead of the source's clock when it connected, accurate to about
	// one second. It is nil if the source does not send its time.
	Ahead *time.Duration
	// Err is a rejected config or a lost connection. The current config stays in force.
	Err error
	// Unknown lists fields of Config that this release does not define.
	Unknown []string
	// List says whether the source has sent all configs. If List is set, all other fields are empty, with one
	// exception: if Connected is set, the source has not sent all configs of this connection yet. List is nil at a
	// connection to a source that does not report it. It is sent only to a client with Options.Lists.
	List *List
	// Peers is a new list of peers. All other fields except ID are then empty. It is sent only to a client whose
	// reports have a Peer.
	Peers *Peers
}

// Report is the state of a dataplane, sent over the connection of its config.
type Report struct {
	ID  string `json:"id"`
	Pod string `json:"pod"`
	// Revision is the Event.Revision of the config.
	Revision    string `json:"revision"`
	Accepted    bool   `json:"accepted"`
	Error       string `json:"error,omitempty"`
	Allocations int    `json:"allocations"`
	Draining    bool   `json:"draining,omitempty"`
	// Offload says why media is not forwarded in the kernel as the config requests. It is empty if media is.
	Offload string `json:"offload,omitempty"`
	// Peer is the address ADDRESS:PORT at which the pod receives datagrams that other pods of the Gateway forward, and
	// Sender the text of its Sender. Both are empty if the pod does not take part in forwarding.
	Peer   string `json:"peer,omitempty"`
	Sender string `json:"sender,omitempty"`
}

// Reporter is a Source that accepts reports.
type Reporter interface {
	// Report queues a report. If several reports of one id are queued, only the newest is sent. Report never blocks.
	Report(Report)
}

// Options configures a Source.
type Options struct {
	// ID selects the configs: "" selects all, "NAMESPACE/" the configs of a namespace, and "NAMESPACE/NAME" one config.
	ID string
	// Node is the name of the node on which the reader runs. It is sent to the server, which may insert the external
	// address of the node into configs.
	Node string
	// TokenFile is the file with the bearer token. It is read again for each connection.
	TokenFile string
	// Log is the log for changes of the connection; nil means that nothing is logged.
	Log *slog.Logger
	// CAFile is the file with the PEM certificates with which the server is verified; empty means the certificates of
	// the system.
	CAFile string
	// ServerName is the name that the certificate of the server must have; empty means the host of the origin.
	ServerName string
	// Lookup returns the values of the placeholders that only a file may contain, see config.ParseWith. It is not used
	// for a discovery server. If it is nil, placeholders in the place of numbers are an error.
	Lookup func(name string) string
	// Handler answers requests of the server about this process, see Server.Ask. It is called for at most two requests
	// at a time, and has four seconds for each. Its answers are JSON; a text with an error status is sent as
	// inspection.Error. Nil means that the server sends no requests.
	Handler http.Handler
	// Lists makes Watch send Event.List, if ID selects several configs.
	Lists bool
	// Deltas makes Watch request deltas, if ID selects one config: if the config changes, a server of this release then
	// sends the difference only, and Event.Config shares the lists that have not changed with the previous config. The
	// reader must not modify them.
	Deltas bool
	// Pod is the name of this process, and Kind its kind, for a client with a Handler.
	Pod  string
	Kind inspection.Kind
}

// Open returns the source for an origin: a file path, file://PATH, http(s)://…, ws(s)://… or HOST:PORT. It does not
// connect. The path of a URL may select configs, and must then agree with o.ID. Origins with https and wss always use
// TLS.
func Open(origin string, o Options) (Source, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	scheme, rest, isURL := strings.Cut(origin, "://")
	switch {
	case origin == "":
		return nil, errors.New("open config source: no origin: give a file, a URL or HOST:PORT")
	case origin == "k8s":
		return nil, errors.New(
			"open config source k8s: finding the discovery server through a kubeconfig is not supported: give its URL")
	case isURL && scheme == "file":
		return newFile(rest, o), nil
	case isURL:
		return openURL(origin, o)
	case isHostPort(origin):
		return openURL("http://"+origin, o)
	}
	return newFile(origin, o), nil
}

// schemes maps schemes of origins to schemes of requests.
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

// wantedID returns the selector for a path: NAMESPACE/ for /NAMESPACE, and NAMESPACE/NAME for /NAMESPACE/NAME.
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

// selector selects configs: "" selects all, "NAMESPACE/" the configs of a namespace, and "NAMESPACE/NAME" one config.
type selector string

// matches reports whether the selector selects id.
func (s selector) matches(id string) bool {
	return s == "" || string(s) == id || strings.HasSuffix(string(s), "/") && strings.HasPrefix(id, string(s))
}

// one reports whether the selector can select only one id.
func (s selector) one() bool { return s != "" && !strings.HasSuffix(string(s), "/") }

// selectors returns all selectors that select id.
func selectors(id string) []selector {
	namespace, _, _ := strings.Cut(id, "/")
	return []selector{"", selector(namespace + "/"), selector(id)}
}
