package region

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/oschwald/maxminddb-golang/v2"
)

// geoInterval is the interval at which the GeoIP file is checked for changes. Its provider replaces it a few times a
// week.
const geoInterval = time.Minute

// maxGeo is the maximum size of a GeoIP file in bytes. The file is in memory, because a mapped file that is written
// over ends the process.
const maxGeo = 256 << 20

// Geo is a file with the locations of addresses, in MaxMind's format: a database of countries or of cities.
type Geo struct {
	path   string
	log    *slog.Logger
	stamp  stamp
	reader atomic.Pointer[maxminddb.Reader]
}

// stamp identifies a version of the file.
type stamp struct {
	changed time.Time
	size    int64
}

// OpenGeo reads a GeoIP file. Until ctx ends, it reads the file again when it changes. If it becomes invalid, the last
// valid one stays in use.
func OpenGeo(ctx context.Context, path string, log *slog.Logger) (*Geo, error) {
	g := &Geo{path: path, log: log}
	if err := g.read(); err != nil {
		return nil, err
	}
	go func() {
		tick := time.NewTicker(geoInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if err := g.read(); err != nil {
					log.Error("keep last valid GeoIP file", "error", err)
				}
			}
		}
	}()
	return g, nil
}

// read reads the file if it has changed. It returns an error once for each version of the file.
func (g *Geo) read() error {
	info, err := os.Stat(g.path)
	if err != nil {
		if g.stamp == (stamp{}) && g.reader.Load() != nil {
			return nil // this version was logged before
		}
		g.stamp = stamp{}
		return fmt.Errorf("read geoIP: %w", err)
	}
	now := stampOf(info)
	if now == g.stamp {
		return nil
	}
	g.stamp = now
	raw, err := readGeo(g.path, info)
	if err != nil {
		return fmt.Errorf("read geoIP: %s: %w", g.path, err)
	}
	reader, err := maxminddb.OpenBytes(raw)
	if err != nil {
		return fmt.Errorf("read geoIP: %s: %w", g.path, err)
	}
	if g.reader.Swap(reader) != nil {
		g.log.Info("GeoIP file has changed", "file", g.path, "type", reader.Metadata.DatabaseType)
	}
	return nil
}

func stampOf(info os.FileInfo) stamp { return stamp{info.ModTime(), info.Size()} }

// readGeo reads a file. info is the state of the file before. It returns an error if the file changes meanwhile,
// because a part of a file can have the form of a whole file.
func readGeo(path string, info os.FileInfo) ([]byte, error) {
	switch {
	case !info.Mode().IsRegular():
		return nil, errors.New("is no regular file")
	case info.Size() > maxGeo:
		return nil, fmt.Errorf("is larger than %d bytes", maxGeo)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	raw := make([]byte, info.Size())
	_, err = io.ReadFull(file, raw)
	if after, failed := os.Stat(path); err != nil || failed != nil || stampOf(after) != stampOf(info) {
		const remedy = "has changed while it was read: write a new version beside it, and rename that"
		return nil, errors.Join(errors.New(remedy), err, failed)
	}
	return raw, nil
}

// location is the location of an address. Its fields are empty if it is unknown.
type location struct {
	country, continent string
	place              *Place
}

// record is the part of a record of a GeoIP file that is read.
type record struct {
	Continent struct {
		Code string `maxminddb:"code"`
	} `maxminddb:"continent"`
	Country struct {
		Code string `maxminddb:"iso_code"`
	} `maxminddb:"country"`
	Location struct {
		Latitude  *float64 `maxminddb:"latitude"`
		Longitude *float64 `maxminddb:"longitude"`
	} `maxminddb:"location"`
}

// locate returns the location of an address. It is empty if the record of the address is unreadable.
func (g *Geo) locate(addr netip.Addr) location {
	if g == nil || !addr.IsValid() {
		return location{}
	}
	var r record
	if err := g.reader.Load().Lookup(addr).Decode(&r); err != nil {
		return location{}
	}
	at := location{country: r.Country.Code, continent: r.Continent.Code}
	if p := r.Location; p.Latitude != nil && p.Longitude != nil {
		if on := (Place{*p.Latitude, *p.Longitude}); on.valid() {
			at.place = &on
		}
	}
	return at
}
