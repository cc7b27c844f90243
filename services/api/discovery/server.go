package discovery

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// Bounds of what a client can make a server do.
const (
	reportLimit      = 64 << 10
	reportsPerStream = 1_000
	reportText       = 1_024
	// reportEvery is how often a report of one dataplane about one config counts: the first at once, and of those that follow sooner the last.
	reportEvery = time.Second
	// frameEvery is how often a client is read from, frameBurst how many frames at once: each is parsed.
	frameEvery = 100 * time.Millisecond
	frameBurst = 20
)

// ServerOptions says how a Server behaves.
type ServerOptions struct {
	// Log gets the coming and going of clients; nil means none. Configs are never logged.
	Log *slog.Logger
	// Authorize says what the caller may read; an error means nothing. Nil lets everybody read everything.
	Authorize func(*http.Request) (Grant, error)
	// Confirm is asked now and then while a stream is open, and may take its time; nil means Authorize.
	Confirm func(*http.Request) (Grant, error)
	// Permissive shows those who may not read a config that config without credentials and private keys, with which no dataplane can start.
	Permissive bool
	// OnReport gets every report; nil means nobody does.
	OnReport func(Report)
	// OnRefusal hears whenever somebody is refused something; nil means nobody does.
	OnRefusal func(Refusal)
	// Limits are what clients may cost; the zero value means the usual ones.
	Limits Limits
}

// Server publishes configs to whoever may read them. It is an http.Handler.
type Server struct {
	options ServerOptions
	mux     *http.ServeMux
	pace    *pace
	seats   *seats

	mu      sync.Mutex
	configs map[string]published
	graves  graves
	// nodes holds the external addresses of nodes.
	nodes map[string]string
	// watchers are those of each selector in use.
	watchers map[selector]map[*watcher]bool
	reports  map[reporter]received
	// later are reports that came too soon after the one in reports.
	later map[reporter]received
	// followers are told of every report.
	followers map[*mailbox[ReportNews]]bool
}

// reporter tells the sources of reports apart.
type reporter struct{ id, pod string }

// received is a report together with the stream over which it came, and since when it counts.
type received struct {
	report Report
	stream *stream
	at     time.Time
}

// NewServer returns a server that has no configs.
func NewServer(o ServerOptions) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Limits = o.Limits.orUsual()
	if o.Confirm == nil {
		o.Confirm = o.Authorize
	}
	s := &Server{
		options:  o,
		mux:      http.NewServeMux(),
		pace:     newPace(o.Limits),
		seats:    newSeats(o.Limits),
		configs:  map[string]published{},
		graves:   newGraves(),
		nodes:    map[string]string{},
		watchers: map[selector]map[*watcher]bool{},
		reports:  map[reporter]received{},
		later:    map[reporter]received{},
	}
	s.mux.HandleFunc("GET "+apiPath, s.list)
	s.mux.HandleFunc("GET "+apiPath+"/{namespace}", s.list)
	s.mux.HandleFunc("GET "+apiPath+"/{namespace}/{name}", s.one)
	s.mux.HandleFunc("GET "+reportsPath, s.reported)
	s.mux.HandleFunc("GET /api/v1/license", license)
	return s
}

// Publish makes c the current config of its name, and returns its revision and whether that is another one than before. It never waits for a
// reader.
func (s *Server) Publish(c config.Config) (revision string, changed bool) {
	p := publish(c, s.options.Permissive)
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.configs[p.id]
	if before.revision == p.revision {
		return p.revision, false
	}
	s.configs[p.id] = p
	s.graves.open(p.id)
	s.send(p, before)
	return p.revision, true
}

// Delete withdraws a config and tells its readers so, those too that come back within an hour.
func (s *Server) Delete(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, there := s.configs[id]
	if !there {
		return
	}
	delete(s.configs, id)
	s.graves.bury(id, time.Now())
	s.send(buried(id), before)
}

// send puts a config into the mailboxes of those who want it and see a difference to the one before. It needs the lock.
func (s *Server) send(p, before published) {
	for _, want := range selectors(p.id) {
		for r := range s.watchers[want] {
			if p.tells(r.sight, before) {
				r.put(p)
			}
		}
	}
}

// SetNode says under which address a node is reached from outside, "" for none that is known, and tells the readers on that node whose configs
// name it.
func (s *Server) SetNode(name, address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[name] == address {
		return
	}
	if s.nodes[name] = address; address == "" {
		delete(s.nodes, name)
	}
	for want, watchers := range s.watchers {
		for r := range watchers {
			if r.node != name {
				continue
			}
			for _, p := range s.matchingLocked(want) {
				if p.placed && !r.forAuth {
					r.put(p)
				}
			}
		}
	}
}

