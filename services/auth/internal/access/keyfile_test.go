package access

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A rotated secret is used within seconds, and an invalid secret is ignored.
func TestKeyFileIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "secret")
		var logs bytes.Buffer
		write := func(text string) {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		first, second := strings.Repeat("a", 32), strings.Repeat("b", 32)
		write(first)
		log := slog.New(slog.NewTextHandler(&logs, nil))
		file, err := openKeyFile("--jwt-secret-file", path, log, Config{SecretFile: path}.secretKey)
		if err != nil {
			t.Fatal(err)
		}
		wants := func(secret string) {
			t.Helper()
			if got, err := file.key(nil); err != nil || string(got.([]byte)) != secret {
				t.Errorf("key %s, %v, want %s", got, err, secret)
			}
		}
		write(second + "\n")
		wants(first)
		time.Sleep(rereadInterval)
		wants(second)
		write("short")
		time.Sleep(rereadInterval)
		wants(second)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rereadInterval)
		wants(second)
		if k := file.state(); k.Problem == "" || time.Since(k.ReadAt) != 2*rereadInterval {
			t.Errorf("%+v, want the problem of the missing file, and the read of the last valid one", k)
		}
		if text := logs.String(); strings.Count(text, "keep known token keys") != 2 || strings.Contains(text, second) ||
			!strings.Contains(text, "holds 5 bytes") {
			t.Errorf("log:\n%s", text)
		}
		write(first)
		time.Sleep(rereadInterval)
		if k := file.state(); k.Problem != "" || time.Since(k.ReadAt) != 0 {
			t.Errorf("%+v, want a read now, although no request has read the file", k)
		}
		wants(first)
	})
}
