// Package usagelog delivers usage records: as OpenTelemetry logs, or as lines of JSON.
package usagelog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/stunner-gateway/stunner/services/api/otlp"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/usage"
)

// Sink is a usage.Sink that is closed at the end of the process.
type Sink interface {
	usage.Sink
	io.Closer
}

// Origin is where records come from.
type Origin struct {
	// Instance is the name of the pod or the host. Version is the version of the program.
	Instance, Version string
}

// Open returns the sink that a flag and the environment request, or nil. to is a file, "-" for
// standard output, or empty. It takes precedence over the standard variables of OpenTelemetry.
func Open(to string, env func(string) string, from Origin) (Sink, error) {
	switch {
	case to == "-":
		return newLines("", os.Stdout), nil
	case to != "":
		l := newLines(to, nil)
		return l, l.reopen()
	}
	e, err := otlp.Open(otlp.Logs, env, otlp.Process{Service: "stunnerd", Version: from.Version, Instance: from.Instance})
	if e == nil || err != nil {
		return nil, err
	}
	return events{e}, nil
}

// lines writes records as lines of JSON.
type lines struct {
	path string // empty for out
	// timeout limits the duration of a delivery.
	timeout time.Duration
	// writing has a value during a write. It guards the fields below. A write to a volume or a pipe may block for any
	// time.
	writing chan struct{}
	out     io.Writer
	file    *os.File
	// torn is set if the last line may be incomplete.
	torn bool
}

func newLines(path string, out io.Writer) *lines {
	return &lines{path: path, out: out, timeout: otlp.Timeout, writing: make(chan struct{}, 1)}
}

// reopen opens the file, unless it is open and still has its name: a rotation renames it.
func (l *lines) reopen() error {
	if l.path == "" {
		return nil
	}
	if l.file != nil {
		own, err := l.file.Stat()
		named, namedErr := os.Stat(l.path)
		if err == nil && namedErr == nil && os.SameFile(own, named) {
			return nil
		}
		if namedErr != nil && !errors.Is(namedErr, fs.ErrNotExist) {
			return fmt.Errorf("--usage-records: %w", namedErr)
		}
		_ = l.file.Close()
		l.file = nil
	}
	// O_NONBLOCK: the open of a named pipe without a reader must not wait.
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return fmt.Errorf("--usage-records: %w", err)
	}
	l.file, l.out = f, f
	return nil
}

// Deliver implements usage.Sink. It may return while a write to a volume or pipe still blocks. This write continues,
// and no other write begins before it has ended.
func (l *lines) Deliver(ctx context.Context, records []usage.Record) error {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	for i := range records {
		if err := encoder.Encode(&records[i]); err != nil {
			return fmt.Errorf("encode usage record: %w", err)
		}
	}
	slow := fmt.Errorf("the volume or the pipe takes none for %v", l.timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, l.timeout, slow)
	defer cancel()
	done := make(chan error, 1)
	select {
	case l.writing <- struct{}{}:
		go func() {
			err := l.write(b.Bytes())
			<-l.writing
			done <- err
		}()
	case <-ctx.Done():
	}
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("write usage records: %w", err)
	}
	return nil
}

// write writes lines. The caller has set writing.
func (l *lines) write(text []byte) error {
	if err := l.reopen(); err != nil {
		return err
	}
	if l.torn {
		text = append([]byte{'\n'}, text...)
	}
	_, err := l.out.Write(text)
	l.torn = err != nil
	return err
}

// Close implements io.Closer. Standard output stays open, and so does a file during a write.
func (l *lines) Close() error {
	select {
	case l.writing <- struct{}{}:
		defer func() { <-l.writing }()
	default:
		return errors.New("close usage records: a write waits for the volume or the pipe")
	}
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}
