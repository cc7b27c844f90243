package discovery

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

// A follower receives the current reports, then each change. A reader that may not read all configs receives nothing.
func TestReportsAreSentToReadersOfAllConfigs(t *testing.T) {
	grants := map[string]Grant{"Bearer all": {All: true}, "Bearer one": {ID: "media/a"}}
	_, h := serve(t, ServerOptions{Authorize: func(r *http.Request) (Grant, error) {
		if g, ok := grants[r.Header.Get("Authorization")]; ok {
			return g, nil
		}
		return Grant{}, errors.New("nobody")
	}})
	dial := func(token, path string) (*websocket.Conn, *http.Response, error) {
		return websocket.Dial(
			t.Context(), h.URL+path+"?watch=true",
			&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}},
		)
	}
	send := func(conn *websocket.Conn, frame string) {
		t.Helper()
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(frame)); err != nil {
			t.Fatal(err)
		}
	}
	read := func(conn *websocket.Conn, want string) {
		t.Helper()
		_, data, err := conn.Read(t.Context())
		if err != nil || string(data) != want {
			t.Fatalf("got %s, %v, want %s", data, err, want)
		}
	}
	for token, want := range map[string]int{"": 401, "one": 403} {
		_, response, err := dial(token, reportsPath)
		if err == nil || response.StatusCode != want {
			t.Errorf("%q may follow: %v", token, response.StatusCode)
		}
	}
	dataplane, _, err := dial("one", apiPath+"/media/a")
	if err != nil {
		t.Fatal(err)
	}
	follower, _, err := dial("all", reportsPath)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = follower.CloseNow() }()
	read(follower, `{"current":true}`)
	send(dataplane, `{"report":{"id":"media/a","pod":"p","revision":"r","accepted":true,"allocations":3}}`)
	read(follower, `{"report":{"id":"media/a","pod":"p","revision":"r","accepted":true,"allocations":3}}`)
	late, _, err := dial("all", reportsPath)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = late.CloseNow() }()
	read(late, `{"report":{"id":"media/a","pod":"p","revision":"r","accepted":true,"allocations":3}}`)
	read(late, `{"current":true}`)
	_ = dataplane.CloseNow()
	for _, conn := range []*websocket.Conn{follower, late} {
		read(conn, `{"gone":{"id":"media/a","pod":"p"}}`)
	}
}

// ReportSource.FollowReports ends with the error of each.
func TestReportSourceFollows(t *testing.T) {
	s, h := serve(t, ServerOptions{})
	s.add(nil, Report{ID: "media/a", Pod: "p", Allocations: 1})
	enough := errors.New("enough")
	var told []string
	err := ReportSource{URL: h.URL}.FollowReports(t.Context(), func(n ReportChange) error {
		switch {
		case n.Report != nil:
			told = append(told, n.Report.Pod)
		case n.Current:
			told = append(told, "current")
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || strings.Join(told, " ") != "p current" {
		t.Errorf("told %v, then %v", told, err)
	}
	if err := (ReportSource{URL: h.URL, TokenFile: t.TempDir()}).FollowReports(t.Context(), nil); err == nil {
		t.Error("follows without the token that it should have")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (ReportSource{URL: h.URL}).FollowReports(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if status, body := get(t, h.URL+reportsPath); status != 200 ||
		!strings.Contains(body, `"items":[{"id":"media/a","pod":"p"`) {
		t.Errorf("got %d %s", status, body)
	}
}
