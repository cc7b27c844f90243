package config_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// changing returns a config whose clusters, endpoints and listeners depend on a random source.
func changing(random *rand.Rand) config.Config {
	c := config.Config{
		Version: config.Version, Admin: config.Admin{Name: "media/edge", LogLevel: "all:\"<&>\u2028INFO"},
		Auth:      config.Auth{Type: config.AuthEphemeral, Credentials: map[string]credential.Secret{"secret": "<0123>"}},
		Listeners: []config.Listener{{Name: "media/edge/udp", Port: 3478}},
	}
	if random.IntN(4) == 0 {
		c.Auth.Realm = fmt.Sprint("realm-", random.IntN(3))
	}
	for i := range 8 {
		if random.IntN(4) == 0 {
			continue
		}
		next := config.Cluster{Name: fmt.Sprintf("media/route-%d", i), Type: config.Static, Protocol: "UDP"}
		if i == 7 {
			next.Type = config.StrictDNS
			next.Endpoints = []string{"sfu.media.svc"}
		} else {
			for range random.IntN(12) {
				next.Endpoints = append(next.Endpoints, fmt.Sprintf("10.0.0.%d:<7000-7999>", random.IntN(16)))
			}
		}
		if random.IntN(8) == 0 {
			next.Except = []string{"10.0.0.9"}
		}
		c.Clusters = append(c.Clusters, next)
	}
	random.Shuffle(len(c.Clusters), func(i, j int) { c.Clusters[i], c.Clusters[j] = c.Clusters[j], c.Clusters[i] })
	return c
}

// For any change between two configs, a delta yields the second config, byte for byte. Parts that share parts with
// other Parts equal Parts that are made from scratch.
func TestADeltaYieldsTheSecondConfig(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var reader, sender *config.Parts
	var frame config.Frame
	kinds := map[string]int{}
	for turn := range 3_000 {
		c := changing(random)
		next := config.PartsOf(c, sender)
		fresh := config.PartsOf(c, nil)
		if next.Digest() != fresh.Digest() {
			t.Fatalf("turn %d: digest %s, want %s", turn, next.Digest(), fresh.Digest())
		}
		frame = next.Encode(sender, frame)
		if want := c.Canonical(); string(frame.Text) != string(want) {
			t.Fatalf("turn %d: the frame is\n%s\nwant\n%s", turn, frame.Text, want)
		}
		if sender == nil {
			sender, reader = next, fresh
			continue
		}
		d, err := config.ParseDelta(next.Since(sender, "1", "2").Encode())
		if err != nil {
			t.Fatal(err)
		}
		kinds["endpoints"] += len(d.Endpoints)
		kinds["clusters"] += len(d.Clusters)
		kinds["removed"] += len(d.Removed)
		kinds["rest"] += min(len(d.Rest), 1)
		got, unknown, err := reader.Apply(d)
		if err != nil || len(unknown) > 0 {
			t.Fatalf("turn %d: %v, unknown %q", turn, err, unknown)
		}
		if applied := got.Config(); string(applied.Canonical()) != string(frame.Text) {
			t.Fatalf("turn %d: the reader has\n%s\nwant\n%s", turn, applied.Canonical(), frame.Text)
		}
		if _, _, err := got.Apply(d); err == nil && len(d.Endpoints)+len(d.Removed) > 0 {
			t.Fatalf("turn %d: a delta is applied twice", turn)
		}
		sender, reader = next, got
	}
	for kind, n := range kinds {
		if n < 100 {
			t.Errorf("%d deltas have %s: the test covers too little", n, kind)
		}
	}
}

