package discovery

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// Bounds of the requests that a server sends to its clients.
const (
	// requestTimeout is how long Ask waits for an answer.
	requestTimeout = 5 * time.Second
	// lateTimeout is how long an answer may be late. An answer within this time does not count as a misbehaviour of the
	// client, and the stream of the client accepts a frame of responseFrameLimit during this time.
	lateTimeout = 5 * time.Second
	// requestsPerStream is the maximum number of outstanding requests of one stream.
	requestsPerStream = 4
	// targetLimit is the maximum length of Query.Target.
	targetLimit = 4 << 10
	// ResponseLimit is the maximum length of the body of an answer.
	ResponseLimit = 512 << 10
	// responseFrameLimit is the maximum length of the frame of an answer.
	responseFrameLimit = ResponseLimit + 1<<10
	// answersLimit is the maximum length of the bodies of all answers to one Ask.
	answersLimit = 4 << 20
	// asksPerNamespace is the maximum number of concurrent calls of Ask for the Gateways of a namespace. Further calls
	// wait.
	asksPerNamespace = 8
)

// Errors of answers, for readers of Answer.Error.
const (
	// AnswersNoRequests is the error of a dataplane of an earlier release.
	AnswersNoRequests = "this release of stunnerd answers no requests"
	errBusy           = "busy: the pod has not answered earlier requests yet"
	errNoAnswer       = "no answer within 5 s"
	errCrowded        = "other requests for Gateways of this namespace took too long: try again"
	errTooMuch        = "the answers of all pods are more than 4 MiB: use a lower limit"
)

// Query is a request to the pods of one Gateway.
type Query struct {
	// ID is the Gateway, NAMESPACE/NAME. If it is empty, the request is for all pods of the kind.
	ID string
	// Kind is the kind of the pods.
	Kind inspection.Kind
	// Method is the HTTP method.
	Method string
	// Target is the path and the query of the URL. Ask sets the parameter gateway of requests to auth services to ID,
	// because an auth service has the grants of several Gateways.
	Target string
}

// Answer is the answer of one pod.
type Answer struct {
	Pod string
	// Status is the HTTP status code, or 0 if there is no answer.
	Status int
	// Body is the answer in JSON; inspection.Error if Status is an error.
	Body json.RawMessage
	// Error is the reason why there is no answer.
	Error string
}

type (
	// announcement notifies the server that the client answers requests.
	announcement struct {
		Pod  string          `json:"pod"`
		Kind inspection.Kind `json:"kind"`
	}
	// requestFrame is a request to a client.
	requestFrame struct {
		Request *request `json:"request"`
	}
	request struct {
		ID     uint64 `json:"id"`
		Method string `json:"method"`
		Target string `json:"target"`
	}
	response struct {
		ID     uint64          `json:"id"`
		Status int             `json:"status"`
		Body   json.RawMessage `json:"body"`
	}
)

// mayServe reports whether a caller that reads want may answer requests as announced. A pod answers for its own
// Gateway only. Only callers that may read all configs answer as an auth service.
func (g Grant) mayServe(a announcement, want selector) bool {
	switch {
	case g.redacted, a.Pod == "", len(a.Pod) > reportText, g.Pod != "" && a.Pod != g.Pod:
		return false
	case a.Kind == inspection.Auth:
		return g.All
	}
	return a.Kind == inspection.Dataplane && !g.ForAuth && want.one()
}

// served is a stream whose client answers requests.
type served struct {
	stream *stream
	announcement
	want selector

	mu sync.Mutex
	// last is the ID of the last request.
	last uint64
	// outstanding contains the requests without an answer by ID.
	outstanding map[uint64]*outstanding
}

// outstanding is a request without an answer.
type outstanding struct {
	// answered receives the answer. Its buffer has room for the answer.
	answered chan Answer
	// room is the memory for the bodies of all answers to the same Ask.
	room *answerRoom
}

// answerRoom is the memory for the bodies of the answers to one Ask. It is reserved before a body is kept.
type answerRoom struct {
	mu   sync.Mutex
	left int
}

