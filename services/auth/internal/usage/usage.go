// Package usage requests the usage of the last hour from operators, and adds up the answers of the pods.
//
// # Files
//
//	usage.go  requests to operators
//	sums.go   sums of the answers
//	limit.go  the requests in progress
package usage

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

const (
	// Timeout is how long Ask waits for all operators. An operator waits six seconds for its pods.
	Timeout = 10 * time.Second
	// busyPause is the time between two requests to an operator that has refused the first request because there were
	// too many.
	busyPause = time.Second
)

// By selects the entries of an answer: a value of inspection.UsageBy, or Gateways.
type By = inspection.UsageBy

// Gateways selects one entry for each Gateway.
const Gateways By = "gateway"

// Errors of Ask if no operator has answered.
var (
	// ErrAway means that no operator could be reached.
	ErrAway = errors.New("no operator has answered")
	// ErrDenied means that the operators do not answer this service.
	ErrDenied = errors.New("the operator refuses requests for usage of this service")
)

// Gateway is a Gateway whose usage is requested.
type Gateway struct {
	// Name is its name in answers, and ID its NAMESPACE/NAME at its operator.
	Name, ID string
	Operator discovery.Inspector
}

// Answer are the sums over the pods of Gateways.
type Answer struct {
	// Since is the time from which on all pods have counted. It is zero if no pod has answered.
	Since time.Time
	Total inspection.UsageFigures
	// Entries are the entries with the most bytes, sorted by bytes.
	Entries []Entry
	// PodsAsked is the number of running pods. PodsAnswered is the number of pods that have answered.
	PodsAsked, PodsAnswered int
	// Complete reports whether all pods and operators have answered.
	Complete bool
	// Truncated reports whether entries are left out, or may be too low.
	Truncated bool
}

// Entry has the figures of a user, of a Gateway or of a route.
type Entry struct {
	Name string
	inspection.UsageFigures
}

// Asker asks operators. Use NewAsker.
type Asker struct{ limiter *limiter }

// NewAsker returns an Asker.
func NewAsker() *Asker { return &Asker{limiter: newLimiter()} }

// Ask returns the usage of Gateways. The number of requests in progress is limited for each caller. If some Gateways
// have no answer, Answer.Complete is false. If no Gateway has an answer, Ask returns an error that wraps ErrAway or
// ErrDenied.
func (a *Asker) Ask(ctx context.Context, caller string, gateways []Gateway, q inspection.UsageQuery) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	pods := q
	if q.By == Gateways {
		pods.By, pods.Limit = inspection.UsageByUser, 1
	}
	values := pods.Values()
	s := newSums(q)
	var mu sync.Mutex
	var group sync.WaitGroup
	var failed []error
	for _, g := range gateways {
		if !a.limiter.enter(ctx, caller) {
			mu.Lock()
			failed = append(failed, ErrAway)
			mu.Unlock()
			continue
		}
		group.Go(func() {
			defer a.limiter.leave(caller)
			list, err := inspect(ctx, g, values)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = append(failed, err)
				return
			}
			s.add(g, list)
		})
	}
	group.Wait()
	if len(failed) > 0 && len(failed) == len(gateways) {
		return Answer{}, errors.Join(failed...)
	}
	return s.answer(len(failed) == 0), nil
}

// inspect asks the operator of a Gateway. A Gateway without pods and without a config is no error: its operator has
// just deleted it.
func inspect(ctx context.Context, g Gateway, values url.Values) (inspection.List, error) {
	for {
		list, err := g.Operator.Inspect(ctx, g.ID, "usage", values)
		var refused *discovery.InspectError
		switch {
		case err == nil:
			return list, nil
		case !errors.As(err, &refused):
			return list, errors.Join(ErrAway, err)
		case refused.Status == http.StatusNotFound && refused.Known:
			return inspection.List{}, nil
		case refused.Status == http.StatusTooManyRequests:
		case refused.Status >= http.StatusInternalServerError:
			return list, errors.Join(ErrAway, err)
		default:
			return list, errors.Join(ErrDenied, err)
		}
		pause := time.NewTimer(busyPause)
		select {
		case <-ctx.Done():
			pause.Stop()
			return list, errors.Join(ErrAway, err)
		case <-pause.C:
		}
	}
}
