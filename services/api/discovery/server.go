package discovery

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/api/ratelimit"
)

// Bounds of the load that one client can put on a server.
const (
	reportLimit      = 64 << 10
	reportsPerStream = 1_000
	// frameInterval is the average interval at which the frames of a client are read. The rate is limited because each
	// frame is parsed.
	frameInterval = 100 * time.Millisecond
	// frameBurst is the number of frames that are read at once.
	frameBurst = 20
	// maxSources is the number of source prefixes with a rate limit of their own at a time.
	maxSources = 10_000
)

// ServerOptions configures a Server.
type ServerOptions struct {
	// Log is the log for connects, disconnects and refusals of clients; nil means that nothing is logged. Configs are
	// never logged.
	Log *slog.Logger
	// Authorize returns the grant of the caller. If it returns an error, the caller may read nothing. If Authorize is
	// nil, every caller may read everything.
	Authorize func(*http.Request) (Grant, error)
	// Confirm is called periodically while a stream is open, to repeat its authorization. It may be slow. Nil means
	// Authorize.
	Confirm func(*http.Request) (Grant, error)
	// Permissive sends configs without credentials and private keys to callers that are not authorized, instead of
	// refusing them. A dataplane cannot start with such a config.
	Permissive bool
	// OnReport is called with every report, if not nil.
	OnReport func(Report)
	// OnServing is called when a process of a kind begins or ends to answer requests, if not nil. It must not block.
	OnServing func(pod string, kind inspection.Kind, serves bool)
	// OnRefusal is called with the reason of every refusal, if not nil.
	OnRefusal func(Refusal)
	// VerifyPeer returns an error if a pod of the Gateway id does not have the address that it reports as Report.Peer.
	// The peer is then ignored and counted as Misreported. Nil means that no address is verified.
	VerifyPeer func(id string, reported Peer) error
	// Limits bounds the load that clients can put on the server. Its zero value means the defaults.
	Limits Limits
}

// Server is the http.Handler of config discovery. It sends published configs to the clients that may read them, and
// collects the reports of dataplanes.
type Server struct {
	*registry
	*reportStore
	options ServerOptions
	mux     *http.ServeMux
	lines   ratelimit.Lines
	sources *ratelimit.Limiter[netip.Prefix]
	streams *streamLimiter
	served  servedStreams
	asking  asking
	peers   peerLists
}

// NewServer returns a server without configs.
func NewServer(o ServerOptions) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Limits = o.Limits.withDefaults()
	if o.Confirm == nil {
		o.Confirm = o.Authorize
	}
	s := &Server{
		registry:    newRegistry(),
		reportStore: newReportStore(o.OnReport),
		options:     o,
		mux:         http.NewServeMux(),
		sources:     ratelimit.New[netip.Prefix](float64(o.Limits.Rate), o.Limits.Burst, maxSources),
		streams:     newStreamLimiter(o.Limits),
		served:      servedStreams{streams: map[servedKey]*served{}, changed: o.OnServing},
		asking:      asking{running: map[string]int{}, ended: make(chan struct{})},
		peers:       peerLists{lists: map[string]*peerList{}},
	}
	s.mux.HandleFunc("GET "+apiPath, s.serveList)
	s.mux.HandleFunc("GET "+apiPath+"/{namespace}", s.serveList)
	s.mux.HandleFunc("GET "+apiPath+"/{namespace}/{name}", s.serveOne)
	s.mux.HandleFunc("GET "+reportsPath, s.serveReports)
	s.mux.HandleFunc("GET /api/v1/license", serveLicense)
	return s
}

// ServeHTTP serves the paths of the protocol.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if !s.withinRate(r.RemoteAddr, time.Now()) {
		s.refuse(w, r, TooManyRequests)
		return
	}
	if _, pattern := s.mux.Handler(r); pattern == "" { // the mux answers with 404 or 405
		s.count(NotFound, "remote", r.RemoteAddr)
	}
	s.mux.ServeHTTP(w, r)
}

// withinRate reports whether a request is within the rate limit of its source. remote is HOST:PORT.
func (s *Server) withinRate(remote string, now time.Time) bool {
	at, err := netip.ParseAddrPort(remote)
	if err != nil || at.Addr().IsLoopback() && !s.options.Limits.Loopback {
		return true
	}
	return s.sources.Take(ratelimit.SourcePrefix(at.Addr()), now) == 0
}

