package trust

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2031, 5, 4, 3, 2, 1, 0, time.UTC)

// nextOf returns the authority for a time.
func nextOf(t *testing.T, a Authority, now time.Time) Authority {
	t.Helper()
	next, err := a.Next(now)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// believes verifies the certificate of a replica as a client does.
func believes(t *testing.T, bundle Authority, replica *Identity, now time.Time) error {
	t.Helper()
	replica.mu.Lock()
	defer replica.mu.Unlock()
	return verify(replica.leaf.Leaf, bundle.Pool(), replica.Names[0], now)
}

// K-01: over years of rotation, a client whose CA bundle is a day old trusts every replica. Bundles spread slowly, so a
// new CA must be in them before it signs. The certificate of a replica never outlives its CA.
func TestEveryReplicaIsTrustedDuringRotation(t *testing.T) {
	a := nextOf(t, Authority{}, start)
	replica := &Identity{Names: []string{"discovery.stunner-system.svc", "127.0.0.1"}}
	bundles, made, most := []Authority{a}, 1, 1
	for now := start; now.Before(start.Add(3 * Lifetime)); now = now.Add(day / 2) {
		next := nextOf(t, a, now)
		if len(next.cas) > 0 && len(a.cas) > 0 && next.cas[len(next.cas)-1].cert != a.cas[len(a.cas)-1].cert {
			made++
		}
		a = next
		most = max(most, len(a.cas))
		if err := replica.Renew(a, now); err != nil {
			t.Fatal(err)
		}
		for _, bundle := range []Authority{bundles[max(0, len(bundles)-2)], a} {
			if err := believes(t, bundle, replica, now); err != nil {
				t.Fatalf("after %.1f days: %v", now.Sub(start).Hours()/24, err)
			}
		}
		bundles = append(bundles, a)
	}
	if made != 5 { // after 0, 244, 487, 730 and 974 days
		t.Errorf("%d CAs in three years, want 5", made)
	}
	if most != 2 {
		t.Errorf("up to %d CAs on the list, want 2", most)
	}
}

// A CA that joins a list signs only after Overlap; the first CA signs at once.
func TestANewCAWaitsBeforeItSigns(t *testing.T) {
	first := nextOf(t, Authority{}, start)
	if got := first.signer(start); got.cert != first.cas[0].cert {
		t.Error("the only CA does not sign")
	}
	turn := start.Add(Lifetime * 2 / 3)
	if same := nextOf(t, first, turn.Add(-time.Second)); len(same.cas) != 1 {
		t.Errorf("%d CAs before two thirds are over", len(same.cas))
	}
	both := nextOf(t, first, turn)
	if len(both.cas) != 2 {
		t.Fatalf("%d CAs after two thirds", len(both.cas))
	}
	for after, want := range map[time.Duration]int{0: 0, Overlap - time.Second: 0, Overlap: 1, Lifetime / 3: 1} {
		if got := both.signer(turn.Add(after)); got.cert != both.cas[want].cert {
			t.Errorf("%s after the second CA was made the other one signs", after)
		}
	}
	if left := nextOf(t, both, start.Add(Lifetime+time.Second)); len(left.cas) != 1 ||
		left.cas[0].cert != both.cas[1].cert {
		t.Errorf("%d CAs after the first has expired", len(left.cas))
	}
}

func TestCertificatesAreRenewedInTime(t *testing.T) {
	a := nextOf(t, Authority{}, start)
	replica := &Identity{Names: []string{"discovery"}}
	serial := func(now time.Time) string {
		t.Helper()
		if err := replica.Renew(a, now); err != nil {
			t.Fatal(err)
		}
		return replica.leaf.Leaf.SerialNumber.String()
	}
	first := serial(start)
	if serial(start.Add(leafLifetime*2/3-time.Minute)) != first {
		t.Error("renewed too early")
	}
	if serial(start.Add(leafLifetime*2/3)) == first {
		t.Error("not renewed after two thirds of its life")
	}
	late := start.Add(Lifetime - day)
	if serial(late); replica.leaf.Leaf.NotAfter.After(start.Add(Lifetime)) {
		t.Error("the certificate outlives its CA")
	}
	if err := new(Identity).Renew(Authority{}, start); err == nil ||
		!strings.Contains(err.Error(), "wait for the leader") {
		t.Errorf("without a CA: %v", err)
	}
}

func TestAnAuthorityIsReadAsItWasWritten(t *testing.T) {
	turn := start.Add(Lifetime * 2 / 3)
	a := nextOf(t, nextOf(t, Authority{}, start), turn)
	stored := a.Encode()
	again, err := Parse(stored)
	if err != nil || again.Bundle() != a.Bundle() || !bytes.Equal(again.Encode()[PrivateKey], stored[PrivateKey]) {
		t.Errorf("%v", err)
	}
	if strings.Contains(a.Bundle(), "PRIVATE") {
		t.Error("the bundle is public, and holds a private key")
	}
	// The order of the certificates does not matter.
	certs := strings.SplitAfter(a.Bundle(), "-----END CERTIFICATE-----\n")
	if other, err := Parse(
		map[string][]byte{CertificatesKey: []byte(certs[1] + certs[0]), PrivateKey: stored[PrivateKey]},
	); err != nil || other.Bundle() != a.Bundle() {
		t.Errorf("in another order: %v", err)
	}
}

// Errors name the invalid part. The valid part stays trusted, and a CA that can sign is added.
func TestInvalidCAIsReplaced(t *testing.T) {
	a := nextOf(t, Authority{}, start)
	good := a.Encode()
	notCA := &Identity{Names: []string{"discovery"}}
	if err := notCA.Renew(a, start); err != nil {
		t.Fatal(err)
	}
	leaf := Authority{[]ca{{cert: notCA.leaf.Leaf}}}.Bundle()
	for name, c := range map[string]struct {
		data     map[string][]byte
		problem  string
		believed int
	}{
		"nothing": {nil, "no certificate in ca.crt", 0},
		"no PEM": {
			map[string][]byte{CertificatesKey: []byte("x"), PrivateKey: []byte("y")}, "no certificate in ca.crt", 0,
		},
		"no key": {map[string][]byte{CertificatesKey: good[CertificatesKey]}, "has its key", 1},
		"a key of another": {map[string][]byte{
			CertificatesKey: good[CertificatesKey], PrivateKey: nextOf(t, Authority{}, start).Encode()[PrivateKey],
		}, "has its key", 1},
		"a damaged key": {map[string][]byte{
			CertificatesKey: good[CertificatesKey],
			PrivateKey:      bytes.Replace(good[PrivateKey], []byte("M"), []byte("N"), 1),
		}, "SEC 1", 1},
		"no CA": {
			map[string][]byte{CertificatesKey: []byte(leaf), PrivateKey: good[PrivateKey]}, "is no CA", 0,
		},
		"a damaged one beside": {map[string][]byte{CertificatesKey: append(
			[]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), good[CertificatesKey]...,
		), PrivateKey: good[PrivateKey]}, "read certificate", 1},
		"very many": {map[string][]byte{
			CertificatesKey: bytes.Repeat(good[CertificatesKey], maxCAs+5), PrivateKey: good[PrivateKey],
		}, "more than 8", maxCAs},
	} {
		t.Run(name, func(t *testing.T) {
			broken, err := Parse(c.data)
			if err == nil || !strings.Contains(err.Error(), c.problem) || len(broken.cas) != c.believed {
				t.Fatalf("%d CAs, error %v, want %d and %q", len(broken.cas), err, c.believed, c.problem)
			}
			mended := nextOf(t, broken, start)
			if !mended.Usable(start) || len(mended.cas) > maxCAs {
				t.Errorf("%d CAs, usable %t", len(mended.cas), mended.Usable(start))
			}
			if c.believed == 1 && mended.cas[0].cert.SerialNumber.Cmp(a.cas[0].cert.SerialNumber) != 0 {
				t.Error("what could be read is believed no longer")
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	a, err := Authority{}.Next(start)
	if err != nil {
		f.Fatal(err)
	}
	good := a.Encode()
	f.Add(good[CertificatesKey], good[PrivateKey])
	f.Add(good[CertificatesKey], []byte("-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n"))
	f.Add([]byte{}, good[PrivateKey])
	f.Fuzz(func(t *testing.T, certs, keys []byte) {
		a, err := Parse(map[string][]byte{CertificatesKey: certs, PrivateKey: keys})
		if len(a.cas) > maxCAs {
			t.Errorf("%d CAs", len(a.cas))
		}
		if again, failed := Parse(a.Encode()); err == nil && (failed != nil || again.Bundle() != a.Bundle()) {
			t.Errorf("it is read differently when it was written: %v", failed)
		}
	})
}

// A CA of a leader whose clock was ahead is not trusted yet. With a correct clock, or another leader, another CA is
// created.
func TestACAFromTheFutureIsReplaced(t *testing.T) {
	early := nextOf(t, Authority{}, start.Add(3*day))
	replica := &Identity{Names: []string{"discovery"}}
	if err := replica.Renew(early, start.Add(3*day)); err != nil {
		t.Fatal(err)
	}
	a := nextOf(t, early, start)
	if err := replica.Renew(a, start); err != nil {
		t.Fatal(err)
	}
	if err := believes(t, a, replica, start); err != nil {
		t.Error(err)
	}
	stored, err := Parse(a.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if again := nextOf(t, stored, start.Add(time.Minute)); again.Bundle() != a.Bundle() {
		t.Errorf("what is as it should be has changed:\n%s", again.Bundle())
	}
	if best := stored.signer(start.Add(time.Minute)); best.cert.NotBefore.After(start) {
		t.Error("the CA of the future signs")
	}
}

// A certificate that was issued while the clock was ahead is replaced.
func TestACertificateFromTheFutureIsReplaced(t *testing.T) {
	a := nextOf(t, Authority{}, start)
	replica := &Identity{Names: []string{"discovery"}}
	for _, now := range []time.Time{start.Add(3 * day), start.Add(time.Hour)} {
		if err := replica.Renew(a, now); err != nil {
			t.Fatal(err)
		}
		if err := believes(t, a, replica, now); err != nil {
			t.Errorf("at %s: %v", now, err)
		}
	}
}