// A delta covers every field of a cluster: a field that is added later is encoded and hashed too.
func TestPartsCoverAllFieldsOfACluster(t *testing.T) {
	full := config.Cluster{Name: "media/a", Type: config.Static, Protocol: "UDP", Endpoints: []string{"10.0.0.1"},
		Except: []string{"10.0.0.2"}}
	v := reflect.ValueOf(&full).Elem()
	whole := func(c config.Cluster) config.Config {
		return config.Config{Admin: config.Admin{Name: "media/edge"}, Clusters: []config.Cluster{c}}
	}
	before := config.PartsOf(whole(full), nil)
	for i := range v.NumField() {
		other := full
		field := reflect.ValueOf(&other).Elem().Field(i)
		switch field.Kind() {
		case reflect.String:
			field.SetString(field.String() + "x")
		case reflect.Slice:
			field.Set(reflect.ValueOf([]string{"10.0.0.77"}))
		default:
			const remedy = "add it here, and to digestOf, sameHead and identical"
			t.Fatalf("field %s has a kind that this test does not change: %s", v.Type().Field(i).Name, remedy)
		}
		next := config.PartsOf(whole(other), before)
		if next.Digest() == before.Digest() {
			t.Errorf("field %s is not in the digest", v.Type().Field(i).Name)
		}
		text := next.Encode(before, before.Encode(nil, config.Frame{})).Text
		if want := whole(other).Canonical(); string(text) != string(want) {
			t.Errorf("field %s: encoded as\n%s\nwant\n%s", v.Type().Field(i).Name, text, want)
		}
	}
}

