package region

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/maxmind/mmdbwriter/mmdbtype"
	"github.com/oschwald/maxminddb-golang/v2"
)

// addresses are clients in the networks of hostileDatabase, and outside of them.
var addresses = []string{"198.51.100.1", "198.51.100.200", "203.0.113.9", "2001:db8:1::1", "192.0.2.1", "::", "255.255.255.255"}

// smallDatabase returns a GeoIP file with records of every type that is read.
func smallDatabase(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "small.mmdb")
	names := mmdbtype.Map{"de": mmdbtype.String("Deutschland"), "en": mmdbtype.String("Germany")}
	germany := place("EU", "DE", 52, 13)
	germany["names"] = mmdbtype.Slice{names, names, mmdbtype.Slice{names, names}}
	database(t, path, map[string]mmdbtype.Map{
		"198.51.100.0/25": germany, "198.51.100.128/25": place("SA", "BR", -23, -46), "203.0.113.0/24": place("AS", "JP", 35, 139),
		"2001:db8:1::/48": germany,
	})
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// checkGeo checks that a GeoIP file of these bytes is refused, or answers every address at once with a location that
// can be used.
func checkGeo(t *testing.T, raw []byte) {
	t.Helper()
	reader, err := maxminddb.OpenBytes(raw)
	if err != nil {
		return
	}
	g := &Geo{log: slog.New(slog.DiscardHandler)}
	g.reader.Store(reader)
	m := NewMap([]Region{
		{Name: "europe", Continents: []string{"EU"}, Place: &Place{50, 8}},
		{Name: "america", Countries: []string{"BR"}, Place: &Place{39, -77}},
	}, g)
	for _, text := range addresses {
		began := time.Now()
		order := m.Order("", netip.MustParseAddr(text))
		if slices.Sort(order); !slices.Equal(order, []string{"america", "europe"}) {
			t.Errorf("order of %s: %v", text, order)
		}
		if p := g.locate(netip.MustParseAddr(text)).place; p != nil &&
			!(math.Abs(p.Latitude) <= 90 && math.Abs(p.Longitude) <= 180) {
			t.Errorf("place of %s: %+v", text, p)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s takes %s", text, took)
		}
	}
}

// TestHostileGeoIPFiles: a file that is truncated anywhere, or changed at random, is refused or harmless.
func TestHostileGeoIPFiles(t *testing.T) {
	whole := smallDatabase(t)
	if _, err := maxminddb.OpenBytes(whole); err != nil {
		t.Fatal(err)
	}
	for n := range len(whole) {
		checkGeo(t, whole[:n])
		checkGeo(t, whole[n:])
	}
	r := rand.New(rand.NewPCG(4, 7))
	for range 4_000 {
		raw := slices.Clone(whole)
		for range 1 + r.IntN(8) {
			at := r.IntN(len(raw))
			switch r.IntN(4) {
			case 0:
				raw[at] = byte(r.Uint32())
			case 1:
				raw[at] ^= 1 << r.IntN(8)
			case 2:
				raw[at] = 0xff
			case 3:
				copy(raw[at:], whole[r.IntN(len(whole)):])
			}
		}
		checkGeo(t, raw)
	}
}

// TestGeoIPFilesThatAreNoFiles: a path that is not a regular file of an allowed size is refused and not read.
func TestGeoIPFilesThatAreNoFiles(t *testing.T) {
	folder := t.TempDir()
	pipe, large := filepath.Join(folder, "pipe"), filepath.Join(folder, "large")
	if err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.WriteFile(large, nil, 0o600), os.Truncate(large, 1<<40)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		folder: "is no regular file", pipe: "is no regular file", "/dev/zero": "is no regular file",
		large: "is larger than 268435456 bytes", filepath.Join(folder, "none"): "no such file",
	} {
		if _, err := OpenGeo(t.Context(), path, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "read geoIP: ") || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// TestGeoIPFileIsReplacedWhileItIsRead: each answer comes from one complete version, if a new version is renamed into
// place or written over the previous one. The last version is used in the end.
func TestGeoIPFileIsReplacedWhileItIsRead(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "cities.mmdb")
	var versions [2][]byte
	for i, country := range []string{"DE", "BR"} {
		places := map[string]mmdbtype.Map{}
		for n := range 400 * (i + 1) {
			places[fmt.Sprintf("10.%d.%d.0/24", n/250, n%250)] = place("EU", country, float64(n)/10, 13)
		}
		database(t, path, places)
		var err error
		if versions[i], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	at := netip.MustParseAddr("10.0.7.1")
	g := &Geo{path: path, log: slog.New(slog.DiscardHandler)}
	if err := g.read(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			target := path
			if i%3 == 0 {
				target = filepath.Join(folder, "next")
			}
			err := os.WriteFile(target, versions[i%2], 0o600)
			if err == nil && target != path {
				err = os.Rename(target, path)
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	read, failed := 0, 0
	for deadline := time.Now().Add(time.Minute); (read < 200 || failed == 0) && time.Now().Before(deadline); {
		before := g.reader.Load()
		if err := g.read(); err != nil {
			failed++
		} else if g.reader.Load() != before {
			read++
		}
		if got := g.locate(at); got.country != "DE" && got.country != "BR" || got.place == nil {
			t.Errorf("location %+v", got)
		}
	}
	cancel()
	writer.Wait()
	if read == 0 || failed == 0 {
		t.Errorf("TEST NOT VALID: read %d versions, and refused %d", read, failed)
	}
	for i, want := range []string{"DE", "BR"} {
		if err := os.WriteFile(path, versions[i], 0o600); err != nil {
			t.Fatal(err)
		}
		if err := g.read(); err != nil || g.locate(at).country != want {
			t.Errorf("%v, country %q, want %q", err, g.locate(at).country, want)
		}
	}
}

// FuzzGeo is TestHostileGeoIPFiles for other files.
func FuzzGeo(f *testing.F) {
	f.Add([]byte("\xab\xcd\xefMaxMind.com"))
	f.Fuzz(checkGeo)
}
