package config

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"strings"
	"testing"
)

// Unpack reverses Pack, and equal configs have equal packed forms, so that a restarted operator does not write Secrets
// again.
func TestPackedConfigIsTheConfig(t *testing.T) {
	c := Zero("media/edge")
	c.Listeners = []Listener{{
		Name: "media/edge/udp", Protocol: TURNUDP, Address: AddressPlaceholder, Port: 3478,
		Routes: []string{"media/all"},
	}}
	c.Clusters = []Cluster{{Name: "media/all", Type: Static, Protocol: "UDP"}}
	for i := range 50_000 {
		c.Clusters[0].Endpoints = append(
			c.Clusters[0].Endpoints, fmt.Sprintf("10.%d.%d.%d:<10000-20000>", i>>16, i>>8&255, i&255),
		)
	}
	packed := c.Pack()
	if !bytes.Equal(packed, c.Pack()) {
		t.Error("packed twice it is not the same")
	}
	if most := 1 << 20; len(packed) > most {
		t.Errorf("50,000 endpoints take %d bytes, a Secret holds %d", len(packed), most)
	}
	for name, data := range map[string][]byte{"packed": packed, "as it is": c.Canonical()} {
		got, unknown, err := Unpack(data)
		if err != nil || len(unknown) > 0 || got.Revision() != c.Revision() {
			t.Errorf("%s: revision %s, want %s; unknown %q, %v", name, got.Revision(), c.Revision(), unknown, err)
		}
	}
}

func TestUnpackRefusesInvalidData(t *testing.T) {
	var bomb bytes.Buffer
	zip := gzip.NewWriter(&bomb)
	if _, err := zip.Write(make([]byte, 64*MaxDocument)); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	packed := Zero("media/edge").Pack()
	for name, tc := range map[string]struct {
		data []byte
		want string
	}{
		"too large":  {bomb.Bytes(), "bytes"},
		"cut":        {packed[:len(packed)/2], "unpack config"},
		"head alone": {packed[:4], "unpack config"},
		"text":       {[]byte("hello"), "parse config"},
	} {
		if _, _, err := Unpack(tc.data); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want %q", name, err, tc.want)
		}
	}
}
