package usagelog

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	"google.golang.org/protobuf/proto"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/usage"
)

func sample() []usage.Record {
	start := time.Date(2027, 1, 15, 8, 0, 0, 0, time.UTC)
	end := start.Add(time.Minute)
	sent, received := usage.Count{Bytes: 1600, Packets: 10}, usage.Count{Bytes: 3200, Packets: 20}
	return []usage.Record{{
		Time: end, Session: strings.Repeat("0a", 16), Part: "00000000000000ff", Final: true, Gateway: "media/edge",
		Listener: "media/edge/udp", Protocol: "TURN-UDP", User: "<ann>", Caveats: "0123456789abcdef", Start: start,
		End: &end, Reason: usage.ByClient, Sent: sent, Received: received,
		Routes: []usage.Route{{Route: "media/echo", Sent: sent, Received: received}},
	}, {Time: start, Session: strings.Repeat("0b", 16), Part: "00000000000000fe", Listener: "l", Protocol: "TURN-TCP", Start: start}}
}

// The lines of a file are the JSON form of records. If the file is renamed, a new file is created. An incomplete line
// is never joined with the next line.
func TestLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "usage.jsonl")
	s, err := Open(path, os.Getenv, Origin{})
	if err != nil {
		t.Fatal(err)
	}
	deliver := func() {
		t.Helper()
		if err := s.Deliver(t.Context(), sample()); err != nil {
			t.Fatal(err)
		}
	}
	deliver()
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	deliver()
	s.(*lines).torn = true
	deliver()
	const first = `{"time":"2027-01-15T08:01:00Z","session":"0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a",` +
		`"part":"00000000000000ff","final":true,"gateway":"media/edge","listener":"media/edge/udp",` +
		`"protocol":"TURN-UDP","user":"<ann>","caveats":"0123456789abcdef","start":"2027-01-15T08:00:00Z",` +
		`"end":"2027-01-15T08:01:00Z","reason":"client","sent":{"bytes":1600,"packets":10},` +
		`"received":{"bytes":3200,"packets":20},"routes":[{"route":"media/echo",` +
		`"sent":{"bytes":1600,"packets":10},"received":{"bytes":3200,"packets":20}}]}` + "\n"
	for name, records := range map[string]int{path + ".1": 2, path: 4} {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(string(data), first) {
			t.Errorf("%s begins with\n%.700s\nwant\n%s", name, data, first)
		}
		found := 0
		for line := range strings.Lines(string(data)) {
			if line != "\n" && json.Valid([]byte(line)) {
				found++
			}
		}
		if found != records {
			t.Errorf("%s: %d records, want %d", name, found, records)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: only the owner may read users", info.Mode(), err)
	}
}

// A slow reader of a pipe delays no delivery longer than timeout, and does not delay the end of the process. There is
// one write at a time. When the reader reads again, all lines are complete.
func TestSlowReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	s, err := Open(path, os.Getenv, Origin{})
	if err != nil {
		t.Fatal(err)
	}
	l := s.(*lines)
	for _, out := range []struct {
		name string
		of   io.Writer // nil for the file
	}{{"named pipe", nil}, {"standard output", blocking(t, path)}} {
		t.Run(out.name, func(t *testing.T) {
			slow := newLines("", out.of)
			if out.of == nil {
				slow = l
			}
			slow.timeout = 20 * time.Millisecond
			many := slices.Repeat(sample(), 100)
			accepted := 0
			for err = nil; err == nil; accepted++ {
				err = slow.Deliver(t.Context(), many)
			}
			for range 5 {
				if err := slow.Deliver(t.Context(), many); err == nil || !strings.Contains(err.Error(), "takes none for 20ms") {
					t.Errorf("delivered: %v", err)
				}
			}
			ended, end := context.WithCancel(t.Context())
			slow.timeout = time.Hour
			end()
			if err := slow.Deliver(ended, many); !errors.Is(err, context.Canceled) {
				t.Errorf("delivered: %v", err)
			}
			if err := slow.Close(); err == nil {
				t.Error("closed during a write")
			}
			lines := bufio.NewScanner(reader)
			for range accepted * len(many) {
				if !lines.Scan() || !json.Valid(lines.Bytes()) {
					t.Fatalf("line %q, %v", lines.Text(), lines.Err())
				}
			}
			slow.writing <- struct{}{} // the write ends
			<-slow.writing
			next := sample()[:1]
			next[0].Session = "next"
			if err := slow.Deliver(t.Context(), next); err != nil || !lines.Scan() || !strings.Contains(lines.Text(), "next") {
				t.Errorf("%v, line %q", err, lines.Text())
			}
		})
	}
}

// blocking opens a pipe whose writes block a thread, as writes to standard output do.
func blocking(t *testing.T, path string) *os.File {
	t.Helper()
	fd, err := syscall.Open(path, syscall.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), path)
	t.Cleanup(func() { f.Close() })
	return f
}

