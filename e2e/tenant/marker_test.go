package tenant

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
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

// know registers a secret that the product has generated as a marker.
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

// ownWords are in Secrets of tenants, and must be in no other object.
const ownWords = "OWN-WORDS-OF-A-TENANT"

// noSecretIsExposed searches for secrets of others in all objects that tenants may read, in the ConfigMaps and events
// of the whole cluster, in logs and in metrics. What a tenant has written into a Secret of its own is in no other
// object.
func noSecretIsExposed(t *testing.T) {
	n := newTenant(t, attempt{})
	reader, err := discovery.NewDiscoveryClientForConfig(run.Cluster.Admin.Config)
	n.must(err)
	lists, err := reader.ServerPreferredNamespacedResources()
	n.must(err)
	readable := 0
	for _, l := range lists {
		version, err := schema.ParseGroupVersion(l.GroupVersion)
		n.must(err)
		for _, r := range l.APIResources {
			if slices.Contains(r.Verbs, "list") && n.searches(version.WithKind(r.Kind)) {
				readable++
			}
		}
	}
	if readable < 20 {
		t.Errorf("a tenant may read only %d kinds", readable)
	}
	n.finds("log of the operator", []byte(run.OperatorProcess.Output()))
	n.finds("log of the auth service", []byte(run.AuthProcess.Output()))
	_, metrics, err := harness.Get(t.Context(), run.Health+"/metrics")
	n.must(err)
	n.finds("metrics of the operator", metrics)
}

// searches looks for secrets in all objects of a kind in namespaces of tenants. For kinds that carry no secrets of
// their owners, it also looks at objects in other namespaces. It reports whether a tenant may read that kind.
func (n *tenant) searches(kind schema.GroupVersionKind) bool {
	n.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind)
	err := n.List(n.Context(), list, client.InNamespace(n.name))
	if apierrors.IsForbidden(err) {
		return false
	}
	n.must(err)
	n.must(run.admin.List(n.Context(), list))
	for _, o := range list.Items {
		where := kind.Kind + " " + o.GetNamespace() + "/" + o.GetName()
		unstructured.RemoveNestedField(o.Object, "metadata", "managedFields")
		if !strings.HasPrefix(o.GetNamespace(), "tenant-") {
			if kind.Kind == "Secret" {
				continue
			}
			if _, found := o.Object["status"]; found {
				o.Object = map[string]any{"status": o.Object["status"]} // the spec may hold a secret of its owner
			}
		}
		text, err := json.Marshal(o.Object)
		n.must(err)
		n.finds(where, text)
		if kind.Kind != "Secret" && bytes.Contains(text, []byte(ownWords)) {
			n.Errorf("%s holds: %s", where, ownWords)
		}
	}
	return true
}

// finds reports secrets of others in a text as errors.
func (n *tenant) finds(where string, text []byte) {
	n.Helper()
	for _, secret := range run.markers.in(text) {
		n.Errorf("%s holds: %s", where, secret)
	}
}

// TestMarkersAreFoundInEachEncoding: a marker is found in every encoding that the product could use.
func TestMarkersAreFoundInEachEncoding(t *testing.T) {
	m := newMarkers()
	value := m.of("vault")
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, _ = fmt.Fprintf(w, `{"key":%q}`, base64.StdEncoding.EncodeToString([]byte("-----BEGIN "+value)))
	_ = w.Close()
	for name, text := range map[string]string{
		"plain":             "a " + value + " b",
		"base64":            `{"data":"` + base64.StdEncoding.EncodeToString([]byte(value)) + `"}`,
		"inside base64":     base64.URLEncoding.EncodeToString([]byte("xy" + value)),
		"after other text":  "token=abc" + base64.RawStdEncoding.EncodeToString([]byte("xyz"+value)),
		"hex":               hex.EncodeToString([]byte(value)),
		"base64 in gzip":    zipped.String(),
		"a Secret of those": `{"data":{"stunnerd.conf.gz":"` + base64.StdEncoding.EncodeToString(zipped.Bytes()) + `"}}`,
	} {
		if found := m.in([]byte(text)); !slices.Equal(found, []string{"vault"}) {
			t.Errorf("%s: found %q in %q", name, found, text)
		}
	}
	if found := m.in([]byte("marker")); found != nil {
		t.Errorf("found %q in a text without markers", found)
	}
}
