package rest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/auth/internal/rest"
	"github.com/stunner-gateway/stunner/services/auth/internal/revoke"
)

// memory is a store of revocations that fails if err is set.
type memory struct {
	err error

	mu  sync.Mutex
	all map[string]revoke.Revocation
}

func (m *memory) List(context.Context) ([]revoke.Revocation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.all)), m.err
}

func (m *memory) Put(_ context.Context, r revoke.Revocation) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[string]revoke.Revocation{}
	}
	m.all[r.Namespace+"/"+r.ID] = r
	return m.err
}

func (m *memory) Delete(_ context.Context, namespace, id, _ string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.all, namespace+"/"+id)
	return m.err
}

// full returns a store with as many revocations of a namespace as it may have.
func full(namespace string) *memory {
	m := &memory{}
	for i := range 1000 {
		r := revoke.Revocation{Namespace: namespace, ID: fmt.Sprint("user-", i), By: fmt.Sprint(i % 4)}
		r.User, r.Until = fmt.Sprint(i), now.Unix()+60
		_ = m.Put(context.Background(), r) // the store returns no error
	}
	return m
}

// registry returns a Registry that has read its store, unless the store fails.
func registry(store revoke.Store) *revoke.Registry {
	b := revoke.NewRegistry(store, func() time.Time { return now }, slog.New(slog.DiscardHandler))
	_, _ = b.List(context.Background())
	return b
}

// revokingService returns a service with an API key "secret" of shop, whose entry in the policy has further fields.
func revokingService(t *testing.T, fields string, store revoke.Store) *service {
	o := rest.Options{Policy: keyPolicy(t, "shop", "secret", fields)}
	if store != nil && store != (*memory)(nil) {
		o.Revocations = registry(store)
	}
	return newServiceWith(t, o, gateways()...)
}

func revoking(body, fields string, store *memory) func(*testing.T, keys) provoked {
	return func(t *testing.T, _ keys) provoked {
		return provoked{revokingService(t, fields, store), keyed(http.MethodPost, "/v1/revocations", body)}
	}
}

// keyed returns a request with the API key of revokingService.
func keyed(method, path, body string) *http.Request {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	r.Header.Set("Authorization", "Bearer secret")
	return r
}

// credentialOf requests a credential of a user at media/oslo, and returns its user name.
func (s *service) credentialOf(t *testing.T, user string) string {
	t.Helper()
	answer := decode[rest.TurnAuth](t, s.do(t, keyed(http.MethodGet,
		"/?service=turn&namespace=media&gateway=oslo&ttl=3600&username="+user, "")), http.StatusOK)
	return answer.Username
}

