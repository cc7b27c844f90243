package discovery

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/coder/websocket"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// Bounds of what a client can make a server do.
const (
	reportLimit      = 64 << 10
	reportsPerStream = 1_000
	reportText       = 1_024
)

// ServerOptions says how a Server behaves.
type ServerOptions struct {
	// Log gets the coming and going of clients; nil means none. Configs are never logged.
	Log *slog.Logger
	// Authorize says what the caller may read; an error is answered with 401. Nil lets everybody read everything.
	Authorize func(*http.Request) (Grant, error)
	// OnReport gets every report; nil means nobody does.
	OnReport func(Report)
}

// Grant is what a caller may read: everything, or one config.
type Grant struct {
	All bool
	ID  string
}

// allows tells whether all that want means may be read.
func (g Grant) allows(want selector) bool {
	return g.All || want.one() && string(want) == g.ID
}

// Server publishes configs to whoever may read them. It is an http.Handler.
type Server struct {
	options ServerOptions
	mux     *http.ServeMux

	mu      sync.Mutex
	configs map[string]published
	// watchers holds, for each selector in use, the mailboxes to which its frames go.
	watchers map[selector]map[*mailbox[[]byte]]bool
	reports  map[reporter]received
}

type published struct {
	id       string
	revision string
	frame    []byte
}

// reporter tells the sources of reports apart.
type reporter struct{ id, pod string }

// received is a report together with the stream over which it came.
type received struct {
	report Report
	stream *stream
}

// NewServer returns a server that has no configs.
func NewServer(o ServerOptions) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		options:  o,
		mux:      http.NewServeMux(),
		configs:  map[string]published{},
		watchers: map[selector]map[*mailbox[[]byte]]bool{},
		reports:  map[reporter]received{},
	}
	s.mux.HandleFunc("GET "+apiPath, s.list)
	s.mux.HandleFunc("GET "+apiPath+"/{namespace}", s.list)
	s.mux.HandleFunc("GET "+apiPath+"/{namespace}/{name}", s.one)
	s.mux.HandleFunc("GET /api/v1/license", license)
	return s
}

// Publish makes c the current config of its name. It does nothing when the revision is unchanged, and never waits for a reader.
func (s *Server) Publish(c config.Config) {
	c = c.Clone()
	c.Default()
	p := published{id: c.Admin.Name, revision: c.Revision(), frame: c.Canonical()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.configs[p.id].revision == p.revision {
		return
	}
	s.configs[p.id] = p
	s.send(p.id, p.frame)
}

// Delete withdraws a config and tells its readers so.
func (s *Server) Delete(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.configs[id]; !there {
		return
	}
	delete(s.configs, id)
	s.send(id, config.Zero(id).Canonical())
}

// send puts a frame into the mailboxes of those who want it. It needs the lock.
func (s *Server) send(id string, frame []byte) {
	for _, want := range selectors(id) {
		for box := range s.watchers[want] {
			box.put(id, frame)
		}
	}
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
	s.mux.ServeHTTP(w, r)
}

// list answers for all configs, or for those of a namespace.
func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	var want selector
	if namespace := r.PathValue("namespace"); namespace != "" {
		want = selector(namespace + "/")
	}
	if !s.authorized(w, r, want) {
		return
	}
	if watching(r) {
		s.watch(w, r, want)
		return
	}
	items := []json.RawMessage{}
	for _, p := range s.matching(want) {
		items = append(items, p.frame)
	}
	answer(w, http.StatusOK, struct {
		Version string            `json:"version"`
		Items   []json.RawMessage `json:"items"`
	}{config.Version, items})
}

