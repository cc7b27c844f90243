package trust

import (
	"fmt"
	"time"
)

const day = 24 * time.Hour

// ForwardingKey is a key with which the dataplane pods of one Gateway encrypt the datagrams that they forward to each
// other.
type ForwardingKey struct {
	// ID is the number of the key's day since 1970, modulo 256.
	ID     uint8
	Secret [32]byte
}

// ForwardingKeys returns the keys of the Gateway with the given UID: the key of the current day in UTC, then the key of
// the day before. It leaves out the key of a day on which no CA can sign.
//
// A key is derived from the private key of the CA that signs when its day begins. All replicas know that CA by then,
// see Overlap, so all replicas derive the same keys.
func (a Authority) ForwardingKeys(gatewayUID string, now time.Time) (keys []ForwardingKey, err error) {
	today := now.UTC().Truncate(day)
	for _, begin := range []time.Time{today, today.Add(-day)} {
		by := a.signer(begin)
		if !by.signs() {
			continue
		}
		derived, err := by.derive(gatewayUID, "forwarding "+begin.Format(time.DateOnly))
		if err != nil {
			return nil, fmt.Errorf("derive forwarding keys: %w", err)
		}
		keys = append(keys, ForwardingKey{uint8(ForwardingDay(begin)), [32]byte(derived)})
	}
	return keys, nil
}

// ForwardingDay returns the number of the current day in UTC since 1970. ForwardingKeys returns the same keys all day.
func ForwardingDay(now time.Time) int64 { return now.Unix() / int64(day/time.Second) }
