package command

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// runs executes a command line with an input.
func runs(t *testing.T, in string, args ...string) (code int, out, log string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = Run(
		t.Context(),
		append([]string{"stunnerctl"}, args...),
		Streams{In: strings.NewReader(in), Out: &stdout, ErrOut: &stderr},
	)
	return code, stdout.String(), stderr.String()
}

// TestCred: a minted credential verifies with the same shared secret only, until it expires. Secrets are masked unless
// --show-secrets is given.
func TestCred(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	code, out, log := runs(t, "key-of-the-gateway\n", "cred", "mint", "--user", "ada", "--secret-file", "-")
	if code != 0 || !strings.Contains(out, credential.Redacted) || !strings.Contains(log, "--show-secrets") ||
		strings.Contains(out, "key-of") {
		t.Errorf("%d\n%s%s", code, out, log)
	}
	code, out, log = runs(
		t,
		"key-of-the-gateway",
		"cred",
		"mint",
		"--user",
		"ada",
		"--secret-file",
		"-",
		"--show-secrets",
		"-o",
		"json",
	)
	var made credReport
	if err := json.Unmarshal([]byte(out), &made); code != 0 || err != nil || made.User != "ada" {
		t.Fatalf("%d %v\n%s%s", code, err, out, log)
	}
	if err := os.WriteFile(file, []byte(made.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	past := credential.Authority{SharedSecret: "key-of-the-gateway"}
	old, err := past.Mint("ada", time.Minute, time.Now().Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, in string
		args     []string
		code     int
		want     string
	}{
		{"valid", "key-of-the-gateway", []string{"verify", made.Username, "--secret-file", "-", "--password-file", file}, 0, "valid     true"},
		{"other secret", "other", []string{"verify", made.Username, "--secret-file", "-", "--password-file", file}, 1, "does not belong"},
		{"expired", "key-of-the-gateway", []string{"verify", old.Username, "--secret-file", "-", "--password", string(old.Password)}, 1, "expired 59m"},
		{"static name", "key", []string{"verify", "ada", "--secret-file", "-", "--password", "x"}, 1, "static credentials"},
		{"decoded", "", []string{"decode", made.Username}, 0, "ada"},
		{"decoded, expired", "", []string{"decode", old.Username}, 1, "expired"},
		{"decoded, other form", "", []string{"decode", "ada:9893456000"}, 0, "2283-07-06T14:13:20Z"},
		{"decoded, far future", "", []string{"decode", "9893456000:ada"}, 0, "2283"},
		{"caveats", "k", []string{"mint", "--secret-file", "-", "--user", "ada", "--caveats", "~1~Rmedia_janus"}, 0, "ada:~1~Rmedia_janus"},
		{"malformed caveats", "k", []string{"mint", "--secret-file", "-", "--caveats", "~1~A0"}, 1, "read --caveats: malformed caveats"},
		{"decoded caveats", "", []string{"decode", "9893456000:ada:~1~A2~Rmedia_janus"}, 0, "caveats   ~1~Rmedia_janus~A2"},
		{"decoded, malformed caveats", "", []string{"decode", "9893456000:ada:~1~A0"}, 1, "malformed caveats: a gateway refuses"},
		{"decoded, unknown caveat", "", []string{"decode", "9893456000:ada:~1~X1"}, 1, "unknown caveat: a gateway refuses"},
		{"decoded, not yet", "", []string{"decode", "9893456000:ada:~1~N9893450000"}, 1, "not valid for another"},
		{"no secret", "", []string{"mint"}, 2, "--secret-file"},
		{"empty secret", " \n", []string{"mint", "--secret-file", "-"}, 1, "empty"},
		{"colon", "k", []string{"mint", "--secret-file", "-", "--user", "a:b"}, 1, "':'"},
		{"two inputs", "k", []string{"verify", "x", "--secret-file", "-", "--password-file", "-"}, 2, "only one"},
		{"output", "k", []string{"mint", "--secret-file", "-", "-o", "xml"}, 2, "-o xml"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, out, log := runs(t, c.in, append([]string{"cred"}, c.args...)...)
			if code != c.code || !strings.Contains(out+log, c.want) {
				t.Errorf("exit code %d, want %d and %q:\n%s%s", code, c.code, c.want, out, log)
			}
		})
	}
}