// A delta that does not belong to the config, or that is invalid, is refused completely, and the error names the cause.
func TestADeltaIsRefused(t *testing.T) {
	base := config.Config{
		Version: config.Version, Admin: config.Admin{Name: "media/edge"}, Auth: config.Auth{Type: config.AuthNone},
		Clusters: []config.Cluster{
			{Name: "media/a", Endpoints: []string{"10.0.0.1", "10.0.0.2"}}, {Name: "media/b", Endpoints: []string{"10.0.0.3"}},
		},
	}
	many := make([]string, 100_001)
	for i := range many {
		many[i] = fmt.Sprintf("10.%d.%d.%d", 1+i>>16, i>>8&255, i&255)
	}
	var hosts []string
	for i := range config.MaxHostNames + 1 {
		hosts = append(hosts, fmt.Sprintf("h%05d", i))
	}
	parts := config.PartsOf(base, nil)
	for name, c := range map[string]struct {
		change   func(*config.Delta)
		want     string
		mismatch bool
	}{
		"another id":      {func(d *config.Delta) { d.ID = "media/other" }, "media/other", true},
		"another digest":  {func(d *config.Delta) { d.Digest[0]++ }, "digest", true},
		"no change":       {func(*config.Delta) {}, "", false},
		"a cluster gone":  {func(d *config.Delta) { d.Removed = []string{"media/c"} }, `"media/c" is not there`, true},
		"removed twice":   {func(d *config.Delta) { d.Removed = []string{"media/a", "media/a"} }, "media/a", true},
		"no such cluster": {func(d *config.Delta) { d.Endpoints = []config.EndpointDelta{{Cluster: "x"}} }, `"x"`, true},
		"an endpoint that is gone": {func(d *config.Delta) {
			d.Endpoints = []config.EndpointDelta{{Cluster: "media/a", Removed: []string{"10.9.9.9"}}}
		}, "media/a", true},
		"an endpoint that is there": {func(d *config.Delta) {
			d.Endpoints = []config.EndpointDelta{{Cluster: "media/a", Added: []string{"10.0.0.1"}}}
		}, "media/a", true},
		"an endpoint removed and added": {func(d *config.Delta) {
			d.Endpoints = []config.EndpointDelta{{"media/a", []string{"10.0.0.1"}, []string{"10.0.0.1"}}}
		}, "media/a", true},
		"an invalid endpoint": {func(d *config.Delta) {
			d.Endpoints = []config.EndpointDelta{{Cluster: "media/b", Added: []string{"nowhere"}}}
		}, `clusters[1].endpoints[0]: "nowhere" is no endpoint`, false},
		"too many endpoints": {func(d *config.Delta) {
			d.Endpoints = []config.EndpointDelta{{Cluster: "media/b", Added: many}}
		}, "clusters[1].endpoints", false},
		"too many host names": {func(d *config.Delta) {
			d.Clusters = []config.Cluster{{Name: "media/dns", Type: config.StrictDNS, Endpoints: hosts}}
		}, "host names are too many", false},
		"an invalid cluster": {func(d *config.Delta) {
			d.Clusters = []config.Cluster{{Name: "media/c", Type: "ODD"}}
		}, "clusters[2].type", false},
		"a rest with clusters":   {func(d *config.Delta) { d.Rest = base.Canonical() }, "rest has clusters", true},
		"a rest without version": {func(d *config.Delta) { d.Rest = []byte(`{}`) }, "version", false},
		"an invalid rest": {func(d *config.Delta) {
			d.Rest = []byte(`{"version":"v1","admin":{"name":"media/edge"},"auth":{"type":"odd"}}`)
		}, "auth.type", false},
		"long texts": {func(d *config.Delta) {
			d.Removed = []string{strings.Repeat("x", 1<<20)}
		}, "is not there", true},
	} {
		t.Run(name, func(t *testing.T) {
			d := parts.Since(parts, "1", "1")
			c.change(&d)
			next, _, err := parts.Apply(d)
			if c.want == "" {
				if err != nil || next.Digest() != parts.Digest() {
					t.Errorf("error %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, config.ErrMismatch) != c.mismatch {
				t.Fatalf("error %v, want %q, mismatch %t", err, c.want, c.mismatch)
			}
			if next != nil || len(err.Error()) > 1_000 {
				t.Errorf("half a config, or an error of %d bytes", len(err.Error()))
			}
		})
	}
	now := parts.Config()
	if string(now.Canonical()) != string(base.Canonical()) {
		t.Error("a refused delta has changed the config")
	}
}

// Deltas cannot make a config larger than a document may be.
func TestDeltasCannotExceedTheLimitOfADocument(t *testing.T) {
	parts := config.PartsOf(config.Config{Version: config.Version, Admin: config.Admin{Name: "media/edge"},
		Auth: config.Auth{Type: config.AuthNone}}, nil)
	for turn := range 100 {
		c := config.Cluster{Name: fmt.Sprint("media/", turn)}
		for e := range 20_000 {
			c.Endpoints = append(c.Endpoints, fmt.Sprintf("2001:db8:1111:2222:3333:%x:%x:%x", turn+1, e>>8+1, e&255+1))
		}
		target := parts.Config()
		target.Clusters = append(slices.Clone(target.Clusters), c)
		next, _, err := parts.Apply(config.PartsOf(target, parts).Since(parts, "", ""))
		if err != nil {
			size, refused := len(target.Canonical()), strings.Contains(err.Error(), "config: has more than")
			if size < config.MaxDocument || !refused {
				t.Errorf("%d bytes: %v", size, err)
			}
			return
		}
		parts = next
	}
	t.Error("100 clusters are taken")
}

// No delta is applied in part. A delta that is applied yields a valid config with its digest.
func FuzzDelta(f *testing.F) {
	random := rand.New(rand.NewPCG(3, 4))
	base := config.PartsOf(changing(random), nil)
	for range 20 {
		f.Add(config.PartsOf(changing(random), base).Since(base, "1", "2").Encode())
	}
	f.Add([]byte(`{"id":"media/edge","digest":"00"}`))
	f.Add([]byte(`{"id":"media/edge","endpoints":[{"cluster":"media/route-1","added":["::1","::1"]}]}`))
	was := base.Config()
	text := string(was.Canonical())
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := config.ParseDelta(data)
		if err != nil {
			return
		}
		next, _, err := base.Apply(d)
		if now := base.Config(); string(now.Canonical()) != text {
			t.Fatal("the first config changes")
		}
		if err != nil {
			return
		}
		c := next.Config()
		if fresh := config.PartsOf(c, nil); c.Validate() != nil || fresh.Digest() != d.Digest {
			t.Fatalf("%s yields %s: %v", data, c.Canonical(), c.Validate())
		}
	})
}
