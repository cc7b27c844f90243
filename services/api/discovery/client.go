package discovery

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// Bounds of the data that a client reads from a server and from files, and of the time that it waits.
const (
	frameLimit  = 8 << 20
	listLimit   = 256 << 20
	tokenLimit  = 64 << 10
	loadTimeout = 30 * time.Second
	dialTimeout = 5 * time.Second
)

// client is the Source and Reporter for a discovery server.
type client struct {
	base      url.URL
	want      selector
	node      string
	tokenFile string
	caFile    string
	// serverName is the name in the certificate of the server; empty means the host of base.
	serverName string
	// lists is set if the client requests Lists.
	lists bool
	// deltas is set if the client requests deltas.
	deltas bool
	log    *slog.Logger
	// dial is net.Dialer.DialContext.
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu sync.Mutex
	// reports contains the newest report of each id. They are sent again at the start of each connection, because a
	// server drops the reports of a lost connection.
	reports map[string]Report
	// answers is nil if the client answers no requests.
	answers *answerer
	// outgoing is the queue of the reports to send over the current connection.
	outgoing *latestQueue[Report]
}

func newClient(base url.URL, want selector, o Options) *client {
	return &client{
		base: base, want: want, node: o.Node, tokenFile: o.TokenFile, caFile: o.CAFile,
		serverName: o.ServerName,
		lists:      o.Lists && !want.one(),
		deltas:     o.Deltas && want.one(),
		log:        o.Log,
		dial:       (&net.Dialer{Timeout: dialTimeout}).DialContext,
		reports:    map[string]Report{},
		answers:    newAnswerer(o),
	}
}

// String returns the URL without its query.
func (c *client) String() string {
	return c.base.JoinPath(string(c.want)).String()
}

// address returns the URL of a request.
func (c *client) address(watch bool) string {
	u := c.base.JoinPath(strings.TrimSuffix(string(c.want), "/"))
	query := url.Values{}
	if watch {
		query.Set("watch", "true")
	}
	if watch && c.lists {
		query.Set(listParameter, "true")
	}
	if watch && c.deltas {
		query.Set(deltaParameter, "1")
	}
	if c.node != "" {
		query.Set("node", c.node)
	}
	u.RawQuery = query.Encode()
	return u.String()
}

// Load returns the current configs. If some configs of a list are invalid, it returns the valid configs with an error.
func (c *client) Load(ctx context.Context) ([]Loaded, error) {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	data, err := c.get(ctx)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", c, err)
	}
	configs, err := readAll(data, c.want, nil)
	for _, found := range configs {
		if !c.want.matches(found.Admin.Name) {
			return nil, fmt.Errorf("load %s: the server sent %q instead", c, found.Admin.Name)
		}
	}
	if err != nil {
		return configs, fmt.Errorf("load %s: %w", c, err)
	}
	return configs, nil
}

func (c *client) get(ctx context.Context) ([]byte, error) {
	httpClient, header, err := c.prepare()
	if err != nil {
		return nil, err
	}
	defer httpClient.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.address(false), nil)
	if err != nil {
		return nil, err
	}
	request.Header = header
	response, err := httpClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the server answers %s", response.Status)
	}
	limit := int64(frameLimit)
	if !c.want.one() {
		limit = listLimit
	}
	return readLimited(response.Body, limit)
}

func readLimited(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("more than %d bytes", limit)
	}
	return data, err
}

// prepare returns the HTTP client and the header for one connection. It reads token and certificates for each
// connection, because both are rotated.
func (c *client) prepare() (*http.Client, http.Header, error) {
	header, err := authorization(c.tokenFile)
	if err != nil {
		return nil, nil, err
	}
	security := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.serverName}
	if c.caFile != "" {
		pem, err := os.ReadFile(c.caFile)
		if err != nil {
			return nil, nil, fmt.Errorf("read CA certificates: %w", err)
		}
		security.RootCAs = x509.NewCertPool()
		if !security.RootCAs.AppendCertsFromPEM(pem) {
			return nil, nil, fmt.Errorf("read CA certificates: no PEM certificate in %s", c.caFile)
		}
	}
	return httpClient(c.dial, security), header, nil
}

// httpClient returns a client for one connection. It follows no redirects, because a redirect could send the token to
// another host, or without TLS.
func httpClient(
	dial func(ctx context.Context, network, address string) (net.Conn, error), security *tls.Config,
) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            dial,
			TLSClientConfig:        security,
			TLSHandshakeTimeout:    dialTimeout,
			ResponseHeaderTimeout:  dialTimeout,
			MaxResponseHeaderBytes: 64 << 10,
			DisableKeepAlives:      true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// authorization returns the header with the bearer token in a file, or an empty header if file is "".
func authorization(file string) (http.Header, error) {
	header := http.Header{}
	if file == "" {
		return header, nil
	}
	token, err := readToken(file)
	if err != nil {
		return nil, err
	}
	header.Set("Authorization", "Bearer "+token)
	return header, nil
}

func readToken(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	defer func() { _ = f.Close() }()
	data, err := readLimited(f, tokenLimit)
	if err != nil {
		return "", fmt.Errorf("read token %s: %w", file, err)
	}
	token := string(bytes.TrimSpace(data))
	if token == "" || strings.ContainsAny(token, " \r\n\t") {
		return "", fmt.Errorf("read token %s: the file must hold one token", file)
	}
	return token, nil
}

// Watch connects, and reconnects after each lost connection, until ctx ends.
func (c *client) Watch(ctx context.Context) <-chan Event {
	out := make(chan Event)
	w := newWatch(c.String(), c.want)
	go w.run(ctx, out)
	go c.follow(ctx, w)
	return out
}

