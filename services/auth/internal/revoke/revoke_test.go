package revoke

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

func revocation(namespace, user string, until time.Time) Revocation {
	r := Revocation{Namespace: namespace, By: "shop", Revocation: credential.Revocation{
		User: user, IssuedBefore: until.Unix() - 60, Until: until.Unix(),
	}}
	r.ID = IDOf(r.Revocation, []string{namespace + "/*"})
	return r
}

// server is an API server that keeps Revocation objects in pages of two, or another size.
type server struct {
	mu      sync.Mutex
	objects map[string]json.RawMessage // by path
	version int                        // resourceVersion of the object that was written last
	status  int                        // HTTP status of every answer, unless 0
	paths   []string
	page    int    // objects of a page, unless 0
	refuse  string // requests whose path contains this text are refused, unless ""
	// truncate cuts the last bytes of lists.
	truncate int
}

const apiPath = "/apis/stunner.l7mp.io/v1/"

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paths = append(s.paths, r.Method+" "+r.URL.Path)
	body, _ := io.ReadAll(r.Body) // a short body does not decode
	switch known := s.objects[r.URL.Path] != nil; {
	case s.refuse != "" && strings.Contains(r.URL.Path, s.refuse):
		w.WriteHeader(http.StatusForbidden)
	case s.status != 0:
		w.WriteHeader(s.status)
		_, _ = io.WriteString(w, `{"kind":"Status","message":"no"}`)
	case r.Header.Get("Authorization") != "Bearer token":
		w.WriteHeader(http.StatusUnauthorized)
	case r.Method == http.MethodPatch && r.Header.Get("Content-Type") == "application/apply-patch+yaml" &&
		r.URL.Query().Get("fieldManager") != "":
		s.objects[r.URL.Path] = s.withVersion(body)
		_, _ = w.Write(s.objects[r.URL.Path])
	case r.Method == http.MethodDelete && !known:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodDelete && !s.hasVersion(r.URL.Path, body):
		w.WriteHeader(http.StatusConflict)
	case r.Method == http.MethodDelete:
		delete(s.objects, r.URL.Path)
	case r.Method == http.MethodGet && r.URL.Path == apiPath+"revocations":
		s.list(w, r.URL.Query())
	default:
		w.WriteHeader(http.StatusBadRequest)
	}
}

// withVersion adds the next resource version to an object.
func (s *server) withVersion(body []byte) json.RawMessage {
	var m manifest
	if err := json.Unmarshal(body, &m); err != nil {
		panic(err)
	}
	s.version++
	m.Metadata.ResourceVersion = fmt.Sprint(s.version)
	data, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return data
}

// hasVersion reports whether an object has the resource version of the preconditions, if there are any.
func (s *server) hasVersion(path string, options []byte) bool {
	var want struct {
		Preconditions struct{ ResourceVersion string }
	}
	var has manifest
	if len(options) == 0 {
		return true
	}
	err := errors.Join(json.Unmarshal(options, &want), json.Unmarshal(s.objects[path], &has))
	return err == nil && want.Preconditions.ResourceVersion == has.Metadata.ResourceVersion
}

func (s *server) list(w io.Writer, query url.Values) {
	var names []string
	for path := range s.objects {
		hidden := false
		for _, part := range strings.Split(query.Get("fieldSelector"), ",") {
			namespace, without := strings.CutPrefix(part, "metadata.namespace!=")
			hidden = hidden || without && strings.Contains(path, "/namespaces/"+namespace+"/")
		}
		if path > query.Get("continue") && !hidden {
			names = append(names, path)
		}
	}
	slices.Sort(names)
	next := ""
	if size := min(pageSize, cmp.Or(s.page, 2)); len(names) > size {
		names = names[:size]
		next = names[size-1]
	}
	var items [][]byte
	for _, name := range names {
		items = append(items, s.objects[name])
	}
	data := slices.Concat(fmt.Appendf(nil, `{"kind":"RevocationList","metadata":{"continue":%q},"items":[`, next),
		bytes.Join(items, []byte(",")), []byte("]}"))
	_, _ = w.Write(data[:max(0, len(data)-s.truncate)])
}