// one answers for one config.
func (s *Server) one(w http.ResponseWriter, r *http.Request) {
	want := selector(r.PathValue("namespace") + "/" + r.PathValue("name"))
	if !s.authorized(w, r, want) {
		return
	}
	if watching(r) {
		s.watch(w, r, want)
		return
	}
	found := s.matching(want)
	if len(found) == 0 {
		refuse(w, http.StatusNotFound, "Config not found for ID "+string(want))
		return
	}
	answer(w, http.StatusOK, json.RawMessage(found[0].frame))
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

// authorized answers those who may not read what they want.
func (s *Server) authorized(w http.ResponseWriter, r *http.Request, want selector) bool {
	if s.options.Authorize == nil {
		return true
	}
	grant, err := s.options.Authorize(r)
	switch {
	case err != nil:
		s.options.Log.InfoContext(r.Context(), "config reader is not authenticated", "remote", r.RemoteAddr, "error", err)
		w.Header().Set("WWW-Authenticate", "Bearer")
		refuse(w, http.StatusUnauthorized, "A valid bearer token is needed")
		return false
	case !grant.allows(want):
		s.options.Log.InfoContext(r.Context(), "config reader wants what it may not read", "remote", r.RemoteAddr, "wants", string(want), "may", grant.ID)
		refuse(w, http.StatusForbidden, "This token does not grant these configs")
		return false
	}
	return true
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

func refuse(w http.ResponseWriter, code int, message string) {
	answer(w, code, struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{code, message})
}

// watch sends what is there and what changes, until one side goes.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, want selector) {
	stream := newStream(r.Context(), serverPulse)
	defer stream.close()
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{OnPingReceived: stream.onPing, OnPongReceived: stream.onPong})
	if err != nil {
		return // Accept has answered
	}
	stream.open(conn, reportLimit)
	log := s.options.Log.With("remote", r.RemoteAddr, "wants", string(want), "node", r.URL.Query().Get("node"))
	log.DebugContext(r.Context(), "config reader comes")
	var workers sync.WaitGroup
	workers.Go(func() { stream.cancel(stream.keepAlive()) })
	workers.Go(func() { stream.cancel(s.receive(stream, want)) })
	err = s.deliver(stream, want)
	stream.close()
	workers.Wait()
	s.forget(stream)
	log.DebugContext(r.Context(), "config reader goes", "error", err)
}

// deliver sends frames from a mailbox of its own.
func (s *Server) deliver(stream *stream, want selector) error {
	box := newMailbox[[]byte]()
	s.subscribe(want, box)
	defer s.unsubscribe(want, box)
	for {
		frame, err := box.take(stream.ctx)
		if err != nil {
			return err
		}
		if err := stream.send(frame); err != nil {
			return err
		}
	}
}

// subscribe fills the mailbox with what is there; whatever comes later finds it registered.
func (s *Server) subscribe(want selector, box *mailbox[[]byte]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.matchingLocked(want) {
		box.put(p.id, p.frame)
	}
	if s.watchers[want] == nil {
		s.watchers[want] = map[*mailbox[[]byte]]bool{}
	}
	s.watchers[want][box] = true
}

func (s *Server) unsubscribe(want selector, box *mailbox[[]byte]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watchers[want], box)
	if len(s.watchers[want]) == 0 {
		delete(s.watchers, want)
	}
}

// receive reads reports. What is none is ignored: other clients may have other things to say.
func (s *Server) receive(stream *stream, want selector) error {
	from := map[reporter]bool{}
	for {
		data, err := stream.read()
		if err != nil {
			return err
		}
		r, ok := parseReport(data)
		key := reporter{r.ID, r.Pod}
		if !ok || !want.matches(r.ID) || !from[key] && len(from) >= reportsPerStream {
			continue
		}
		from[key] = true
		s.accept(stream, r)
	}
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
	r.Allocations = max(r.Allocations, 0)
	return r, true
}

func (s *Server) accept(stream *stream, r Report) {
	s.mu.Lock()
	s.reports[reporter{r.ID, r.Pod}] = received{r, stream}
	s.mu.Unlock()
	if s.options.OnReport != nil {
		s.options.OnReport(r)
	}
}

// forget drops the reports that nobody can renew any more.
func (s *Server) forget(stream *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.reports, func(_ reporter, r received) bool { return r.stream == stream })
}