func (c *client) follow(ctx context.Context, w *watch) {
	var delay backoff
	for ctx.Err() == nil {
		start := time.Now()
		err := c.connect(ctx, w)
		if ctx.Err() != nil {
			return
		}
		w.lost(err)
		pause := delay.next(time.Since(start))
		if busy := (busyError{}); errors.As(err, &busy) {
			pause = busy.after + rand.N(busy.after/2)
		}
		c.log.DebugContext(ctx, "config source unreachable", "source", c.String(), "retry", pause)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// connect receives configs and sends reports over one connection until it ends.
func (c *client) connect(ctx context.Context, w *watch) error {
	httpClient, header, err := c.prepare()
	if err != nil {
		return err
	}
	s := newStream(ctx, clientKeepalive)
	defer s.close()
	conn, answer, err := websocket.Dial(s.ctx, c.address(true), &websocket.DialOptions{
		HTTPClient: httpClient, HTTPHeader: header, OnPingReceived: s.onPing, OnPongReceived: s.onPong,
	})
	if err != nil {
		return s.cause(busyWhen(err, answer))
	}
	s.use(conn, frameLimit)
	w.deltas = deltaReader{request: func(r wholeRequest) { c.requestWhole(s, r) }}
	w.connected(ahead(answer.Header, time.Now()), listOfAnswer(answer.Header))
	var workers sync.WaitGroup
	workers.Go(func() { s.cancel(s.keepAlive()) })
	workers.Go(func() { s.cancel(c.sendReports(s)) })
	pending, isRequest := newFrames(), c.answers.connection(s)
	workers.Go(func() { w.readFrom(s.ctx, pending) })
	for {
		data, err := s.read()
		switch {
		case err != nil:
			s.close()
			workers.Wait()
			w.receiveNewest(pending.takeAll())
			// A frame that is too long is rejected like any other invalid document, so that the error is reported.
			if errors.Is(err, websocket.ErrMessageTooBig) {
				w.reject("", fmt.Errorf("read config: more than %d bytes", frameLimit))
			}
			return err
		case isRequest(data):
		case isPeers(data):
			c.receivePeers(w, data)
		case c.lists && isList(data):
			w.receiveList(data)
		case c.want.one():
			pending.put(data)
		default: // parsed at once, so that a frame of one config does not delay frames of others
			w.receive(data, config.RevisionOf(data))
		}
	}
}

// requestWhole asks the server for the whole config.
func (c *client) requestWhole(s *stream, r wholeRequest) {
	c.log.DebugContext(s.ctx, "delta cannot be applied, request the whole config", "source", c.String(), "only", r.Only)
	data, err := json.Marshal(clientFrame{Whole: &r})
	if err == nil {
		err = s.send(data)
	}
	if err != nil {
		s.cancel(err)
	}
}

// ahead returns how far now is ahead of the Date header of a server, in whole seconds. It returns nil if the header is
// missing or invalid.
func ahead(answer http.Header, now time.Time) *time.Duration {
	date, err := http.ParseTime(answer.Get("Date"))
	if err != nil {
		return nil
	}
	return new(now.Sub(date).Truncate(time.Second))
}

// longestRetry is the maximum delay that a client accepts in the Retry-After header of a server.
const longestRetry = 30 * time.Second

// busyError is the error of a response with a Retry-After header.
type busyError struct {
	error
	after time.Duration
}

// Unwrap returns the error without the delay.
func (e busyError) Unwrap() error { return e.error }

// busyWhen adds the Retry-After of a response to an error, if it is a number of seconds (RFC 9110 §10.2.3).
func busyWhen(err error, answer *http.Response) error {
	if answer == nil {
		return err
	}
	seconds, bad := strconv.ParseUint(answer.Header.Get("Retry-After"), 10, 16)
	if bad != nil || seconds == 0 {
		return err
	}
	return busyError{err, min(time.Duration(seconds)*time.Second, longestRetry)}
}

// Report implements Reporter. It sends a report over the current connection, or at the start of the next connection.
func (c *client) Report(r Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reports[r.ID] = r
	if c.outgoing != nil {
		c.outgoing.put(r.ID, r)
	}
}

// sendReports sends the newest report of each id, and then each new report. If the client answers requests, it
// announces that before the first report.
func (c *client) sendReports(s *stream) error {
	if err := c.answers.announce(s); err != nil {
		return err
	}
	outgoing := newLatestQueue[Report]()
	c.mu.Lock()
	for id, r := range c.reports {
		outgoing.put(id, r)
	}
	c.outgoing = outgoing
	c.mu.Unlock()
	for {
		r, err := outgoing.take(s.ctx)
		if err != nil {
			return err
		}
		data, err := json.Marshal(clientFrame{Report: &r})
		if err != nil {
			return err
		}
		if err := s.send(data); err != nil {
			return err
		}
	}
}

// The delays between connections. They have jitter, so that clients do not all reconnect at once.
const (
	firstDelay = 200 * time.Millisecond
	lastDelay  = 10 * time.Second
)

// backoff is an exponential backoff.
type backoff struct{ delay time.Duration }

// next returns the delay before the next connection. held is how long the last connection has lasted: a long connection
// resets the delay to the shortest one.
func (b *backoff) next(held time.Duration) time.Duration {
	if b.delay == 0 || held > lastDelay {
		b.delay = firstDelay
	}
	half := b.delay / 2
	pause := half + rand.N(half)
	b.delay = min(2*b.delay, lastDelay)
	return pause
}