// reserve reports whether there is room for a body.
func (r *answerRoom) reserve(length int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if length > r.left {
		return false
	}
	r.left -= length
	return true
}

// close sets the room to 0, because no call waits for further answers.
func (r *answerRoom) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = 0
}

// servedKey identifies a process that answers requests.
type servedKey struct {
	announcement
	want selector
}

func (s *served) key() servedKey { return servedKey{s.announcement, s.want} }

// servedStreams contains the newest stream of each process that answers requests.
type servedStreams struct {
	mu      sync.Mutex
	streams map[servedKey]*served
	changed func(pod string, kind inspection.Kind, serves bool) // ServerOptions.OnServing
}

func (s *servedStreams) add(one *served) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[one.key()] = one
	if s.changed != nil {
		s.changed(one.Pod, one.Kind, true)
	}
}

func (s *servedStreams) remove(one *served) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[one.key()] != one {
		return
	}
	delete(s.streams, one.key())
	if s.changed != nil {
		s.changed(one.Pod, one.Kind, false)
	}
}

// matching returns the streams that answer a query.
func (s *servedStreams) matching(q Query) (all []*served) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, one := range s.streams {
		if key.Kind == q.Kind && (q.ID == "" || key.want.matches(q.ID)) {
			all = append(all, one)
		}
	}
	return all
}

// Ask sends a request to all pods of a Gateway that are connected to this server, and returns their answers, sorted by
// pod. It waits at most five seconds. A dataplane that is connected and answers no requests has the error
// AnswersNoRequests. The server knows such a dataplane from a report, or from the authentication of its stream as the
// stream of a pod.
func (s *Server) Ask(ctx context.Context, q Query) []Answer {
	if q.Kind == inspection.Auth && q.ID != "" {
		q.Target = withGateway(q.Target, q.ID)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answers := make(map[string]Answer)
	if q.Kind == inspection.Dataplane {
		for _, pod := range s.connected(q.ID) {
			answers[pod] = Answer{Pod: pod, Error: AnswersNoRequests}
		}
	}
	asked := s.served.matching(q)
	namespace, _, _ := strings.Cut(q.ID, "/")
	if !s.asking.begin(ctx, namespace) {
		for _, one := range asked {
			answers[one.Pod] = Answer{Pod: one.Pod, Error: errCrowded}
		}
		return sortedAnswers(answers)
	}
	defer s.asking.end(namespace)
	results, room := make(chan Answer), &answerRoom{left: answersLimit}
	defer room.close()
	for _, one := range asked {
		go func() { results <- one.ask(ctx, q, room) }()
	}
	for range asked {
		a := <-results
		answers[a.Pod] = a
	}
	return sortedAnswers(answers)
}

func sortedAnswers(byPod map[string]Answer) []Answer {
	return slices.SortedFunc(maps.Values(byPod), func(a, b Answer) int { return strings.Compare(a.Pod, b.Pod) })
}

// asking limits the concurrent calls of Ask by namespace, because each may have answersLimit bytes in memory.
type asking struct {
	mu      sync.Mutex
	running map[string]int
	// ended is closed and replaced when a call ends.
	ended chan struct{}
}

// begin waits until a call may run. It returns false if ctx ends before.
func (a *asking) begin(ctx context.Context, namespace string) bool {
	for {
		a.mu.Lock()
		ended := a.ended
		if a.running[namespace] < asksPerNamespace {
			a.running[namespace]++
			a.mu.Unlock()
			return true
		}
		a.mu.Unlock()
		select {
		case <-ended:
		case <-ctx.Done():
			return false
		}
	}
}

func (a *asking) end(namespace string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running[namespace]--; a.running[namespace] == 0 {
		delete(a.running, namespace)
	}
	close(a.ended)
	a.ended = make(chan struct{})
}

// connected returns the pods that are known to have a stream for the config id. A pod may be listed twice.
func (s *Server) connected(id string) []string {
	pods := s.readers(id)
	for _, r := range s.Reports() {
		if r.ID == id {
			pods = append(pods, r.Pod)
		}
	}
	return pods
}

// withGateway sets the parameter gateway of a target.
func withGateway(target, id string) string {
	u, err := url.ParseRequestURI(target)
	if err != nil {
		return target // refused by the client
	}
	query := u.Query()
	query.Set("gateway", id)
	u.RawQuery = query.Encode()
	return u.String()
}

// ask sends one request and returns the answer, whose body is in room.
func (s *served) ask(ctx context.Context, q Query, room *answerRoom) Answer {
	failed := func(text string) Answer { return Answer{Pod: s.Pod, Error: text} }
	if len(q.Target) > targetLimit {
		return failed(fmt.Sprintf("the request is longer than %d bytes", targetLimit))
	}
	id, answered := s.begin(room)
	if answered == nil {
		return failed(errBusy)
	}
	data, err := json.Marshal(requestFrame{&request{ID: id, Method: q.Method, Target: q.Target}})
	if err != nil {
		s.end(id)
		return failed(err.Error())
	}
	go func() { // a client that does not read must not delay the answers of others
		if err := s.stream.send(data); err != nil {
			s.stream.cancel(err)
		}
	}()
	select {
	case a := <-answered:
		return a
	case <-s.stream.ctx.Done():
		return failed("the connection of the pod has ended")
	case <-ctx.Done():
		time.AfterFunc(lateTimeout, func() { s.end(id) })
		return failed(errNoAnswer)
	}
}

// begin registers a request, or returns nil if there are too many. While there are requests, the client may send a
// longer frame.
func (s *served) begin(room *answerRoom) (id uint64, answered <-chan Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.outstanding) >= requestsPerStream {
		return 0, nil
	}
	s.last++
	o := &outstanding{answered: make(chan Answer, 1), room: room}
	s.outstanding[s.last] = o
	s.stream.conn.SetReadLimit(responseFrameLimit)
	return s.last, o.answered
}

