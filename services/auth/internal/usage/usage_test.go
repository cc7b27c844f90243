package usage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

var now = time.Date(2030, 1, 2, 3, 4, 30, 0, time.UTC)

func query(by By, user string, limit int) inspection.UsageQuery {
	return inspection.UsageQuery{From: now.Add(-time.Hour), To: now, By: by, User: user, Limit: limit}
}

func sent(bytes uint64) inspection.UsageFigures {
	return inspection.UsageFigures{Sessions: 1, Seconds: 0.5, Sent: inspection.UsageCount{Bytes: bytes, Packets: 1}}
}

// pod returns the answer of a pod that has counted for some minutes.
func pod(t *testing.T, name string, minutes int, truncated bool, byUser map[string]uint64) inspection.Item {
	u := inspection.Usage{Since: now.Add(-time.Duration(minutes) * time.Minute), Truncated: truncated}
	for user, bytes := range byUser {
		u.Total.Add(sent(bytes))
		u.Entries = append(u.Entries, inspection.UsageEntry{User: user, UsageFigures: sent(bytes)})
	}
	body, err := json.Marshal(u)
	if err != nil {
		t.Fatal(err)
	}
	return inspection.Item{Pod: name, Status: http.StatusOK, Body: body}
}

// operator answers requests with a function.
type operator func(ctx context.Context, id string, values url.Values) (inspection.List, error)

func (o operator) Inspect(ctx context.Context, id, path string, values url.Values) (inspection.List, error) {
	if path != "usage" {
		return inspection.List{}, fmt.Errorf("path %s", path)
	}
	return o(ctx, id, values)
}

// answering is an operator with the answers of pods.
func answering(items ...inspection.Item) operator {
	return func(context.Context, string, url.Values) (inspection.List, error) {
		return inspection.List{Items: items}, nil
	}
}

