package discovery

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// reportText is the maximum length of each text of a report in bytes.
	reportText = 1_024
	// reportInterval is the minimum time between two reports of one dataplane about one config. Of the reports that
	// arrive within the interval, only the last report is used, at the end of the interval.
	reportInterval = time.Second
)

// ReportChange is a change of the reports of a server. Exactly one of its fields is set.
type ReportChange struct {
	// Report is a new report, or a newer report of the same dataplane.
	Report *Report `json:"report,omitempty"`
	// Removed is the key of a removed report. A report is removed when its dataplane disconnects from the server.
	Removed *ReportKey `json:"gone,omitempty"`
	// Current marks the end of the initial reports.
	Current bool `json:"current,omitempty"`
}

// ReportKey identifies the reports of one dataplane about one config.
type ReportKey struct {
	ID  string `json:"id"`
	Pod string `json:"pod"`
}

// queued returns the key of the report in a latestQueue.
func (k ReportKey) queued() string { return k.ID + "\x00" + k.Pod }

// currentKey is the key of ReportChange.Current in a latestQueue. It differs from the key of every report, because an
// id contains no zero byte.
const currentKey = "\x00current"

func (r Report) key() ReportKey { return ReportKey{r.ID, r.Pod} }

// reportStore contains the reports that were received over open streams.
type reportStore struct {
	onReport func(Report)

	mu      sync.Mutex
	current map[ReportKey]received
	// pending contains the reports that arrived within reportInterval after the current one.
	pending map[ReportKey]received
	// followers are the queues of FollowReports.
	followers map[*latestQueue[ReportChange]]bool
}

// received is a report with the stream over which it was received.
type received struct {
	report Report
	stream *stream
	at     time.Time
}

func newReportStore(onReport func(Report)) *reportStore {
	return &reportStore{
		onReport:  onReport,
		current:   map[ReportKey]received{},
		pending:   map[ReportKey]received{},
		followers: map[*latestQueue[ReportChange]]bool{},
	}
}

// Reports returns the newest report of each config and pod, sorted. When a stream closes, its reports are removed.
func (s *reportStore) Reports() []Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Report, 0, len(s.current))
	for _, r := range s.current {
		all = append(all, r.report)
	}
	slices.SortFunc(all, func(a, b Report) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Pod, b.Pod)) })
	return all
}

// FollowReports calls each for the current reports, and then for every change, until ctx ends or each returns an error.
// If each is slow, it gets only the newest state.
func (s *reportStore) FollowReports(ctx context.Context, each func(ReportChange) error) error {
	queue := newLatestQueue[ReportChange]()
	s.mu.Lock()
	for key, r := range s.current {
		queue.put(key.queued(), ReportChange{Report: &r.report})
	}
	queue.put(currentKey, ReportChange{Current: true})
	s.followers[queue] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.followers, queue)
	}()
	for {
		change, err := queue.take(ctx)
		if err != nil {
			return err
		}
		if err := each(change); err != nil {
			return err
		}
	}
}

// notify queues change for the followers. The caller holds mu.
func (s *reportStore) notify(key ReportKey, change ReportChange) {
	for queue := range s.followers {
		queue.put(key.queued(), change)
	}
}

// add makes a report current: at once, or when reportInterval has passed since the current report of the same
// dataplane.
func (s *reportStore) add(from *stream, r Report) {
	key := r.key()
	s.mu.Lock()
	before, known := s.current[key]
	_, scheduled := s.pending[key]
	s.pending[key] = received{report: r, stream: from}
	s.mu.Unlock()
	switch wait := reportInterval - time.Since(before.at); {
	case !known || wait <= 0:
		s.promote(key)
	case !scheduled:
		time.AfterFunc(wait, func() { s.promote(key) })
	}
}

// promote makes the pending report of key current.
func (s *reportStore) promote(key ReportKey) {
	s.mu.Lock()
	next, ok := s.pending[key]
	if ok {
		delete(s.pending, key)
		next.at = time.Now()
		s.current[key] = next
		s.notify(key, ReportChange{Report: &next.report})
	}
	s.mu.Unlock()
	if ok && s.onReport != nil {
		s.onReport(next.report)
	}
}

// forget removes the reports of a closed stream.
func (s *reportStore) forget(closed *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.pending, func(_ ReportKey, r received) bool { return r.stream == closed })
	for key, r := range s.current {
		if r.stream != closed {
			continue
		}
		if next, ok := s.pending[key]; ok { // the dataplane has reconnected, and its next report is pending
			r.stream = next.stream
			s.current[key] = r
			continue
		}
		delete(s.current, key)
		s.notify(key, ReportChange{Removed: &key})
	}
}

// clientFrame is a frame that a client sends. One field is set.
type clientFrame struct {
	Report   *Report       `json:"report,omitempty"`
	Serves   *announcement `json:"serves,omitempty"`
	Response *response     `json:"response,omitempty"`
	Whole    *wholeRequest `json:"whole,omitempty"`
}

// parseClientFrame parses a frame and truncates the texts of a report. The body of an answer is in scratch, if that has
// the capacity. It returns the zero clientFrame for a frame of another release.
func parseClientFrame(data, scratch []byte) clientFrame {
	frame := clientFrame{Response: &response{Body: scratch[:0]}}
	if err := json.Unmarshal(data, &frame); err != nil {
		return clientFrame{}
	}
	if frame.Response != nil && frame.Response.ID == 0 { // the frame has no response: IDs begin with 1
		frame.Response = nil
	}
	if frame.Report != nil {
		frame.Report.bound()
	}
	return frame
}

// bound truncates the texts of a report, and makes its numbers valid.
func (r *Report) bound() {
	for _, text := range []*string{&r.ID, &r.Pod, &r.Revision, &r.Error, &r.Offload, &r.Peer, &r.Sender} {
		if len(*text) > reportText {
			*text = strings.ToValidUTF8((*text)[:reportText], "")
		}
	}
	r.Allocations = min(max(r.Allocations, 0), math.MaxInt32)
}
