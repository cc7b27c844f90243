package discovery

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// F-05: any frame that a client receives, one a line, changes nothing, delivers a valid config of the wanted id, or is
// rejected. Delivered configs stay, and the state of the client stays small.
func FuzzConfigFrame(f *testing.F) {
	good := sample("media/a", "r1")
	for _, seed := range []string{
		text(good), text(sample("media/a", "r2")), text(sample("media/b", "r")), text(config.Zero("media/a")),
		text(config.Zero("media/b")),
		"", "{}", "null", "no json", `{"version":"v1"}`, `{"version":"v1","items":[]}`,
		`{"version":"v1","admin":{"name":"media/a"},"listeners":[{"port":0}]}`,
		`{"report":{"id":"media/a"}}`, "\xff",
		`{"version":"v1","items":[` + text(good) + `,7,` + text(sample("media/b", "r")) + `]}`,
		text(config.Zero("media/a")) + "\n" + text(good) + "\nx\n" + text(good),
		text(sample("media/c", "r")) + "\n" + text(sample("media/d", "r")) + "\n" + text(good),
		strings.Replace(text(good), "{", `{"newer":1,`, 1),
		`{"version":"v1","auth":{"type":"none"},"admin":{"name":"media/a","loglevel":"\u0000"}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, frames []byte) {
		w := newWatch("test", "media/a")
		w.receive([]byte(text(good)), "")
		if e, ok := w.events.pop(); !ok || e.Config.Revision() != good.Revision() {
			t.Fatalf("event %+v", e)
		}
		current := good.Revision()
		for frame := range bytes.Lines(frames) {
			w.receive(frame, "")
			current = checkResult(t, w, frame, current)
		}
		w.receive([]byte(text(sample("media/a", "last"))), "")
		if e, ok := w.events.pop(); !ok || e.Err != nil || e.Deleted || e.Config.Auth.Realm != "last" {
			if current != sample("media/a", "last").Revision() {
				t.Errorf("the source is no longer believed: %+v", e)
			}
		}
		loaded, _ := readAll(frames, "media/", nil)
		for _, c := range loaded {
			if err := c.Validate(); err != nil || c.IsZero() {
				t.Errorf("loaded %s: %v", c.Canonical(), err)
			}
		}
	})
}

// A name may be as long as the frame, but an error is short.
func TestRefusalsAreShort(t *testing.T) {
	w := newWatch("test", "")
	w.receive([]byte(`{"version":"v1","admin":{"name":"`+strings.Repeat("x", 100_000)+`"}}`), "")
	if e, ok := w.events.pop(); !ok || !errors.Is(e.Err, ErrRejected) || len(e.Err.Error()) > 1000 {
		t.Errorf("event %.2000v", e)
	}
}

// checkResult checks the result of a frame, and returns the current revision.
func checkResult(t *testing.T, w *watch, frame []byte, before string) string {
	t.Helper()
	e, ok := w.events.pop()
	now := w.delivered["media/a"].revision
	switch {
	case !ok:
		if c, _, err := read(frame, nil); now != before || err != nil || c.Revision() != now {
			t.Errorf("%q is passed over", frame)
		}
	case e.Err != nil:
		const readable = 64 << 10
		if !errors.Is(e.Err, ErrRejected) || now != before || e.Deleted || len(e.Err.Error()) > readable {
			t.Errorf("refused with %d bytes, and what was good is lost: %+v", len(e.Err.Error()), e)
		}
	case e.ID != "media/a":
		t.Errorf("delivered for %q", e.ID)
	case e.Deleted:
		if c, _, err := config.Parse(frame); err != nil || !c.IsZero() || c.Admin.Name != e.ID {
			t.Errorf("deleted by %q", frame)
		}
	case e.Config.Validate() != nil || e.Config.Admin.Name != "media/a" || e.Config.Revision() != now:
		t.Errorf("delivered %+v", e)
	}
	if _, more := w.events.pop(); more || len(w.delivered) != 1 || len(w.rejected) > 2 || len(w.events.items) > 0 {
		t.Errorf("one frame is one event at most; %d ids, %d refused", len(w.delivered), len(w.rejected))
	}
	return now
}

// F-05: reports on the server are bounded and printable, for any frames of a client.
func FuzzReportFrame(f *testing.F) {
	for _, seed := range []string{
		`{"report":{"id":"media/a","pod":"p","revision":"r","accepted":true,"allocations":1,"draining":true}}`,
		`{"report":{"allocations":-1}}`, `{"report":{"allocations":1e99}}`, `{"report":null}`, `{"report":[]}`, `{}`,
		``, "null", "\xff", `{"report":{"error":"\ud800"}}`,
		`{"report":{"id":"media/a","peer":"10.0.0.1:4000","sender":"0123456789abcdef"}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		r, ok := parseReport(frame)
		if !ok && r != (Report{}) {
			t.Errorf("refused, yet %+v", r)
		}
		for _, text := range []string{r.ID, r.Pod, r.Revision, r.Error, r.Peer, r.Sender} {
			if len(text) > reportText || !utf8.ValidString(text) {
				t.Errorf("text %q", text)
			}
		}
		if r.Allocations < 0 {
			t.Errorf("%d allocations", r.Allocations)
		}
		if !ok {
			return
		}
		sent, err := json.Marshal(clientFrame{Report: &r})
		if again, ok := parseReport(sent); err != nil || !ok || again != r {
			t.Errorf("%+v is sent as %s and read as %+v: %v", r, sent, again, err)
		}
		// A repeated report counts once, and is removed with its connection.
		s := NewServer(ServerOptions{})
		at := &stream{}
		s.add(at, r)
		s.add(at, r)
		if len(s.current) != 1 {
			t.Errorf("%d reports", len(s.current))
		}
		if s.forget(at); len(s.current) != 0 {
			t.Error("the report outlives its connection")
		}
	})
}

func parseReport(data []byte) (Report, bool) {
	f := parseClientFrame(data, nil)
	if f.Report == nil {
		return Report{}, false
	}
	return *f.Report, true
}
