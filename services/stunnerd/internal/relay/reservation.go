package relay

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"
)

// Token is the value of a RESERVATION-TOKEN attribute.
type Token [8]byte

const (
	// reservationTime is how long a reserved port is held (RFC 8656 §7.2).
	reservationTime = 30 * time.Second
	// maxReservations bounds the ports that are held for nobody.
	maxReservations = 256
)

// Reserved is a socket that waits for its client, with the address that the client will be told: the one of the port below.
type Reserved struct {
	Socket
	Advertised netip.Addr
}

// Reservations holds the second port of a pair until its client comes for it. The zero Reservations is not usable: call
// NewReservations.
type Reservations struct {
	mu   sync.Mutex
	held map[Token]*reservation
}

type reservation struct {
	Reserved
	expiry *time.Timer
}

// NewReservations returns an empty set.
func NewReservations() *Reservations { return &Reservations{held: map[Token]*reservation{}} }

// Hold keeps a socket and returns the token that gets it. It closes the socket when there are too many already.
func (r *Reservations) Hold(s Reserved) (Token, error) {
	var token Token
	if _, err := rand.Read(token[:]); err != nil {
		return token, errors.Join(fmt.Errorf("make reservation token: %w", err), s.Close())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.held) >= maxReservations {
		return token, errors.Join(errors.New("hold relay port: too many are held already"), s.Close())
	}
	r.held[token] = &reservation{s, time.AfterFunc(reservationTime, func() {
		if late, ok := r.Take(token); ok {
			_ = late.Close()
		}
	})}
	return token, nil
}

// Take hands out what a token stands for, once.
func (r *Reservations) Take(token Token) (s Reserved, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	held := r.held[token]
	if held == nil {
		return s, false
	}
	delete(r.held, token)
	held.expiry.Stop()
	return held.Reserved, true
}

// Close closes what is held.
func (r *Reservations) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for token, held := range r.held {
		held.expiry.Stop()
		errs = append(errs, held.Close())
		delete(r.held, token)
	}
	return errors.Join(errs...)
}
