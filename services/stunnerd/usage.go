package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/journal"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/usage"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/usagelog"
)

// usageTimeout is how long the end of the process waits for the delivery of the last usage records.
const usageTimeout = 5 * time.Second

// Bounds of the key of --usage-user-key.
const (
	minUserKey = 16
	maxUserKey = 4096
)

// records are the usage records of the process. Without a sink, only the last hour is kept.
type records struct {
	recorder *usage.Recorder
	sink     usagelog.Sink
}

// openUsage opens the accounts of sessions, and the sink for usage records that the settings request. With records, the
// accounts are in the folder of the journal.
func (o options) openUsage(
	dir string, sessions int, memory int64, saved journal.Restored, refresh func(), log *slog.Logger,
) (r records, err error) {
	var user func(string) string
	if o.usageKeyFile != "" {
		if user, err = userHash(o.usageKeyFile); err != nil {
			return r, err
		}
	}
	from := usagelog.Origin{Instance: o.pod, Version: telemetry.Version("stunnerd")}
	if r.sink, err = usagelog.Open(o.usageRecords, o.env, from); err != nil {
		return r, err
	}
	settings := usage.Options{
		HandOver: o.handOver, Sessions: sessions, Memory: memory, User: user, Refresh: refresh, Now: time.Now, Log: log,
	}
	if r.sink == nil {
		r.recorder = usage.Open(settings)
		return r, nil
	}
	continued := make([]usage.ID, 0, len(saved.Sessions))
	for i := range saved.Sessions {
		continued = append(continued, saved.Sessions[i].Usage)
	}
	settings.Dir, settings.Continued, settings.Sink = dir, continued, r.sink
	r.recorder = usage.Open(settings)
	return r, nil
}

// userHash returns a function that hashes user ids with the key in a file.
func userHash(path string) (func(string) string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--usage-user-key: %w", err)
	}
	defer f.Close()
	key, err := io.ReadAll(io.LimitReader(f, maxUserKey+1))
	if err != nil {
		return nil, fmt.Errorf("--usage-user-key: %w", err)
	}
	if len(key) < minUserKey || len(key) > maxUserKey {
		return nil, fmt.Errorf("--usage-user-key %s: use a key of %d to %d random bytes", path, minUserKey, maxUserKey)
	}
	return func(user string) string {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(user))
		return hex.EncodeToString(mac.Sum(nil)[:16])
	}, nil
}

// close delivers the last records, and closes their sink.
func (r records) close() error {
	ctx, stop := context.WithTimeout(context.Background(), usageTimeout)
	defer stop()
	err := r.recorder.Close(ctx)
	if r.sink != nil {
		err = errors.Join(err, r.sink.Close())
	}
	return err
}