// newCluster returns a store in an API server.
func newCluster(t *testing.T) (*Cluster, *server) {
	t.Helper()
	api := &server{objects: map[string]json.RawMessage{}}
	s := httptest.NewTLSServer(api)
	t.Cleanup(s.Close)
	dir := t.TempDir()
	ca, token := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "token")
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := errors.Join(os.WriteFile(ca, chain, 0o600), os.WriteFile(token, []byte("token\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	c, err := OpenCluster(s.URL, token, ca)
	if err != nil {
		t.Fatal(err)
	}
	return c, api
}

// Both stores return revocations unchanged, replace a revocation with the same name, and accept the deletion of a
// missing revocation.
func TestStores(t *testing.T) {
	cluster, _ := newCluster(t)
	folder, err := OpenFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	until := time.Unix(1_900_000_000, 0)
	for name, store := range map[string]Store{"folder": folder, "cluster": cluster} {
		want := map[string]Revocation{}
		for i := range 5 {
			r := revocation("media", fmt.Sprint("user: \"$", i, "\n"), until)
			if i == 4 {
				r = Revocation{Namespace: "other", Gateways: []string{"a", "b"}, Revocation: credential.Revocation{
					Credential: "1900000000:ada:~1~A2", Until: until.Unix(),
				}}
				r.ID = IDOf(r.Revocation, []string{"other/a", "other/b"})
			}
			want[r.ID] = r
			for range 2 {
				if err := store.Put(t.Context(), r); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
		}
		list := func() map[string]Revocation {
			all, err := store.List(t.Context())
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			got := map[string]Revocation{}
			for _, r := range all {
				if r.Version == "" {
					t.Errorf("%s: %s has no version", name, r.ID)
				}
				r.Version = ""
				got[r.ID] = r
			}
			if len(got) != len(all) {
				t.Errorf("%s: %d revocations, %d different", name, len(all), len(got))
			}
			return got
		}
		if got := list(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
		for id, r := range want {
			if err := store.Delete(t.Context(), r.Namespace, id, "0"); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if got := list(); !reflect.DeepEqual(got[id], r) {
				t.Errorf("%s: another version of %+v is deleted", name, r)
			}
			for range 2 {
				if err := store.Delete(t.Context(), r.Namespace, id, ""); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		if got := list(); len(got) != 0 {
			t.Errorf("%s: left %+v", name, got)
		}
	}
}

// Files and objects that the service has not written are neither listed nor a reason for an error.
func TestForeignRevocations(t *testing.T) {
	dir := t.TempDir()
	folder, err := OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	own := revocation("media", "ada", time.Unix(1_900_000_000, 0))
	moved, err := json.Marshal(own.manifest())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"revocation-media-user-a.yaml": "kind: [", "revocation-media-b.yaml": string(moved), "gateway.yaml": string(moved),
		"revocation-c.yaml":     strings.Repeat(" ", maxFile+1),
		".revocation-temporary": string(moved),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/dev/zero", filepath.Join(dir, "revocation-zero.yaml")); err != nil {
		t.Fatal(err)
	}
	if all, err := folder.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
	if _, err := OpenFolder(filepath.Join(dir, "gateway.yaml")); err == nil {
		t.Error("a file is no folder")
	}
	cluster, api := newCluster(t)
	api.objects[apiPath+"x"] = json.RawMessage(`{"metadata":{"name":"x","namespace":"media"},"spec":{"user":"ada"}}`)
	if all, err := cluster.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
}

// A user with the right to write Revocations fills a namespace with objects that have the label of this service: few
// large objects, or many small objects. Revocations of other namespaces are still listed, and a Registry writes them.
func TestFloodedNamespaceLeavesOthers(t *testing.T) {
	for name, flood := range map[string]struct{ objects, bytes int }{
		"large objects": {4, 600_000}, "many objects": {200, 100}, "objects of a medium size": {60, 30_000},
	} {
		t.Run(name, func(t *testing.T) {
			c, api := newCluster(t)
			api.page, c.maxBytes = pageSize, 1<<20
			until := time.Now().Add(time.Hour)
			want := map[string]bool{}
			for _, namespace := range []string{"a-before", "z-after"} {
				r := revocation(namespace, "ada", until)
				if err := c.Put(t.Context(), r); err != nil {
					t.Fatal(err)
				}
				want[namespace] = true
			}
			for i := range flood.objects {
				path := fmt.Sprintf("%snamespaces/tenant/revocations/r%05d", apiPath, i)
				api.objects[path] = fmt.Appendf(nil, `{"metadata":{"namespace":"tenant","name":"r%05d","labels":{%q:%q},
					"annotations":{"much":%q}},"spec":{"user":"u","until":"2030-01-01T00:00:00Z"}}`, i, managedBy, manager,
					strings.Repeat("x", flood.bytes))
			}
			for round := range 3 {
				all, err := c.List(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				got, crowd := map[string]bool{}, 0
				for _, r := range all {
					if r.Namespace == "tenant" {
						crowd++
					} else {
						got[r.Namespace] = true
					}
				}
				if !reflect.DeepEqual(got, want) || crowd == 0 || crowd == flood.objects {
					t.Errorf("round %d: namespaces %v, and %d of %d objects of the flood", round, got, crowd, flood.objects)
				}
				if round == 0 {
					api.paths = nil
				}
			}
			if n := len(api.paths); n != 2 {
				t.Errorf("%d requests for two lists after the flood was noticed", n)
			}
			b := NewRegistry(c, time.Now, slog.New(slog.DiscardHandler))
			if err := b.Put(t.Context(), []Revocation{revocation("m-other", "bob", until)}); err != nil {
				t.Errorf("a revocation in another namespace: %v", err)
			}
		})
	}
}

// If a namespace has no room, or the API server refuses its objects, the revocations of other namespaces are written
// and lifted nevertheless, wherever they are in the list.
func TestRefusingNamespaceLeavesOthers(t *testing.T) {
	for _, why := range []string{"full", "refused"} {
		c, api := newCluster(t)
		until := time.Now().Add(time.Hour)
		for i := range maxNamespace {
			r := revocation("tenant", fmt.Sprint("u", i), until)
			r.By = fmt.Sprint(i % 4)
			if why == "full" {
				api.objects[objectPath("tenant", r.ID)] = marshal(t, r.manifest())
			}
		}
		if why == "refused" {
			api.refuse = "/namespaces/tenant/"
		}
		api.page = pageSize
		b := NewRegistry(c, time.Now, slog.New(slog.DiscardHandler))
		if _, err := b.List(t.Context()); err != nil {
			t.Fatal(err)
		}
		var list []Revocation
		for _, namespace := range []string{"a", "tenant", "z"} {
			list = append(list, revocation(namespace, "ada", until))
		}
		err := b.Put(t.Context(), list)
		if err == nil || errors.Is(err, ErrFull) != (why == "full") || errors.Is(err, ErrForbidden) != (why == "refused") {
			t.Errorf("%s: %v", why, err)
		}
		for _, r := range list {
			if written := api.objects[objectPath(r.Namespace, r.ID)] != nil; written == (r.Namespace == "tenant") {
				t.Errorf("%s: written in %s: %t", why, r.Namespace, written)
			}
		}
		_ = b.Delete(t.Context(), list) // refused in one namespace
		for _, r := range list {
			if api.objects[objectPath(r.Namespace, r.ID)] != nil {
				t.Errorf("%s: not lifted in %s", why, r.Namespace)
			}
		}
	}
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// A list that ends early is an error, wherever it ends: revocations would be forgotten otherwise.
func TestTruncatedList(t *testing.T) {
	c, api := newCluster(t)
	if err := c.Put(t.Context(), revocation("media", "ada", time.Unix(1_900_000_000, 0))); err != nil {
		t.Fatal(err)
	}
	for api.truncate = 1; api.truncate < 400; api.truncate++ {
		if all, err := c.List(t.Context()); err == nil {
			t.Fatalf("without the last %d bytes: %v", api.truncate, all)
		}
	}
}

// The answers of the API server become errors that distinguish a missing right from other failures.
func TestClusterErrors(t *testing.T) {
	c, api := newCluster(t)
	for code, forbidden := range map[int]bool{401: true, 403: true, 404: false, 409: false, 500: false, 302: false} {
		api.status = code
		_, err := c.List(t.Context())
		if err == nil || errors.Is(err, ErrForbidden) != forbidden {
			t.Errorf("%d: %v", code, err)
		}
		if err := c.Put(t.Context(), revocation("a", "b", time.Unix(1<<31, 0))); err == nil {
			t.Errorf("%d: no error of Put", code)
		}
	}
	for _, origin := range []string{"http://127.0.0.1", "https://", "https://a/b", "://"} {
		if _, err := OpenCluster(origin, "", ""); err == nil {
			t.Errorf("%q is accepted", origin)
		}
	}
}

// A Registry deletes expired revocations and reads the revocations of other replicas. It has the users of its own
// writes before the store is read again, also if the store fails.
func TestRegistryStoresRevocations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder, err := OpenFolder(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		b := NewRegistry(folder, time.Now, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); b.Run(ctx) }()
		soon := revocation("media", "ada", time.Now().Add(time.Minute))
		if err := b.Put(ctx, []Revocation{soon}); err != nil {
			t.Fatal(err)
		}
		if got := b.IssuedBefore("media", "any", "ada", time.Now()); got != soon.IssuedBefore {
			t.Errorf("issued before %d, want %d", got, soon.IssuedBefore)
		}
		for _, other := range []struct{ namespace, user string }{{"media", "Ada"}, {"other", "ada"}, {"media", ""}} {
			if got := b.IssuedBefore(other.namespace, "any", other.user, time.Now()); got != 0 {
				t.Errorf("%v: issued before %d", other, got)
			}
		}
		foreign := revocation("media", "bob", time.Now().Add(time.Hour))
		foreign.Gateways = []string{"lobby"}
		if err := folder.Put(ctx, foreign); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * refreshInterval)
		synctest.Wait()
		if b.IssuedBefore("media", "lobby", "bob", time.Now()) == 0 || b.IssuedBefore("media", "x", "bob", time.Now()) != 0 {
			t.Error("the revocation of another replica is not known, or not at its gateways only")
		}
		left, err := folder.List(ctx)
		if err != nil || len(left) != 1 || left[0].User != "bob" {
			t.Errorf("left %v, %v", left, err)
		}
		if b.IssuedBefore("media", "any", "ada", time.Now()) != 0 {
			t.Error("an expired revocation is in force")
		}
		cancel()
		<-done
	})
}

// slowStore is a Store in which writes of some users, or reads, wait.
type slowStore struct {
	Store
	slow string
	list func()
	wait chan struct{}
}

func (s slowStore) Put(ctx context.Context, r Revocation) error {
	if r.User == s.slow {
		<-s.wait
	}
	return s.Store.Put(ctx, r)
}

func (s slowStore) List(ctx context.Context) ([]Revocation, error) {
	all, err := s.Store.List(ctx)
	if s.list != nil {
		s.list()
	}
	return all, err
}

// The write of a caller that the store does not answer delays no other caller, no credential, and no read.
func TestNoCallerWaitsForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder, err := OpenFolder(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		store := slowStore{Store: folder, slow: "ada", wait: make(chan struct{})}
		b := NewRegistry(store, time.Now, slog.New(slog.DiscardHandler))
		until := time.Now().Add(time.Hour)
		slow := make(chan error)
		go func() { slow <- b.Put(t.Context(), []Revocation{revocation("media", "ada", until)}) }()
		synctest.Wait()
		bob := revocation("media", "bob", until)
		if err := b.Put(t.Context(), []Revocation{bob}); err != nil {
			t.Error(err)
		}
		for _, user := range []string{"ada", "bob"} {
			if b.IssuedBefore("media", "any", user, time.Now()) == 0 {
				t.Errorf("the revocation of %s is not known", user)
			}
		}
		if all, err := b.List(t.Context()); err != nil || len(all) != 1 {
			t.Errorf("list: %v, %v", all, err)
		}
		if err := b.Delete(t.Context(), []Revocation{bob}); err != nil {
			t.Error(err)
		}
		close(store.wait)
		if err := <-slow; err != nil {
			t.Error(err)
		}
	})
}

// A revocation that is written while the store is read stays known. It is not deleted instead of the revocation that it
// has replaced.
func TestWriteDuringRead(t *testing.T) {
	cluster, _ := newCluster(t)
	folder, err := OpenFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, store := range map[string]Store{"folder": folder, "cluster": cluster} {
		now := time.Now()
		old, renewed := revocation("media", "ada", now.Add(-time.Minute)), revocation("media", "ada", now.Add(time.Hour))
		if err := store.Put(t.Context(), old); err != nil {
			t.Fatal(err)
		}
		var b *Registry
		write := sync.OnceFunc(func() {
			if err := b.Put(t.Context(), []Revocation{renewed}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
		b = NewRegistry(slowStore{Store: store, list: write}, time.Now, slog.New(slog.DiscardHandler))
		if err := b.refresh(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := b.IssuedBefore("media", "any", "ada", now); got != renewed.IssuedBefore {
			t.Errorf("%s: issued before %d, want %d", name, got, renewed.IssuedBefore)
		}
		if left, err := b.List(t.Context()); err != nil || len(left) != 1 || left[0].Until != renewed.Until {
			t.Errorf("%s: left %+v, %v", name, left, err)
		}
	}
}

// Bounds count revocations that are written, replaced, removed and read, in any order.
func TestNumberOfRevocationsIsBounded(t *testing.T) {
	folder, err := OpenFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b := NewRegistry(folder, time.Now, slog.New(slog.DiscardHandler))
	until := time.Now().Add(time.Hour)
	put := func(namespace, by string, i int) error {
		r := revocation(namespace, fmt.Sprint("user", i), until)
		r.By = by
		fit, full := b.reserve([]Revocation{r})
		b.written(fit)
		if len(full) > 0 {
			return ErrFull
		}
		return nil
	}
	for i := range maxNamespace {
		by := "shop"
		if i >= maxCaller {
			by = "game"
		}
		if err := put("media", by, i); err != nil {
			t.Fatal(i, err)
		}
	}
	for _, row := range []struct {
		namespace, by string
		user          int
		want          error
	}{
		{"media", "shop", maxNamespace, ErrFull}, {"media", "new", maxNamespace, ErrFull}, {"media", "shop", 0, nil},
		{"media", "shop", maxCaller, ErrFull}, {"other", "shop", 0, nil},
	} {
		if err := put(row.namespace, row.by, row.user); err != row.want {
			t.Errorf("%+v: %v", row, err)
		}
	}
	gone := revocation("media", "user1", until)
	if err := b.Delete(t.Context(), []Revocation{gone, gone}); err != nil {
		t.Fatal(err)
	}
	if err := put("media", "shop", maxNamespace); err != nil {
		t.Errorf("no room after a deletion: %v", err)
	}
	if _, err := b.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(b.known)+len(b.counts)+len(b.byUser) != 0 {
		t.Errorf("%d revocations are left after the read of an empty store", len(b.known))
	}
}