// serveList serves all configs, or the configs of a namespace.
func (s *Server) serveList(w http.ResponseWriter, r *http.Request) {
	var want selector
	if namespace := r.PathValue("namespace"); namespace != "" {
		want = selector(namespace + "/")
	}
	s.serve(w, r, want, func(grant Grant) {
		items := []json.RawMessage{}
		for _, p := range s.matching(want) {
			items = append(items, s.show(p, grant.scope(r)))
		}
		writeJSON(w, http.StatusOK, listOf[json.RawMessage]{config.Version, items})
	})
}

// listOf is the body of a list.
type listOf[T any] struct {
	Version string `json:"version"`
	Items   []T    `json:"items"`
}

// serveOne serves one config.
func (s *Server) serveOne(w http.ResponseWriter, r *http.Request) {
	want := selector(r.PathValue("namespace") + "/" + r.PathValue("name"))
	s.serve(w, r, want, func(grant Grant) {
		found := s.matching(want)
		if len(found) == 0 {
			s.count(NotFound, "remote", r.RemoteAddr, "wants", string(want))
			writeError(w, http.StatusNotFound, "Config not found for ID "+string(want))
			return
		}
		writeJSON(w, http.StatusOK, json.RawMessage(s.show(found[0], grant.scope(r))))
	})
}

// serve authorizes a request. It opens a stream for a watch, and calls answer for any other request.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, want selector, answer func(Grant)) {
	grant, ok := s.authorized(w, r, want)
	switch {
	case !ok:
	case isWatch(r) && grant.Absent:
		s.count(NotFound, "remote", r.RemoteAddr, "wants", grant.ID)
		writeError(w, http.StatusNotFound, "Config not found for ID "+grant.ID+": the Gateway does not exist")
	case isWatch(r):
		s.watch(w, r, want, grant)
	default:
		answer(grant)
	}
}

func serveLicense(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, struct {
		EnabledFeatures  []string `json:"enabledFeatures"`
		SubscriptionType string   `json:"subscriptionType"`
		LastUpdated      string   `json:"lastUpdated"`
		LastError        string   `json:"lastError"`
	}{
		EnabledFeatures:  []string{"UserQuota", "STUNServer", "DaemonSet", "RelayAddressDiscovery", "TURNOffload"},
		SubscriptionType: "free",
		LastUpdated:      "N/A",
	})
}

// serveReports serves the reports of the dataplanes that are connected to this server.
func (s *Server) serveReports(w http.ResponseWriter, r *http.Request) {
	grant, ok := s.authorized(w, r, "")
	switch {
	case !ok:
		return
	case grant.redacted: // reports hold no secrets, but they are not public
		s.refuse(w, r, Forbidden, "wants", reportsPath)
		return
	case !isWatch(r):
		writeJSON(w, http.StatusOK, listOf[Report]{"v1", s.Reports()})
		return
	}
	stream, leave := s.upgrade(w, r, grant)
	if stream == nil {
		return
	}
	defer leave()
	defer s.review(stream, r, "", grant).stop()
	var workers sync.WaitGroup
	defer workers.Wait()
	defer stream.close()
	workers.Go(func() {
		for { // the client sends no frames, but its pongs are read here
			if _, err := stream.read(); err != nil {
				stream.cancel(err)
				return
			}
		}
	})
	_ = s.FollowReports(stream.ctx, func(change ReportChange) error {
		data, err := json.Marshal(change)
		if err != nil {
			return err
		}
		return stream.send(data)
	})
}

// isWatch reports whether the parameter watch is set and not "false".
func isWatch(r *http.Request) bool {
	query := r.URL.Query()
	return query.Has("watch") && !strings.EqualFold(query.Get("watch"), "false")
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // fails only if the client has disconnected
}

func writeError(w http.ResponseWriter, code int, message string) {
	writeJSON(w, code, struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{code, message})
}