// A revocation is stored, listed and lifted. From the request on, before any config has it, new credentials of the user
// have a time of issue that the revocation accepts. Credentials of other users have no time of issue.
func TestRevocation(t *testing.T) {
	folder := t.TempDir()
	store, err := revoke.OpenFolder(folder)
	if err != nil {
		t.Fatal(err)
	}
	s := revokingService(t, "revoke: any", store)
	before := s.credentialOf(t, "ada")
	if before != "1893456000:ada" {
		t.Fatalf("a credential of a user that is not revoked: %s", before)
	}
	made := decode[rest.Revocation](t, s.do(t, keyed(http.MethodPost, "/v1/revocations", `{"user":"ada"}`)), http.StatusCreated)
	if got := *made.User; got != "ada" || !made.IssuedBefore.Equal(now.Add(time.Second)) ||
		!made.Until.Equal(now.Add(25*time.Hour)) || !slices.Equal(made.Gateways, []string{"media/*", "short/*"}) {
		t.Errorf("made %+v", made)
	}
	again := decode[rest.Revocation](t, s.do(t, keyed(http.MethodPost, "/v1/revocations", `{"user":"ada"}`)), http.StatusCreated)
	if again.ID != made.ID {
		t.Errorf("a repetition has id %s, want %s", again.ID, made.ID)
	}
	files, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil || len(files) != 2 {
		t.Fatalf("files %v, %v", files, err)
	}
	data, err := os.ReadFile(files[0])
	var object struct {
		APIVersion, Kind string
		Metadata         struct{ Namespace, Name string }
		Spec             struct{ User, IssuedBefore, Until string }
	}
	if err != nil || json.Unmarshal(data, &object) != nil || object.APIVersion != "stunner.l7mp.io/v1" ||
		object.Kind != "Revocation" || object.Metadata.Namespace != "media" || object.Metadata.Name != made.ID ||
		object.Spec.User != "ada" || object.Spec.IssuedBefore != "2029-12-31T23:00:01Z" {
		t.Errorf("%s, %v", data, err)
	}

	after, other := s.credentialOf(t, "ada"), s.credentialOf(t, "adam")
	revoked := credential.NewRevocations([]credential.Revocation{
		{User: "ada", IssuedBefore: made.IssuedBefore.Unix(), Until: made.Until.Unix()},
	})
	for name, want := range map[string]bool{before: true, after: false, other: false} {
		parsed, err := credential.ParseUsername(name)
		if err != nil || revoked.Revoked(name, parsed, now) != want {
			t.Errorf("%s: %v, revoked %t, want %t", name, err, !want, want)
		}
	}
	if other != "1893456000:adam" {
		t.Errorf("another user: %s", other)
	}

	// Another replica has the same folder.
	replica := revokingService(t, "revoke: any", store)
	listed := decode[rest.Revocations](t, replica.do(t, keyed(http.MethodGet, "/v1/revocations", "")), http.StatusOK)
	if len(listed.Revocations) != 1 || listed.Revocations[0].ID != made.ID {
		t.Errorf("listed %+v", listed)
	}
	for _, want := range []int{http.StatusNoContent, http.StatusNotFound} {
		if got := replica.do(t, keyed(http.MethodDelete, "/v1/revocations/"+made.ID, "")).StatusCode; got != want {
			t.Errorf("lift: %d, want %d", got, want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(folder, "*")); len(left) != 0 {
		t.Errorf("left %v", left)
	}
	var changes []string
	for _, line := range append(s.audited(), replica.audited()...) {
		if line["revocation"] == made.ID && line["user"] == "ada" && line["key"] == "shop" {
			changes = append(changes, line["change"])
		}
	}
	if !slices.Equal(changes, []string{"revoked", "revoked", "lifted"}) {
		t.Errorf("audit log: %v", changes)
	}
}

// The policy determines the users whose credentials a caller may revoke, and the gateways. A caller can list and lift
// only revocations that it may also create.
func TestRevocationWithinThePolicy(t *testing.T) {
	for name, row := range map[string]struct {
		fields, body string
		want         int
		gateways     []string
	}{
		"any":                     {"revoke: any", `{"user":"bob"}`, 201, []string{"media/*", "short/*"}},
		"own by prefix":           {"revoke: own\nuser: shop-{username}", `{"user":"shop-bob"}`, 201, []string{"media/*", "short/*"}},
		"own of another":          {"revoke: own\nuser: shop-{username}", `{"user":"bank-bob"}`, 403, nil},
		"own without the name":    {"revoke: own\nuser: shop-{username}", `{"user":"shop-"}`, 403, nil},
		"own fixed":               {"revoke: own\nuser: shop", `{"user":"shop"}`, 201, []string{"media/*", "short/*"}},
		"own fixed, of another":   {"revoke: own\nuser: shop", `{"user":"shop2"}`, 403, nil},
		"own credential":          {"revoke: own\nuser: shop-{username}", `{"credential":"1893456000:shop-a:~1~A2"}`, 201, []string{"media/*", "short/*"}},
		"credential of another":   {"revoke: own\nuser: shop-{username}", `{"credential":"1893456000:bank-a"}`, 403, nil},
		"prefix in another field": {"revoke: own\nuser: shop-{username}", `{"credential":"shop-1893456000:1893456001:a"}`, 403, nil},
		"one gateway of the policy": {
			"revoke: any\ngateways: [media/oslo]", `{"user":"bob"}`, 201, []string{"media/oslo"},
		},
		"a pattern of names": {"revoke: any\ngateways: [media/o*]", `{"user":"bob"}`, 201, []string{"media/oslo"}},
		"a namespace":        {"revoke: any\ngateways: [media/*]", `{"user":"bob"}`, 201, []string{"media/*"}},
		"named":              {"revoke: any", `{"user":"bob","gateways":[{"namespace":"media","name":"oslo"}]}`, 201, []string{"media/oslo"}},
		"outside":            {"revoke: any\ngateways: [media/*]", `{"user":"bob","gateways":[{"namespace":"short","name":"lived"}]}`, 403, nil},
		"unknown gateway":    {"revoke: any", `{"user":"bob","gateways":[{"namespace":"media","name":"none"}]}`, 404, nil},
		"both":               {"revoke: any", `{"user":"bob","credential":"1893456000:bob"}`, 400, nil},
		"neither":            {"revoke: any", `{}`, 400, nil},
		"no body":            {"revoke: any", ``, 400, nil},
		"null":               {"revoke: any", `{"user":null}`, 400, nil},
		"unknown field":      {"revoke: any", `{"usr":"bob"}`, 400, nil},
		"twice":              {"revoke: any", `{"user":"bob","user":"eve"}`, 400, nil},
		"empty":              {"revoke: any", `{"user":""}`, 400, nil},
		"control characters": {"revoke: any", `{"user":"a\u0000b"}`, 400, nil},
		"too long":           {"revoke: any", `{"user":"` + strings.Repeat("é", 255) + `"}`, 400, nil},
		"static name":        {"revoke: any", `{"credential":"bergen"}`, 400, nil},
		"malformed caveats":  {"revoke: any", `{"credential":"1893456000:a:~1~A0"}`, 400, nil},
		"expired":            {"revoke: any", `{"credential":"1293456000:a"}`, 400, nil},
		"until in the past":  {"revoke: any", `{"user":"bob","until":"2029-12-31T22:59:59Z"}`, 400, nil},
		"until too far":      {"revoke: any", `{"user":"bob","until":"2031-12-31T22:59:59Z"}`, 400, nil},
		"until":              {"revoke: any", `{"user":"bob","until":"2030-06-01T00:00:00Z"}`, 201, []string{"media/*", "short/*"}},
		"listener":           {"revoke: any", `{"user":"bob","gateways":[{"namespace":"media","name":"oslo","listener":"udp"}]}`, 400, nil},
	} {
		t.Run(name, func(t *testing.T) {
			store := &memory{}
			s := revokingService(t, row.fields, store)
			r := keyed(http.MethodPost, "/v1/revocations", row.body)
			answer := s.do(t, r)
			if answer.StatusCode != row.want {
				text, _ := io.ReadAll(answer.Body)
				t.Fatalf("%d, want %d: %s", answer.StatusCode, row.want, text)
			}
			if row.want != http.StatusCreated {
				if len(store.all) != 0 {
					t.Errorf("stored %v", store.all)
				}
				return
			}
			made := decode[rest.Revocation](t, answer, http.StatusCreated)
			if !slices.Equal(made.Gateways, row.gateways) {
				t.Errorf("gateways %v, want %v", made.Gateways, row.gateways)
			}
			stranger := revokingService(t, "revoke: own\nuser: stranger-{username}", store)
			narrow := revokingService(t, "revoke: any\ngateways: [media/pending]", store)
			for _, other := range []*service{stranger, narrow} {
				seen := decode[rest.Revocations](t, other.do(t, keyed(http.MethodGet, "/v1/revocations", "")), http.StatusOK)
				if len(seen.Revocations) != 0 {
					t.Errorf("another caller sees %+v", seen)
				}
				lift := other.do(t, keyed(http.MethodDelete, "/v1/revocations/"+made.ID, ""))
				if lift.StatusCode != http.StatusNotFound || len(store.all) == 0 {
					t.Errorf("another caller lifts: %d, left %v", lift.StatusCode, store.all)
				}
			}
		})
	}
}

// A revocation ends an hour after the last credential that may have been issued, also if the lifetime of the gateway was
// lowered since, if the gateway was created again, or if the service has started since: until then the lifetime may have
// been that of --max-ttl. A repetition ends no earlier, also after a restart.
func TestRevocationOutlivesFormerLifetimes(t *testing.T) {
	const month = 30 * 24 * time.Hour
	lived := func(lifetime time.Duration) discovery.Event {
		c := gateways()[3]
		c.Auth.Lifetime = int32(lifetime / time.Second)
		return discovery.Event{ID: c.Admin.Name, Config: c}
	}
	gone := discovery.Event{ID: "short/lived", Deleted: true}
	for name, row := range map[string]struct {
		events []discovery.Event
		until  string
		want   time.Duration
	}{
		"just started":           {nil, "", 25 * time.Hour},
		"raised":                 {[]discovery.Event{lived(month)}, "", month + time.Hour},
		"lowered":                {[]discovery.Event{lived(month), lived(10 * time.Minute)}, "", month + time.Hour},
		"lowered twice":          {[]discovery.Event{lived(month), lived(time.Hour), lived(time.Minute)}, "", month + time.Hour},
		"lowered from the flags": {[]discovery.Event{lived(0), lived(time.Minute)}, "", 25 * time.Hour},
		"created again":          {[]discovery.Event{lived(month), gone, lived(time.Minute)}, "", month + time.Hour},
		"with an end":            {[]discovery.Event{lived(month)}, `,"until":"2030-01-01T00:00:00Z"`, time.Hour + time.Second},
	} {
		store := &memory{}
		s := revokingService(t, "revoke: any", store)
		for _, e := range row.events {
			s.directory.Apply(e)
		}
		const user = `{"user":"ada","gateways":[{"namespace":"short","name":"lived"}]`
		first := decode[rest.Revocation](t, s.do(t, keyed(http.MethodPost, "/v1/revocations", user+row.until+"}")), 201)
		if got := first.Until.Sub(now); got != row.want {
			t.Errorf("%s: ends after %s, want %s", name, got, row.want)
		}
		restarted := revokingService(t, "revoke: any", store)
		again := decode[rest.Revocation](t, restarted.do(t, keyed(http.MethodPost, "/v1/revocations", user+"}")), 201)
		if want := max(row.want, 25*time.Hour); again.ID != first.ID || again.Until.Sub(now) != want {
			t.Errorf("%s: a repetition ends after %s, want %s", name, again.Until.Sub(now), want)
		}
	}
}

// Two callers with different gateways of a namespace do not replace each other's revocations of one user.
func TestRevocationsOfTwoCallersStay(t *testing.T) {
	store := &memory{}
	oslo := revokingService(t, "revoke: any\ngateways: [media/oslo]", store)
	all := revokingService(t, "revoke: any\ngateways: [media/*]", store)
	first := decode[rest.Revocation](t, oslo.do(t, keyed(http.MethodPost, "/v1/revocations", `{"user":"ada"}`)), 201)
	second := decode[rest.Revocation](t, all.do(t, keyed(http.MethodPost, "/v1/revocations", `{"user":"ada"}`)), 201)
	if first.ID == second.ID || len(store.all) != 2 {
		t.Errorf("ids %s and %s, stored %v", first.ID, second.ID, store.all)
	}
	if got := oslo.do(t, keyed(http.MethodDelete, "/v1/revocations/"+second.ID, "")).StatusCode; got != 404 {
		t.Errorf("the narrower caller lifts the wider revocation: %d", got)
	}
}

// A user that writes Revocations in one namespace, with any ID and subject, does not prevent callers from listing and
// lifting their own revocations. A revocation can be lifted by a caller with all gateways and by a caller with the
// gateways of the revocation.
func TestForgedRevocationIDs(t *testing.T) {
	for _, gateways := range []string{"", "\ngateways: [media/*]"} {
		for name, forge := range map[string]func(r *revoke.Revocation){
			"in another namespace":       func(*revoke.Revocation) {},
			"of another user":            func(r *revoke.Revocation) { r.User = "eve" },
			"of another user and caller": func(r *revoke.Revocation) { r.User, r.By = "eve", "x" },
			"of a credential": func(r *revoke.Revocation) {
				r.User, r.Credential = "", "1893456000:eve"
			},
			"of a Gateway": func(r *revoke.Revocation) { r.Gateways = []string{"any"} },
		} {
			store := &memory{}
			s := revokingService(t, "revoke: any"+gateways, store)
			made := decode[rest.Revocation](t, s.do(t, keyed(http.MethodPost, "/v1/revocations", `{"user":"ada","gateways":[{"namespace":"media","name":"oslo"}]}`)), 201)
			forged := store.all["media/"+made.ID]
			forged.Namespace = "tenant"
			forge(&forged)
			_ = store.Put(t.Context(), forged)
			listed := decode[rest.Revocations](t, s.do(t, keyed(http.MethodGet, "/v1/revocations", "")), 200)
			if len(listed.Revocations) != 1 || listed.Revocations[0].User == nil || *listed.Revocations[0].User != "ada" {
				t.Errorf("%s%s: listed %+v", name, gateways, listed)
			}
			if got := s.do(t, keyed(http.MethodDelete, "/v1/revocations/"+made.ID, "")).StatusCode; got != http.StatusNoContent {
				t.Errorf("%s%s: lifting answers %d", name, gateways, got)
			}
			if _, there := store.all["media/"+made.ID]; there {
				t.Errorf("%s%s: not lifted", name, gateways)
			}
		}
	}
}

// A caller that keeps revoking uses at most half of the limit of a namespace, and leaves the rest to other callers.
func TestRevocationFlood(t *testing.T) {
	store := &memory{}
	s := revokingService(t, "revoke: any\ngateways: [media/*]", store)
	made := 0
	for i := range 600 {
		body := fmt.Sprintf(`{"user":"u%d"}`, i)
		switch got := s.do(t, keyed(http.MethodPost, "/v1/revocations", body)).StatusCode; got {
		case http.StatusCreated:
			made++
		case http.StatusConflict:
		default:
			t.Fatalf("%d", got)
		}
	}
	if made != 500 {
		t.Errorf("%d revocations of one caller, want 500", made)
	}
	if got := s.do(t, keyed(http.MethodPost, "/v1/revocations", `{"user":"u1"}`)).StatusCode; got != http.StatusCreated {
		t.Errorf("a repetition: %d", got)
	}
	policy := keyPolicy(t, "bank", "secret", "revoke: any")
	other := newServiceWith(t, rest.Options{Policy: policy, Revocations: registry(store)}, gateways()...)
	if got := other.do(t, keyed(http.MethodPost, "/v1/revocations", `{"user":"victim"}`)).StatusCode; got != http.StatusCreated {
		t.Errorf("another caller: %d", got)
	}
}

// A Revocation denies a user the credentials of its own gateways only: a request that does not name these gateways gets
// the credentials of other gateways. The Revocations and the gateway names of one namespace do not prevent access to
// other namespaces.
func TestGatewayThatRefusesTheUserIsLeftOut(t *testing.T) {
	revoked := func(ids ...string) *service {
		configs := gateways()[1:] // without static credentials, which are not revoked
		for i := range configs {
			if slices.Contains(ids, configs[i].Admin.Name) {
				configs[i].Auth.Revocations = []credential.Revocation{
					{User: "ada", IssuedBefore: now.Unix() + 3600, Until: now.Unix() + 7200},
				}
			}
		}
		return newService(t, open(), configs...)
	}
	for name, row := range map[string]struct {
		revoked []string
		body    string
		want    int
		hosts   []string
	}{
		"all gateways":              {[]string{"short/lived"}, `{"username":"ada"}`, 201, []string{"203.0.113.7", "stun"}},
		"of the first one":          {[]string{"media/oslo"}, `{"username":"ada"}`, 201, []string{"203.0.113.8", "stun"}},
		"another user":              {[]string{"short/lived"}, `{"username":"bob"}`, 201, []string{"203.0.113.7", "203.0.113.8", "stun"}},
		"a named gateway":           {[]string{"media/oslo"}, `{"username":"ada",` + onlyOslo + `}`, 403, nil},
		"another one is named":      {[]string{"short/lived"}, `{"username":"ada",` + onlyOslo + `}`, 201, []string{"203.0.113.7"}},
		"every one with a relay":    {[]string{"media/oslo", "short/lived"}, `{"username":"ada"}`, 403, nil},
		"routes that fit into some": {nil, `{"scope":{"routes":["` + longRoutes(6) + `"]}}`, 201, []string{"203.0.113.7", "203.0.113.8", "stun"}},
	} {
		answer := revoked(row.revoked...).post(t, row.body)
		if row.want != http.StatusCreated {
			if p := wantProblem(t, answer, row.want, ""); p.Reason != "user_revoked" {
				t.Errorf("%s: reason %s", name, p.Reason)
			}
			continue
		}
		if got := hosts(decode[rest.IceServers](t, answer, row.want).IceServers); !slices.Equal(got, row.hosts) {
			t.Errorf("%s: gateways at %v, want %v", name, got, row.hosts)
		}
	}
	long := gateways()[3]
	long.Admin.Name = "short/" + strings.Repeat("l", 59)
	s := newService(t, open(), gateways()[1], long)
	got := hosts(decode[rest.IceServers](t, s.post(t, `{"scope":{"routes":["`+longRoutes(6)+`"]}}`), 201).IceServers)
	if !slices.Equal(got, []string{"203.0.113.7"}) {
		t.Errorf("beside a gateway whose name does not fit into the user name: %v", got)
	}
}
