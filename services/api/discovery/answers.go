package discovery

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

const (
	// answerTimeout is how long Options.Handler may take. It is shorter than requestTimeout, so that the server gets
	// the error.
	answerTimeout = requestTimeout - time.Second
	// runningRequests is the maximum number of requests that a client handles at a time.
	runningRequests = 2
)

// requestPrefix is the start of every request frame. No config starts with it.
var requestPrefix = []byte(`{"request":`)

// answerer answers the requests of a server with an http.Handler. The handler runs concurrently with the configs and
// reports of the stream, so that it does not delay them.
type answerer struct {
	announcement
	handler http.Handler
	log     *slog.Logger
	// running has an element for each running handler, over all connections.
	running chan struct{}
}

// newAnswerer returns nil if o has no Handler.
func newAnswerer(o Options) *answerer {
	if o.Handler == nil {
		return nil
	}
	return &answerer{
		announcement: announcement{Pod: o.Pod, Kind: o.Kind}, handler: o.Handler, log: o.Log,
		running: make(chan struct{}, runningRequests),
	}
}

// announce notifies the server that the client answers requests.
func (a *answerer) announce(s *stream) error {
	if a == nil {
		return nil
	}
	data, err := json.Marshal(clientFrame{Serves: &a.announcement})
	if err != nil {
		return err
	}
	return s.send(data)
}

// connection returns the function that handles the frames of one connection. The function returns false for a frame
// that is not a request.
func (a *answerer) connection(s *stream) func(frame []byte) bool {
	if a == nil {
		return func([]byte) bool { return false }
	}
	outstanding := make(chan struct{}, requestsPerStream)
	return func(frame []byte) bool {
		if !bytes.HasPrefix(frame, requestPrefix) {
			return false
		}
		var f requestFrame
		if json.Unmarshal(frame, &f) != nil || f.Request == nil {
			return true
		}
		select {
		case outstanding <- struct{}{}:
			go func() {
				a.answer(s, f.Request)
				<-outstanding
			}()
		default: // a server of this release does not send so many requests
		}
		return true
	}
}

// answer handles a request and sends the answer.
func (a *answerer) answer(s *stream, q *request) {
	ctx, cancel := context.WithTimeout(s.ctx, answerTimeout)
	defer cancel()
	handled := make(chan response, 1)
	go func() {
		select {
		case a.running <- struct{}{}:
			defer func() { <-a.running }()
			handled <- a.handle(ctx, q)
		case <-ctx.Done():
		}
	}()
	var r response
	select {
	case r = <-handled:
	case <-ctx.Done():
		r = failure(http.StatusGatewayTimeout, fmt.Sprintf("not answered within %v", answerTimeout))
	}
	r.ID = q.ID
	data, err := json.Marshal(clientFrame{Response: &r})
	if err == nil {
		err = s.send(data)
	}
	if err != nil {
		a.log.DebugContext(s.ctx, "cannot answer request", "target", q.Target, "error", err)
	}
}

// handle calls the handler. A panic of it becomes an error.
func (a *answerer) handle(ctx context.Context, q *request) (answer response) {
	defer func() {
		if cause := recover(); cause != nil {
			a.log.ErrorContext(ctx, "panic in the answer to a request", "target", q.Target, "panic", cause,
				"stack", string(debug.Stack()))
			answer = failure(http.StatusInternalServerError, "internal error: see the log of the pod")
		}
	}()
	r, err := http.NewRequestWithContext(ctx, q.Method, q.Target, http.NoBody)
	if err != nil || !strings.HasPrefix(q.Target, "/") {
		return failure(http.StatusBadRequest, "method or target is invalid")
	}
	w := &recorder{header: http.Header{}}
	a.handler.ServeHTTP(w, r)
	return w.response()
}

// recorder is an http.ResponseWriter that keeps the answer.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
	// excess is the number of bytes that were not kept, because the answer is longer than recordLimit.
	excess int
}

// recordLimit is the maximum length of an answer including its white space. The white space is not sent.
const recordLimit = 4 * ResponseLimit

func (w *recorder) Header() http.Header { return w.header }

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

func (w *recorder) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.body.Len()+len(p) > recordLimit {
		w.excess += len(p)
		return len(p), nil
	}
	return w.body.Write(p)
}

// response returns the answer. A text of an error becomes an inspection.Error.
func (w *recorder) response() response {
	w.WriteHeader(http.StatusOK)
	var compact bytes.Buffer
	switch err := json.Compact(&compact, w.body.Bytes()); {
	case w.excess > 0, compact.Len() > ResponseLimit:
		return failure(http.StatusRequestEntityTooLarge,
			fmt.Sprintf("the answer is longer than %d KiB: use a lower limit", ResponseLimit>>10))
	case err != nil && w.status < http.StatusBadRequest:
		return failure(http.StatusInternalServerError, "the answer is no JSON")
	case err != nil:
		return failure(w.status, strings.TrimSpace(w.body.String()))
	}
	return response{Status: w.status, Body: compact.Bytes()}
}

// failure returns an answer with an error.
func failure(status int, message string) response {
	body, _ := json.Marshal(inspection.Error{Message: message})
	return response{Status: status, Body: body}
}