func ask(t *testing.T, q inspection.UsageQuery, operators ...operator) Answer {
	t.Helper()
	var gateways []Gateway
	for i, o := range operators {
		gateways = append(gateways, Gateway{Name: fmt.Sprint("g", i), ID: fmt.Sprint("media/g", i), Operator: o})
	}
	a, err := NewAsker().Ask(t.Context(), "shop", gateways, q)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func twice(f inspection.UsageFigures) inspection.UsageFigures {
	f.Add(f)
	return f
}

// The figures of all pods are added up. Pods without an answer or with an invalid answer are counted.
func TestSums(t *testing.T) {
	first := answering(
		pod(t, "a", 90, false, map[string]uint64{"ann": 5, "bob": 7}),
		pod(t, "b", 10, false, map[string]uint64{"ann": 5}),
	)
	silent := inspection.Item{Pod: "c", Error: "no answer within 5 s"}
	foreign := inspection.Item{Pod: "d", Status: http.StatusOK, Body: json.RawMessage(`{"entries":7}`)}
	unknown := inspection.Item{Pod: "e", Status: http.StatusNotFound, Body: json.RawMessage(`{"message":"404"}`)}
	ann, bob := Entry{"ann", twice(sent(5))}, Entry{"bob", sent(7)}
	total := ann.UsageFigures
	total.Add(bob.UsageFigures)
	for name, c := range map[string]struct {
		query     inspection.UsageQuery
		operators []operator
		want      Answer
	}{
		"by user": {query(inspection.UsageByUser, "", 10), []operator{first}, Answer{
			Since: now.Add(-10 * time.Minute), Total: total, Entries: []Entry{ann, bob}, PodsAsked: 2, PodsAnswered: 2,
			Complete: true,
		}},
		"limit": {query(inspection.UsageByUser, "", 1), []operator{first}, Answer{
			Since: now.Add(-10 * time.Minute), Total: total, Entries: []Entry{ann}, PodsAsked: 2, PodsAnswered: 2,
			Complete: true, Truncated: true,
		}},
		"pods without an answer": {
			query(inspection.UsageByUser, "", 10), []operator{answering(silent, foreign, unknown)}, Answer{PodsAsked: 3},
		},
		"by Gateway": {
			query(Gateways, "", 10),
			[]operator{answering(pod(t, "a", 90, true, map[string]uint64{"ann": 5})), answering(silent)},
			Answer{
				Since: now.Add(-time.Hour).Truncate(time.Minute), Total: sent(5), Entries: []Entry{{"g0", sent(5)}, {Name: "g1"}},
				PodsAsked: 2, PodsAnswered: 1,
			},
		},
		"by Gateway of a user": {
			query(Gateways, "ann", 10), []operator{answering(pod(t, "a", 60, true, map[string]uint64{"hash": 5}))}, Answer{
				Since: now.Add(-time.Hour), Total: sent(5), Entries: []Entry{{"g0", sent(5)}}, PodsAsked: 1, PodsAnswered: 1,
				Complete: true, Truncated: true,
			},
		},
		"a hashed user": {
			query(inspection.UsageByUser, "ann", 10),
			[]operator{answering(pod(t, "a", 60, false, map[string]uint64{"hash": 5}))},
			Answer{
				Since: now.Add(-time.Hour), Total: sent(5), Entries: []Entry{{"ann", sent(5)}}, PodsAsked: 1, PodsAnswered: 1,
				Complete: true,
			},
		},
		"no pods": {query(inspection.UsageByUser, "", 10), []operator{answering()}, Answer{Complete: true}},
	} {
		if got := ask(t, c.query, c.operators...); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	lost := func(context.Context, string, url.Values) (inspection.List, error) {
		return inspection.List{Incomplete: []string{"replica 10.0.0.7: away"}}, nil
	}
	if got := ask(t, query(inspection.UsageByUser, "", 10), lost); got.Complete {
		t.Errorf("a replica of the operator without an answer: %+v", got)
	}
}

// An error of one operator makes the answer incomplete, and an error of all of them is returned.
func TestOperatorsWithoutAnswer(t *testing.T) {
	failing := func(err error) operator {
		return func(context.Context, string, url.Values) (inspection.List, error) { return inspection.List{}, err }
	}
	refusing := func(status int, known bool) operator {
		return failing(fmt.Errorf("inspect: %w", &discovery.InspectError{Status: status, Known: known}))
	}
	one := answering(pod(t, "a", 60, false, map[string]uint64{"ann": 5}))
	for name, c := range map[string]struct {
		operator operator
		want     error
	}{
		"unreachable":         {failing(errors.New("connection refused")), ErrAway},
		"failed":              {refusing(503, true), ErrAway},
		"not accepted":        {refusing(401, true), ErrDenied},
		"forbidden":           {refusing(403, true), ErrDenied},
		"of another release":  {refusing(404, false), ErrDenied},
		"without the Gateway": {refusing(404, true), nil},
	} {
		g := Gateway{Name: "g", ID: "media/g", Operator: c.operator}
		_, err := NewAsker().Ask(t.Context(), "shop", []Gateway{g}, query(inspection.UsageByUser, "", 10))
		if !errors.Is(err, c.want) || errors.Is(err, ErrAway) && errors.Is(err, ErrDenied) {
			t.Errorf("%s: %v", name, err)
		}
		got := ask(t, query(inspection.UsageByUser, "", 10), c.operator, one)
		if got.Complete != (c.want == nil) || got.PodsAnswered != 1 {
			t.Errorf("%s, another one answers: %+v", name, got)
		}
	}
}

// A caller whose operators do not answer does not use up the requests of other callers, and no request lasts longer
// than Timeout. An operator that has too many requests is asked again.
func TestRequestsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		running, most := 0, 0
		stuck := operator(func(ctx context.Context, _ string, _ url.Values) (inspection.List, error) {
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			<-ctx.Done()
			mu.Lock()
			running--
			mu.Unlock()
			return inspection.List{}, ctx.Err()
		})
		a := NewAsker()
		var many []Gateway
		for i := range 20 {
			many = append(many, Gateway{ID: fmt.Sprint("media/", i), Operator: stuck})
		}
		begun := time.Now()
		var group sync.WaitGroup
		for range 10 {
			group.Go(func() {
				if _, err := a.Ask(t.Context(), "eve", many, query(inspection.UsageByUser, "", 10)); !errors.Is(err, ErrAway) {
					t.Errorf("eve: %v", err)
				}
			})
		}
		synctest.Wait()
		busy := 0
		fine := operator(func(context.Context, string, url.Values) (inspection.List, error) {
			if busy++; busy <= 3 {
				return inspection.List{}, &discovery.InspectError{Status: http.StatusTooManyRequests, Known: true}
			}
			return inspection.List{Items: []inspection.Item{pod(t, "a", 60, false, map[string]uint64{"ann": 5})}}, nil
		})
		one := []Gateway{{ID: "media/g", Operator: fine}}
		got, err := a.Ask(t.Context(), "ann", one, query(inspection.UsageByUser, "", 10))
		if took := time.Since(begun); err != nil || got.PodsAnswered != 1 || took != 3*busyPause {
			t.Errorf("ann: %+v, %v after %v", got, err, took)
		}
		group.Wait()
		if took := time.Since(begun); took != Timeout || most != maxPerCaller {
			t.Errorf("eve: %d requests at a time, for %v", most, took)
		}
		if a.limiter.total != 0 || len(a.limiter.callers) != 0 {
			t.Errorf("%d requests stay counted", a.limiter.total)
		}
	})
}
