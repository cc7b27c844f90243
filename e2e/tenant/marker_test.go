package tenant

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// markers are secret values by the name of the secret. A marker in a text shows that a Secret was read.
type markers struct {
	mu     *sync.Mutex
	values map[string]string
}

func newMarkers() markers { return markers{&sync.Mutex{}, map[string]string{}} }

// of returns the marker of a secret, and creates it if there is none. It is valid in a TURN user name, a password and a
// URL.
func (m markers) of(secret string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.values[secret] == "" {
		m.values[secret] = "marker" + strings.ToLower(rand.Text())
	}
	return m.values[secret]
}

// know uses a secret that the product generated as a marker.
func (m markers) know(secret, value string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.values[secret] = value
}

// in returns the secrets in a text: plain, in hex, in base64, compressed, and in nested encodings.
func (m markers) in(text []byte) (found []string) {
	m.mu.Lock()
	values := maps.Clone(m.values)
	m.mu.Unlock()
	seen := map[string]bool{}
	reveal(text, 4, func(plain []byte) {
		for secret, value := range values {
			if bytes.Contains(plain, []byte(value)) ||
				bytes.Contains(plain, []byte(hex.EncodeToString([]byte(value)))) {
				seen[secret] = true
			}
		}
	})
	return slices.Sorted(maps.Keys(seen))
}

// encoded matches possible base64 in the standard or the URL alphabet.
var encoded = regexp.MustCompile(`[A-Za-z0-9+/_-]{16,}={0,2}`)

// reveal calls each with a text and with everything that is encoded in it.
func reveal(text []byte, depth int, each func([]byte)) {
	each(text)
	if depth == 0 {
		return
	}
	if r, err := gzip.NewReader(bytes.NewReader(text)); err == nil {
		if plain, err := io.ReadAll(r); err == nil {
			reveal(plain, depth-1, each)
		}
	}
	for _, run := range encoded.FindAll(text, -1) {
		usual := strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(string(run), "="))
		for skip := range min(4, len(usual)) { // the match may begin with characters before the encoded text
			part := usual[skip:]
			if len(part)%4 == 1 {
				part = part[:len(part)-1]
			}
			if plain, err := base64.RawStdEncoding.DecodeString(part); err == nil {
				if each(plain); skip == 0 {
					reveal(plain, depth-1, each)
				}
			}
		}
	}
}

// A marker is found in every encoding that the product could use.
func TestMarkers(t *testing.T) {
	m := newMarkers()
	value := m.of("vault")
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, _ = fmt.Fprintf(w, `{"key":%q}`, base64.StdEncoding.EncodeToString([]byte("-----BEGIN "+value)))
	_ = w.Close()
	for name, text := range map[string]string{
		"plain":            "a " + value + " b",
		"base64":           `{"data":"` + base64.StdEncoding.EncodeToString([]byte(value)) + `"}`,
		"inside base64":    base64.URLEncoding.EncodeToString([]byte("xy" + value)),
		"after other text": "token=abc" + base64.RawStdEncoding.EncodeToString([]byte("xyz"+value)),
		"hex":              hex.EncodeToString([]byte(value)),
		"base64 in gzip":   zipped.String(),
		"a Secret of those": `{"data":{"stunnerd.conf.gz":"` + base64.StdEncoding.EncodeToString(
			zipped.Bytes(),
		) + `"}}`,
	} {
		if found := m.in([]byte(text)); !slices.Equal(found, []string{"vault"}) {
			t.Errorf("%s: found %q in %q", name, found, text)
		}
	}
	if found := m.in([]byte("marker")); found != nil {
		t.Errorf("found %q in a text without markers", found)
	}
}
