package probe

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/diagnose"
)

const (
	// trainLength is the number of requests of a train, and trainPause the time between two, as in a stream of audio.
	trainLength = 50
	trainPause  = 20 * time.Millisecond
	// trainWait is how long answers are awaited after the last request. Later answers count as lost.
	trainWait = 2 * time.Second
	// maxTrains is the maximum number of backends to which trains are sent at a time.
	maxTrains = 4
)

// train counts the answers to requests that are never repeated, so that each lost packet shows.
type train struct {
	sent map[[stun.TransactionIDSize]byte]time.Time
	// delays are the times between requests and their answers.
	delays []time.Duration
}

// request returns a Binding request that counts as sent now.
func (t *train) request() (*stun.Message, error) {
	m, err := bindingRequest(attrIgnored, 0)
	if err != nil {
		return nil, err
	}
	if t.sent == nil {
		t.sent = map[[stun.TransactionIDSize]byte]time.Time{}
	}
	t.sent[m.TransactionID] = time.Now()
	return m, nil
}

// answered counts a message if it is the first answer to a request. It reports whether the message answers a request.
func (t *train) answered(id [stun.TransactionIDSize]byte) bool {
	at, known := t.sent[id]
	if known && !at.IsZero() {
		t.sent[id] = time.Time{}
		t.delays = append(t.delays, time.Since(at))
	}
	return known
}

// result returns the counts.
func (t *train) result() diagnose.ProbedTrain {
	r := diagnose.ProbedTrain{Sent: len(t.sent), Returned: len(t.delays)}
	if len(t.delays) > 0 {
		slices.Sort(t.delays)
		r.Milliseconds = float64(t.delays[len(t.delays)/2].Microseconds()) / 1000
	}
	return r
}

// train sends requests to the server at an even pace, and counts the answers. A train that ctx ends counts for nothing.
func (w *serverConn) train(ctx context.Context) diagnose.ProbedTrain {
	var t train
	seen := func(m *stun.Message) { t.answered(m.TransactionID) }
	for range trainLength {
		m, err := t.request()
		if err != nil {
			return diagnose.ProbedTrain{}
		}
		if _, err := w.Write(m.Raw); err != nil {
			return diagnose.ProbedTrain{}
		}
		w.listen(ctx, trainPause, seen)
	}
	for end := time.Now().Add(trainWait); len(t.delays) < len(t.sent) && ctx.Err() == nil && time.Now().Before(end); {
		w.listen(ctx, trainPause, seen)
	}
	if ctx.Err() != nil {
		return diagnose.ProbedTrain{}
	}
	return t.result()
}

// sendTrains sends trains to the first of the backends that have answered, and counts the answers.
func (e *exchange) sendTrains(ctx context.Context, s *session) {
	e.trains = map[int]*train{}
	for i := range e.all {
		if b := e.all[i]; b.Result == diagnose.ProbeAnswered && e.matched[b.Peer] > 0 && len(e.trains) < maxTrains {
			e.trains[i] = &train{}
		}
	}
	if len(e.trains) == 0 {
		return
	}
	for range trainLength {
		for i, t := range e.trains {
			data, err := t.request()
			if err != nil || s.indicate(e.all[i].Peer, data) != nil {
				return
			}
		}
		s.listen(ctx, trainPause)
	}
	missing := func() bool {
		for _, t := range e.trains {
			if len(t.delays) < len(t.sent) {
				return true
			}
		}
		return false
	}
	for end := time.Now().Add(trainWait); missing() && ctx.Err() == nil && time.Now().Before(end); {
		s.listen(ctx, trainPause)
	}
	if ctx.Err() != nil {
		return
	}
	for i, t := range e.trains {
		e.all[i].Train = t.result()
	}
}

// listen passes messages to seen for a time.
func (w *serverConn) listen(ctx context.Context, during time.Duration, seen func(*stun.Message)) {
	end := time.Now().Add(during)
	for ctx.Err() == nil {
		_ = w.SetReadDeadline(end)
		m, err := w.receive()
		if err == nil {
			seen(m)
			continue
		}
		if !errors.Is(err, errNotSTUN) || w.stream != nil { // a stream that contains other data cannot be read further
			select { // a closed connection returns at once
			case <-ctx.Done():
			case <-time.After(time.Until(end)):
			}
			return
		}
	}
}
