package discovery

import (
	"testing"
	"unicode/utf8"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// F-05, client side: whatever a frame holds, it changes nothing, or delivers one valid config of the wanted id, or is refused.
func FuzzConfigFrame(f *testing.F) {
	good := sample("media/a", "r1")
	for _, seed := range []string{
		text(good), text(sample("media/a", "r2")), text(sample("media/b", "r")), text(config.Zero("media/a")), text(config.Zero("media/b")),
		"", "{}", "null", "no json", `{"version":"v1"}`, `{"version":"v1","items":[]}`, `{"version":"v1","admin":{"name":"media/a"},"listeners":[{"port":0}]}`,
		`{"report":{"id":"media/a"}}`, "\xff",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		w := newWatch("test", "media/a")
		w.receive([]byte(text(good)))
		if e, ok := w.events.pop(); !ok || e.Config.Revision() != good.Revision() {
			t.Fatalf("event %+v", e)
		}
		w.receive(frame)
		e, ok := w.events.pop()
		known := w.delivered["media/a"].revision
		switch {
		case !ok || e.Err != nil:
			if known != good.Revision() || e.Deleted {
				t.Errorf("the good config is lost: %+v", e)
			}
		case e.ID != "media/a":
			t.Errorf("delivered for %q", e.ID)
		case e.Deleted:
			if known != config.Zero("media/a").Revision() {
				c, _, err := config.Parse(frame)
				if err != nil || !c.IsZero() {
					t.Errorf("deleted by %q", frame)
				}
			}
		case e.Config.Validate() != nil || e.Config.Revision() != known:
			t.Errorf("delivered %+v", e)
		}
		if _, more := w.events.pop(); more || len(w.delivered) != 1 {
			t.Error("one frame is one event at most")
		}
	})
}

// F-05, server side: reports are bounded and printable, whatever a client sends.
func FuzzReportFrame(f *testing.F) {
	for _, seed := range []string{
		`{"report":{"id":"media/a","pod":"p","revision":"r","accepted":true,"allocations":1,"draining":true}}`,
		`{"report":{"allocations":-1}}`, `{"report":{"allocations":1e99}}`, `{"report":null}`, `{"report":[]}`, `{}`, ``, "null", "\xff", `{"report":{"error":"\ud800"}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		r, ok := parseReport(frame)
		if !ok && r != (Report{}) {
			t.Errorf("refused, yet %+v", r)
		}
		for _, text := range []string{r.ID, r.Pod, r.Revision, r.Error} {
			if len(text) > reportText || !utf8.ValidString(text) {
				t.Errorf("text %q", text)
			}
		}
		if r.Allocations < 0 {
			t.Errorf("%d allocations", r.Allocations)
		}
	})
}