// end removes a request and returns it, or nil if there is no such request.
func (s *served) end(id uint64) *outstanding {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.outstanding[id]
	if delete(s.outstanding, id); len(s.outstanding) == 0 {
		s.stream.conn.SetReadLimit(reportLimit)
	}
	return o
}

// answer handles the answer of the client, whose body it copies if there is room for it. It reports whether there was
// such a request.
func (s *served) answer(r *response) bool {
	o := s.end(r.ID)
	if o == nil {
		return false
	}
	a := Answer{Pod: s.Pod}
	switch {
	case r.Status < http.StatusOK || r.Status > 599 || len(r.Body) == 0 || len(r.Body) > ResponseLimit:
		a.Error = "the pod has sent an invalid answer"
	case !o.room.reserve(len(r.Body)):
		a.Error = errTooMuch
	default:
		a.Status, a.Body = r.Status, slices.Clone(r.Body)
	}
	o.answered <- a
	return true
}

// answerReader handles the frames of one stream that belong to requests.
type answerReader struct {
	server *Server
	stream *stream
	want   selector
	grant  Grant
	log    *slog.Logger
	// served is nil until the client has announced that it answers requests.
	served *served
}

// read handles an announcement or an answer. It reports whether the frame is the answer to a request.
func (r *answerReader) read(f clientFrame) (requested bool) {
	switch {
	case f.Response != nil:
		if r.served != nil && r.served.answer(f.Response) {
			return true
		}
		r.misreported("answer without a request", "id", f.Response.ID)
	case f.Serves == nil, r.served != nil: // a client announces itself once
	case !r.grant.mayServe(*f.Serves, r.want):
		r.misreported("client may not answer requests", "pod", f.Serves.Pod, "kind", f.Serves.Kind, "from", r.grant.Pod)
	default:
		r.served = &served{
			stream: r.stream, announcement: *f.Serves, want: r.want, outstanding: map[uint64]*outstanding{},
		}
		r.server.served.add(r.served)
	}
	return false
}

func (r *answerReader) misreported(text string, details ...any) {
	r.server.count(Misreported, "from", r.grant.Pod)
	r.log.DebugContext(r.stream.ctx, text, details...)
}

// close unregisters the stream.
func (r *answerReader) close() {
	if r.served != nil {
		r.server.served.remove(r.served)
	}
}