// show is what a reader gets to see of a config now.
func (s *Server) show(p published, to sight) []byte {
	s.mu.Lock()
	address := s.nodes[to.node]
	s.mu.Unlock()
	return p.shown(to, address)
}

// matching returns what want means, sorted by name.
func (s *Server) matching(want selector) []published {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.matchingLocked(want)
}

func (s *Server) matchingLocked(want selector) (all []published) {
	if want.one() {
		if p, there := s.configs[string(want)]; there {
			all = append(all, p)
		}
		return all
	}
	for _, id := range slices.Sorted(maps.Keys(s.configs)) {
		if want.matches(id) {
			all = append(all, s.configs[id])
		}
	}
	return all
}

// Reports returns the newest report of each config and pod, sorted; what came over a stream is dropped when the stream closes.
func (s *Server) Reports() []Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Report
	for _, r := range s.reports {
		all = append(all, r.report)
	}
	slices.SortFunc(all, func(a, b Report) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Pod, b.Pod)) })
	return all
}

// ServeHTTP serves the paths of the protocol.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if !s.pace.allows(r.RemoteAddr, time.Now()) {
		s.refuse(w, r, Hasty)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// list answers for all configs, or for those of a namespace.
func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	var want selector
	if namespace := r.PathValue("namespace"); namespace != "" {
		want = selector(namespace + "/")
	}
	grant, ok := s.authorized(w, r, want)
	if !ok {
		return
	}
	if watching(r) {
		s.watch(w, r, want, grant)
		return
	}
	items := []json.RawMessage{}
	for _, p := range s.matching(want) {
		items = append(items, s.show(p, grant.sight(r)))
	}
	answer(w, http.StatusOK, struct {
		Version string            `json:"version"`
		Items   []json.RawMessage `json:"items"`
	}{config.Version, items})
}

// one answers for one config.
func (s *Server) one(w http.ResponseWriter, r *http.Request) {
	want := selector(r.PathValue("namespace") + "/" + r.PathValue("name"))
	grant, ok := s.authorized(w, r, want)
	if !ok {
		return
	}
	if watching(r) {
		s.watch(w, r, want, grant)
		return
	}
	found := s.matching(want)
	if len(found) == 0 {
		fail(w, http.StatusNotFound, "Config not found for ID "+string(want))
		return
	}
	answer(w, http.StatusOK, json.RawMessage(s.show(found[0], grant.sight(r))))
}

func license(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, struct {
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

// watching reads the parameter watch: present and not "false".
func watching(r *http.Request) bool {
	query := r.URL.Query()
	return query.Has("watch") && !strings.EqualFold(query.Get("watch"), "false")
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a reader that went away needs no answer
}

func fail(w http.ResponseWriter, code int, message string) {
	answer(w, code, struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{code, message})
}

// watch sends what is there and what changes, until one side goes.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, want selector, grant Grant) {
	stream, leave := s.upgrade(w, r, grant)
	if stream == nil {
		return
	}
	defer leave()
	to := &watcher{sight: grant.sight(r), box: newMailbox[published](), pod: grant.Pod}
	log := s.options.Log.With("remote", r.RemoteAddr, "wants", string(want), "node", to.node)
	log.DebugContext(r.Context(), "config reader comes")
	to.review = s.review(stream, r, want, grant)
	to.filled = func() { s.deliver(stream, to) }
	s.subscribe(want, to)
	err := s.receive(stream, want, grant, to.sight, log)
	s.unsubscribe(want, to)
	to.review.stop()
	stream.close()
	to.delivering.Wait()
	s.forget(stream)
	log.DebugContext(r.Context(), "config reader goes", "error", err)
}

// upgrade makes a stream of a request, while there is room for one. It answers those for whom it makes none. Whoever gets one calls leave.
func (s *Server) upgrade(w http.ResponseWriter, r *http.Request, by Grant) (open *stream, leave func()) {
	open = newStream(r.Context(), serverPulse)
	if !s.seats.take(by, open) {
		open.close()
		s.refuse(w, r, Crowded)
		return nil, nil
	}
	open.listens = true
	leave = func() {
		open.close()
		s.seats.leave(by, open)
	}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{OnPingReceived: open.onPing, OnPongReceived: open.onPong})
	if err != nil { // Accept has answered
		leave()
		return nil, nil
	}
	open.use(conn, reportLimit)
	return open, leave
}

// Streams is how many streams are open.
func (s *Server) Streams() int { return s.seats.taken() }