// watch sends the current configs and every change until the stream ends.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, want selector, grant Grant) {
	lists := wantsList(r.URL.Query(), want)
	if lists {
		w.Header().Set(listHeader, "true")
	}
	stream, leave := s.upgrade(w, r, grant)
	if stream == nil {
		return
	}
	defer leave()
	to := &watcher{
		readerScope: grant.scope(r), queue: newLatestQueue[published](), pod: grant.Pod, wantsList: lists,
	}
	to.deltas.enabled.Store(readsDeltas(r.URL.Query(), want, to.readerScope))
	log := s.options.Log.With("remote", r.RemoteAddr, "wants", string(want), "node", to.node)
	log.DebugContext(r.Context(), "config reader connected")
	to.review = s.review(stream, r, want, grant)
	to.deliver = func() { s.deliver(stream, to) }
	s.subscribe(want, to)
	err := s.receive(stream, want, grant, to, log)
	s.unsubscribe(want, to)
	to.review.stop()
	stream.close()
	to.delivering.Wait()
	s.forget(stream)
	log.DebugContext(r.Context(), "config reader disconnected", "error", err)
}

// upgrade opens a stream for a request, if the limits allow it. Otherwise it answers the request and returns nil. The
// caller must call leave at the end of the stream.
func (s *Server) upgrade(w http.ResponseWriter, r *http.Request, by Grant) (open *stream, leave func()) {
	open = newStream(r.Context(), serverKeepalive)
	if !s.streams.acquire(by, open) {
		open.close()
		s.refuse(w, r, TooManyStreams)
		return nil, nil
	}
	open.peerPings = true
	leave = func() {
		open.close()
		open.yield()
		s.streams.release(by, open)
	}
	conn, err := websocket.Accept(w, r,
		&websocket.AcceptOptions{OnPingReceived: open.onPing, OnPongReceived: open.onPong})
	if err != nil { // Accept has answered
		s.count(NoStream, "remote", r.RemoteAddr, "error", err)
		leave()
		return nil, nil
	}
	open.use(conn, reportLimit)
	return open, leave
}

// Streams returns the number of open streams.
func (s *Server) Streams() int { return s.streams.count() }

// deliver sends the queued configs of a watcher.
func (s *Server) deliver(stream *stream, to *watcher) {
	for {
		p, ok := to.next()
		if !ok {
			return
		}
		if err := stream.send(s.next(p, to)); err != nil {
			stream.cancel(err)
			return
		}
	}
}

// next returns the frame with which a watcher receives a config.
func (s *Server) next(p published, to *watcher) []byte {
	if !to.deltas.enabled.Load() {
		return s.show(p, to.readerScope)
	}
	return to.deltas.frame(p.formFor(to.readerScope, s.addressOf(to.node)))
}

// receive reads the reports and answers of a client until the stream ends. It ignores any other frame, which a client
// of another release may send. If the client sends frames faster than frameInterval allows, receive delays its reads.
func (s *Server) receive(stream *stream, want selector, grant Grant, to *watcher, log *slog.Logger) error {
	from, due := map[ReportKey]bool{}, time.Time{}
	answers := &answerReader{server: s, stream: stream, want: want, grant: grant, log: log}
	defer answers.close()
	peers := &peerReader{server: s, watcher: to, grant: grant, log: log}
	defer peers.close()
	for {
		data, err := stream.read()
		if err != nil {
			return err
		}
		now := time.Now()
		if due = due.Add(frameInterval); due.Before(now) {
			due = now
		}
		if ahead := due.Sub(now) - frameBurst*frameInterval; ahead > 0 {
			select {
			case <-stream.ctx.Done():
				return context.Cause(stream.ctx)
			case <-time.After(ahead):
			}
		}
		frame := parseClientFrame(data, stream.scratch())
		if answers.read(frame) {
			due = due.Add(-frameInterval) // an answer is free, because the server has requested it
		}
		if frame.Whole != nil && to.deltas.enabled.Load() {
			due = due.Add((wholeCost - 1) * frameInterval)
			s.sendWhole(want, to, *frame.Whole)
		}
		if frame.Report == nil {
			continue
		}
		r := *frame.Report
		if !want.matches(r.ID) || !from[r.key()] && len(from) >= reportsPerStream {
			s.count(Misreported, "from", grant.Pod)
			continue
		}
		mayJoin := peers.mayJoin(&r)
		if !grant.mayReport(r) {
			s.count(Misreported, "from", grant.Pod)
			log.DebugContext(stream.ctx, "report is about another pod", "id", r.ID, "pod", r.Pod, "from", grant.Pod)
			continue
		}
		from[r.key()] = true
		if mayJoin {
			peers.read(&r)
		}
		r.Revision = s.publishedRevision(r, to.readerScope)
		s.add(stream, r)
	}
}
