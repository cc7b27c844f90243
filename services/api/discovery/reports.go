package discovery

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"

	"github.com/coder/websocket"
)

// reportsPath is where a server tells what dataplanes have reported to it, to callers that may read everything:
//
//	GET /api/v1/reports               {"version":"v1","items":[REPORT…]}
//	GET /api/v1/reports?watch=true    a WebSocket of {"report":REPORT} and {"gone":{"id":…,"pod":…}}
//
// A watch begins with the reports that there are; {"current":true} follows the last of these.
const reportsPath = "/api/v1/reports"

// ReportNews is one thing that a server has to say about reports.
type ReportNews struct {
	// Report is new, or newer.
	Report *Report `json:"report,omitempty"`
	// Gone is a dataplane that reports to this server no longer.
	Gone *ReportKey `json:"gone,omitempty"`
	// Current says that all that was there at the beginning has been said.
	Current bool `json:"current,omitempty"`
}

// ReportKey tells reports apart: those of one dataplane about one config.
type ReportKey struct {
	ID  string `json:"id"`
	Pod string `json:"pod"`
}

// currentKey is the mailbox key of the end of the beginning. No report has it: ids hold no such character.
const currentKey = "\x00current"

// FollowReports calls each with what there is to say about reports until ctx ends. Who is slow skips what is outdated.
func (s *Server) FollowReports(ctx context.Context, each func(ReportNews) error) error {
	box := newMailbox[ReportNews]()
	s.mu.Lock()
	for key, r := range s.reports {
		box.put(key.id+"\x00"+key.pod, ReportNews{Report: &r.report})
	}
	box.put(currentKey, ReportNews{Current: true})
	if s.followers == nil {
		s.followers = map[*mailbox[ReportNews]]bool{}
	}
	s.followers[box] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.followers, box)
	}()
	for {
		news, err := box.take(ctx)
		if err != nil {
			return err
		}
		if err := each(news); err != nil {
			return err
		}
	}
}

// spread tells followers. It needs the lock.
func (s *Server) spread(key reporter, news ReportNews) {
	for box := range s.followers {
		box.put(key.id+"\x00"+key.pod, news)
	}
}

// reported answers who asks for reports.
func (s *Server) reported(w http.ResponseWriter, r *http.Request) {
	grant, ok := s.authorized(w, r, "")
	switch {
	case !ok:
		return
	case grant.redacted: // this is not for everybody, though there are no secrets in it
		s.refuse(w, r, Forbidden, "wants", reportsPath)
		return
	case !watching(r):
		items := s.Reports()
		if items == nil {
			items = []Report{}
		}
		answer(w, http.StatusOK, struct {
			Version string   `json:"version"`
			Items   []Report `json:"items"`
		}{"v1", items})
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
		for { // a reader has nothing to say, but its pongs count
			if _, err := stream.read(); err != nil {
				stream.cancel(err)
				return
			}
		}
	})
	_ = s.FollowReports(stream.ctx, func(news ReportNews) error {
		data, err := json.Marshal(news)
		if err != nil {
			return err
		}
		return stream.send(data)
	})
}

// ReportSource is a server whose reports one may read.
type ReportSource struct {
	// URL is that of the server, without a path.
	URL string
	// TLS is how it is known; it counts for https.
	TLS *tls.Config
	// TokenFile holds the bearer token; it is read again for each connection. Empty means that none is needed.
	TokenFile string
}

// FollowReports connects, and calls each with what the server says, until the connection or ctx ends.
func (o ReportSource) FollowReports(ctx context.Context, each func(ReportNews) error) error {
	header := http.Header{}
	if o.TokenFile != "" {
		token, err := readToken(o.TokenFile)
		if err != nil {
			return err
		}
		header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{
		TLSClientConfig: o.TLS, TLSHandshakeTimeout: dialTimeout, ResponseHeaderTimeout: dialTimeout, DisableKeepAlives: true,
	}
	s := newStream(ctx, clientPulse)
	defer s.close()
	conn, _, err := websocket.Dial(s.ctx, o.URL+reportsPath+"?watch=true", &websocket.DialOptions{
		HTTPClient: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // it could take the token elsewhere
		},
		HTTPHeader: header, OnPingReceived: s.onPing, OnPongReceived: s.onPong,
	})
	if err != nil {
		return s.cause(err)
	}
	s.use(conn, reportLimit)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer s.close()
	workers.Go(func() { s.cancel(s.keepAlive()) })
	for {
		data, err := s.read()
		if err != nil {
			return err
		}
		news := ReportNews{}
		if err := json.Unmarshal(data, &news); err != nil {
			return fmt.Errorf("read reports of %s: %w", o.URL, err)
		}
		if err := each(news); err != nil {
			return err
		}
	}
}
