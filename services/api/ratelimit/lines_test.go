package ratelimit

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// output is a log that timers write to.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// take returns the log lines since the last call.
func (o *output) take() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	text := o.text.String()
	o.text.Reset()
	return text
}

// The first refusal with a reason is logged at once, and the number of further refusals once a minute.
func TestLinesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		var l Lines
		log := slog.New(slog.NewTextHandler(&out, nil))
		wants := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for line := range strings.Lines(out.take()) {
				_, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
				got = append(got, rest)
			}
			if strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("%s: lines\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
		refuse := func(reason string) { l.Log(log, slog.LevelInfo, "refused", reason, "why", "remote", "192.0.2.1:9") }
		for range 1000 {
			refuse("a")
		}
		refuse("b")
		wants("at once", "level=INFO msg=refused reason=a text=why times=1 remote=192.0.2.1:9",
			"level=INFO msg=refused reason=b text=why times=1 remote=192.0.2.1:9")
		time.Sleep(lineInterval)
		wants("after a minute", "level=INFO msg=refused reason=a text=why times=999")
		refuse("b") // the minute had no further refusal with reason b
		wants("another", "level=INFO msg=refused reason=b text=why times=1 remote=192.0.2.1:9")
		time.Sleep(10 * lineInterval)
		wants("in peace")
	})
}