// deliver sends what is in the reader's mailbox. A stream that has nothing to send needs no goroutine for it: there are thousands.
func (s *Server) deliver(stream *stream, to *watcher) {
	for {
		p, ok := to.next()
		if !ok {
			return
		}
		if err := stream.send(s.show(p, to.sight)); err != nil {
			stream.cancel(err)
			return
		}
	}
}

// subscribe fills the mailbox with what is there, and with what is known to be gone; whatever comes later finds the reader registered. What
// is neither means nothing: this process may not have heard of it yet.
func (s *Server) subscribe(want selector, r *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range s.graves.of(want, time.Now()) {
		r.put(buried(id))
	}
	for _, p := range s.matchingLocked(want) {
		r.put(p)
	}
	if s.watchers[want] == nil {
		s.watchers[want] = map[*watcher]bool{}
	}
	s.watchers[want][r] = true
}

func (s *Server) unsubscribe(want selector, r *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watchers[want], r)
	if len(s.watchers[want]) == 0 {
		delete(s.watchers, want)
	}
}

// receive reads reports. What is none is ignored: other clients may have other things to say. A client that says more than it may is read slowly.
func (s *Server) receive(stream *stream, want selector, grant Grant, to sight, log *slog.Logger) error {
	from, due := map[reporter]bool{}, time.Time{}
	for {
		data, err := stream.read()
		if err != nil {
			return err
		}
		now := time.Now()
		if due = due.Add(frameEvery); due.Before(now) {
			due = now
		}
		if ahead := due.Sub(now) - frameBurst*frameEvery; ahead > 0 {
			select {
			case <-stream.ctx.Done():
				return context.Cause(stream.ctx)
			case <-time.After(ahead):
			}
		}
		r, ok := parseReport(data)
		key := reporter{r.ID, r.Pod}
		if !ok || !want.matches(r.ID) || !from[key] && len(from) >= reportsPerStream {
			continue
		}
		if !grant.vouches(r) {
			s.count(Misreported)
			log.DebugContext(stream.ctx, "report is about somebody else", "id", r.ID, "pod", r.Pod, "from", grant.Pod)
			continue
		}
		from[key] = true
		r.Revision = s.original(r, to)
		s.accept(stream, r)
	}
}

// original is the revision that was published, when a report is about what a reader got of it in a form of its own.
func (s *Server) original(r Report, to sight) string {
	s.mu.Lock()
	p, address := s.configs[r.ID], s.nodes[to.node]
	s.mu.Unlock()
	if p.placed && r.Revision == config.RevisionOf(p.shown(to, address)) {
		return p.revision
	}
	return r.Revision
}

// parseReport reads a frame, and cuts texts to what can be shown.
func parseReport(data []byte) (Report, bool) {
	var frame reportFrame
	if err := json.Unmarshal(data, &frame); err != nil || frame.Report == nil {
		return Report{}, false
	}
	r := *frame.Report
	for _, text := range []*string{&r.ID, &r.Pod, &r.Revision, &r.Error} {
		if len(*text) > reportText {
			*text = strings.ToValidUTF8((*text)[:reportText], "")
		}
	}
	r.Allocations = min(max(r.Allocations, 0), math.MaxInt32)
	return r, true
}

// accept has a report count, now or when the one before has counted for long enough.
func (s *Server) accept(stream *stream, r Report) {
	key := reporter{r.ID, r.Pod}
	s.mu.Lock()
	before, known := s.reports[key]
	_, waits := s.later[key]
	s.later[key] = received{report: r, stream: stream}
	s.mu.Unlock()
	switch wait := reportEvery - time.Since(before.at); {
	case !known || wait <= 0:
		s.use(key)
	case !waits:
		time.AfterFunc(wait, func() { s.use(key) })
	}
}

// use has the report that waits count from now on.
func (s *Server) use(key reporter) {
	s.mu.Lock()
	next, there := s.later[key]
	if there {
		delete(s.later, key)
		next.at = time.Now()
		s.reports[key] = next
		s.spread(key, ReportNews{Report: &next.report})
	}
	s.mu.Unlock()
	if there && s.options.OnReport != nil {
		s.options.OnReport(next.report)
	}
}

// forget drops the reports that nobody can renew any more.
func (s *Server) forget(stream *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, r := range s.later {
		if r.stream == stream {
			delete(s.later, key)
		}
	}
	for key, r := range s.reports {
		if r.stream != stream {
			continue
		}
		if next, moved := s.later[key]; moved { // to another stream, which counts in a moment
			r.stream = next.stream
			s.reports[key] = r
			continue
		}
		delete(s.reports, key)
		s.spread(key, ReportNews{Gone: &ReportKey{key.id, key.pod}})
	}
}
