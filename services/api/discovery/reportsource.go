package discovery

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"sync"

	"github.com/coder/websocket"
)

// reportsPath is the path of the reports that dataplanes have sent to a server. Only callers that may read all configs
// may read it:
//
//	GET /api/v1/reports               {"version":"v1","items":[REPORT…]}
//	GET /api/v1/reports?watch=true    a WebSocket of {"report":REPORT} and {"gone":{"id":…,"pod":…}}
//
// A watch begins with the current reports; {"current":true} follows the last of them.
const reportsPath = "/api/v1/reports"

// ReportSource is a server whose reports can be read.
type ReportSource struct {
	// URL is the URL of the server, without a path.
	URL string
	// TLS configures https connections.
	TLS *tls.Config
	// TokenFile is the file with the bearer token. It is read again for each connection. Empty means that no token is
	// needed.
	TokenFile string
}

// FollowReports connects, and calls each for every change of the reports, until the connection or ctx ends, or each
// returns an error.
func (o ReportSource) FollowReports(ctx context.Context, each func(ReportChange) error) error {
	header, err := authorization(o.TokenFile)
	if err != nil {
		return err
	}
	s := newStream(ctx, clientKeepalive)
	defer s.close()
	conn, _, err := websocket.Dial(s.ctx, o.URL+reportsPath+"?watch=true", &websocket.DialOptions{
		HTTPClient: httpClient((&net.Dialer{Timeout: dialTimeout}).DialContext, o.TLS), HTTPHeader: header,
		OnPingReceived: s.onPing, OnPongReceived: s.onPong,
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
		change := ReportChange{}
		if err := json.Unmarshal(data, &change); err != nil {
			return fmt.Errorf("read reports of %s: %w", o.URL, err)
		}
		if err := each(change); err != nil {
			return err
		}
	}
}
