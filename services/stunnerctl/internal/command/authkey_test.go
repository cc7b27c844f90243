package command

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// auth key new prints a key with 256 random bits once, and its hash for the policy file.
func TestAuthKeyNew(t *testing.T) {
	form := regexp.MustCompile(`(?s)^Key, which is shown only now:\n\n(stunner_[A-Za-z0-9_-]{43})\n\n` +
		`Entry for the policy file, below keys:\n\n- name: shop\.eu\n  hashes:\n  - (sha256:[0-9a-f]{64})\n$`)
	seen := map[string]bool{}
	for range 3 {
		out, errs, code := execute(t, "", "auth", "key", "new", "shop.eu")
		m := form.FindStringSubmatch(out)
		if code != 0 || m == nil || seen[m[1]] || strings.Contains(errs, "stunner_") {
			t.Fatalf("%d\n%s%s", code, out, errs)
		}
		seen[m[1]] = true
		if want := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(m[1]))); m[2] != want {
			t.Errorf("hash %s, want %s", m[2], want)
		}
	}
	for name, entry := range map[string]string{"42": `- name: "42"`, "true": `- name: "true"`, "2026-11-30": `- name: "2026-11-30"`, "1.2.3": "- name: 1.2.3"} {
		if out, _, code := execute(t, "", "auth", "key", "new", name); code != 0 || !strings.Contains(out, entry+"\n  hashes:\n") {
			t.Errorf("the policy file needs %s: %d\n%s", entry, code, out)
		}
	}
	out, _, code := execute(t, "", "auth", "key", "new", "shop", "-o", "json")
	var made apiKey
	if err := json.Unmarshal([]byte(out), &made); code != 0 || err != nil || made.Name != "shop" ||
		made.Hash != fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(made.Key))) {
		t.Errorf("%d %v\n%s", code, err, out)
	}
	for _, args := range [][]string{{}, {"a/b"}, {"-"}, {""}, {"a", "b"}, {strings.Repeat("a", 64)}} {
		if out, errs, code := execute(t, "", append([]string{"auth", "key", "new"}, args...)...); code != exitUsage {
			t.Errorf("%q: exit code %d\n%s%s", args, code, out, errs)
		}
	}
}
