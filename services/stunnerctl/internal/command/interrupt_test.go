package command

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
)

// An interrupted command has not succeeded, unless Ctrl-C is its normal end.
func TestInterrupt(t *testing.T) {
	for line, want := range map[string]int{
		"doctor":           exitInterrupted,
		"why media/berlin": exitInterrupted,
		"status":           exitInterrupted,
		"status --watch":   0,
		"config --watch":   0,
		"refusals --watch": 0,
		"turncat udp://127.0.0.1:0 turn://a:b@127.0.0.1:1 udp://127.0.0.1:1": 0,
	} {
		w := newProvider(t)
		ctx, interrupt := context.WithCancel(t.Context())
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			interrupt() // while the command waits for the answer
			<-r.Context().Done()
		}))
		t.Cleanup(server.Close)
		w.write(t, "discovery.url", server.URL)
		var out bytes.Buffer
		errs := &eachWrite{do: func(text string) {
			if strings.Contains(text, "listening") { // turncat
				interrupt()
			}
		}}
		args := append([]string{"stunnerctl", "--folder", w.folder, "--log", "all:INFO"}, strings.Fields(line)...)
		code := Run(ctx, args, Streams{In: os.Stdin, Out: &out, ErrOut: errs})
		if code != want || strings.Contains(errs.String(), "cancel") {
			t.Errorf("%s: exit code %d, want %d: %s", line, code, want, errs)
		}
	}
}

// eachWrite is a writer that calls a function with each text. It may be used concurrently.
type eachWrite struct {
	sync.Mutex
	bytes.Buffer
	do func(text string)
}

func (w *eachWrite) Write(text []byte) (int, error) {
	w.Lock()
	defer w.Unlock()
	w.do(string(text))
	return w.Buffer.Write(text)
}
