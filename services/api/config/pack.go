package config

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"sync"
)

// packers is a pool, because creating a gzip.Writer costs more than packing a config.
var packers = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}

// Pack returns the canonical form of a config, compressed, because a Secret is limited to 1 MiB. Equal configs have
// equal packed forms.
func (c Config) Pack() []byte {
	var out bytes.Buffer
	zip := packers.Get().(*gzip.Writer)
	defer packers.Put(zip)
	zip.Reset(&out)
	_, err := zip.Write(c.Canonical())
	if err == nil {
		err = zip.Close()
	}
	if err != nil {
		panic(fmt.Sprintf("pack config: %v", err)) // writing to a buffer does not fail
	}
	return out.Bytes()
}

// Unpack parses a config that Pack has returned, or an uncompressed config. Like Parse it does not validate.
func Unpack(packed []byte) (c Config, unknown []string, err error) {
	if !bytes.HasPrefix(packed, []byte("\x1f\x8b")) { // RFC 1952 §2.3.1
		return Parse(packed)
	}
	zip, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return Config{}, nil, fmt.Errorf("unpack config: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(zip, MaxDocument+1)) // Parse rejects a larger document
	if err != nil {
		return Config{}, nil, fmt.Errorf("unpack config: %w", err)
	}
	return Parse(text)
}