// The flag and the variables determine where records are delivered. An error names the variable.
func TestOpen(t *testing.T) {
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
	for _, c := range []struct {
		to   string
		env  map[string]string
		want string // "lines", "otlp", "" or a part of the error
	}{
		{"", nil, ""},
		{"-", map[string]string{endpoint: "http://127.0.0.1:4318"}, "lines"},
		{"", map[string]string{endpoint: "http://127.0.0.1:4318"}, "otlp"},
		{"", map[string]string{endpoint: "http://127.0.0.1:4318", "OTEL_LOGS_EXPORTER": "none"}, ""},
		{"", map[string]string{endpoint: "127.0.0.1:4318"}, endpoint},
		{"/nowhere/usage", nil, "--usage-records"},
	} {
		s, err := Open(c.to, func(name string) string { return c.env[name] }, Origin{})
		got := ""
		switch s := s.(type) {
		case *lines:
			if got = "lines"; err != nil {
				got = err.Error()
			}
		case events:
			got = "otlp"
			_ = s.Close()
		default:
			if err != nil {
				got = err.Error()
			}
		}
		if got != c.want && (c.want == "" || err == nil || !strings.Contains(got, c.want)) {
			t.Errorf("%q %v: %q, want %q", c.to, c.env, got, c.want)
		}
	}
}

// A collector receives each record as an event whose attributes are the fields of the JSON form. An error of the
// collector is an error of Deliver, so that the record is delivered again.
func TestCollector(t *testing.T) {
	var refuse atomic.Bool
	var got []*collector.ExportLogsServiceRequest
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body io.Reader = r.Body
		if r.Header.Get("Content-Encoding") == "gzip" {
			body, _ = gzip.NewReader(r.Body)
		}
		data, err := io.ReadAll(body)
		request := new(collector.ExportLogsServiceRequest)
		if err != nil || r.URL.Path != "/v1/logs" || proto.Unmarshal(data, request) != nil {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		if got := r.Header.Get("Api-Key"); got != "a,b" {
			t.Errorf("header %q", got)
		}
		if refuse.Load() {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		got = append(got, request)
	}))
	defer server.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", " api-key=a%2Cb , other=1")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test,service.version=2")
	s, err := Open("", os.Getenv, Origin{Instance: "pod-1", Version: "1"})
	if err != nil {
		t.Fatal(err)
	}
	refuse.Store(true)
	if err := s.Deliver(t.Context(), sample()); err == nil {
		t.Error("the refusal of the collector is no error")
	}
	refuse.Store(false)
	if err := s.Deliver(t.Context(), sample()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if len(got) != 1 || len(got[0].ResourceLogs) != 1 || len(got[0].ResourceLogs[0].ScopeLogs) != 1 {
		t.Fatalf("%d requests: %v", len(got), got)
	}
	of := got[0].ResourceLogs[0]
	resource := values(of.Resource.Attributes)
	for key, want := range map[string]any{
		"service.name": "stunnerd", "service.instance.id": "pod-1", "deployment.environment": "test", "service.version": "2",
	} {
		if resource[key] != want {
			t.Errorf("resource %s: %v, want %v", key, resource[key], want)
		}
	}
	records := of.ScopeLogs[0].LogRecords
	if len(records) != 2 || records[0].EventName != eventName {
		t.Fatalf("%d records: %v", len(records), records)
	}
	for i, want := range sample() {
		data, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var fields map[string]any
		if err := json.Unmarshal(data, &fields); err != nil {
			t.Fatal(err)
		}
		delete(fields, "time")
		attributes, err := json.Marshal(values(records[i].Attributes))
		if err != nil {
			t.Fatal(err)
		}
		if want, _ := json.Marshal(fields); string(attributes) != string(want) {
			t.Errorf("attributes\n%s\nwant\n%s", attributes, want)
		}
		if records[i].TimeUnixNano != uint64(want.Time.UnixNano()) {
			t.Errorf("time %d", records[i].TimeUnixNano)
		}
	}
}

// values returns attributes as JSON values.
func values(list []*common.KeyValue) map[string]any {
	m := map[string]any{}
	for _, kv := range list {
		m[kv.Key] = value(kv.Value)
	}
	return m
}

func value(v *common.AnyValue) any {
	switch v := v.Value.(type) {
	case *common.AnyValue_StringValue:
		return v.StringValue
	case *common.AnyValue_BoolValue:
		return v.BoolValue
	case *common.AnyValue_IntValue:
		return v.IntValue
	case *common.AnyValue_KvlistValue:
		return values(v.KvlistValue.Values)
	case *common.AnyValue_ArrayValue:
		var list []any
		for _, one := range v.ArrayValue.Values {
			list = append(list, value(one))
		}
		return list
	}
	return nil
}
