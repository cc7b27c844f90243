package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// With --usage-user-key, user ids are hashed, with the same result in all processes with the key. A key that is too
// short or too long is refused with the remedy.
func TestUserKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	for _, c := range []struct {
		key, problem string
	}{
		{"0123456789abcdef", ""}, {"0123456789abcde", "use a key of 16 to 4096 random bytes"},
		{strings.Repeat("k", maxUserKey), ""}, {strings.Repeat("k", maxUserKey+1), "use a key of 16 to 4096 random bytes"},
	} {
		if err := os.WriteFile(path, []byte(c.key), 0o600); err != nil {
			t.Fatal(err)
		}
		hash, err := userHash(path)
		if c.problem != "" {
			if err == nil || !strings.Contains(err.Error(), c.problem) || !strings.Contains(err.Error(), "--usage-user-key") {
				t.Errorf("key of %d bytes: %v", len(c.key), err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if a, b := hash("ann"), hash("bob"); len(a) != 32 || a == b || a != hash("ann") || strings.Contains(a, "ann") {
			t.Errorf("hashes %q and %q", a, b)
		}
	}
	if _, err := userHash(path + ".missing"); err == nil || !strings.Contains(err.Error(), "--usage-user-key") {
		t.Errorf("missing file: %v", err)
	}
}

// If the reader of standard output has ended, the process and its calls continue, and there is a log line.
func TestReaderOfUsageRecordsEnds(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	p := &process{t: t, peer: echo(t), ended: make(chan struct{}), stdout: writer}
	p.launch("--usage-records", "-", "--config", p.config(func(*config.Config) {}))
	ends, stays := p.mustDial("ann"), p.mustDial("bob")
	for _, c := range []*call{ends, stays} {
		if err := c.echo("before"); err != nil {
			t.Fatal(err)
		}
	}
	if err := ends.relay.Close(); err != nil { // its last record is due
		t.Fatal(err)
	}
	p.within("a failed delivery", func() bool { return bytes.Contains(p.said(), []byte("broken pipe")) })
	p.runs()
	if err := stays.echo("after"); err != nil {
		t.Error(err)
	}
}
