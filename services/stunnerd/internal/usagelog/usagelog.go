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
	"strings"
	"sync"
	"syscall"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/usage"
)

// Sink is a usage.Sink that is closed at the end of the process.
type Sink interface {
	usage.Sink
	io.Closer
}

// Origin is where records come from.
type Origin struct {
	// Instance is the name of the pod or the host, and Version that of the program.
	Instance, Version string
}

// Open returns the sink that a flag and the environment ask for, or nil if they ask for none. to is a file, "-" for
// standard output, or empty. It takes precedence over the standard variables of OpenTelemetry.
func Open(to string, env func(string) string, from Origin) (Sink, error) {
	switch {
	case to == "-":
		return &lines{out: os.Stdout}, nil
	case to != "":
		l := &lines{path: to}
		return l, l.reopen()
	case strings.EqualFold(env("OTEL_SDK_DISABLED"), "true"), env("OTEL_LOGS_EXPORTER") == "none",
		env("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && env("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT") == "":
		return nil, nil
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if protocol := env(name); protocol != "" {
			if protocol != "http/protobuf" {
				return nil, fmt.Errorf("%s %q: only http/protobuf is supported: use it, and port 4318 as a rule", name, protocol)
			}
			break
		}
	}
	return openOTLP(env, from)
}

// lines writes records as lines of JSON.
type lines struct {
	path string // empty for out
	mu   sync.Mutex
	out  io.Writer
	file *os.File
	// torn is set if the last line may not be whole.
	torn bool
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

// Deliver implements usage.Sink.
func (l *lines) Deliver(_ context.Context, records []usage.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.reopen(); err != nil {
		return err
	}
	var b bytes.Buffer
	if l.torn {
		b.WriteByte('\n')
	}
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	for i := range records {
		if err := encoder.Encode(&records[i]); err != nil {
			return fmt.Errorf("encode usage record: %w", err)
		}
	}
	_, err := l.out.Write(b.Bytes())
	if l.torn = err != nil; l.torn {
		return fmt.Errorf("write usage records: %w", err)
	}
	return nil
}

// Close implements io.Closer. Standard output stays open.
func (l *lines) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}
