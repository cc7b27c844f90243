package relay

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
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
	// User is the user id that may use the port, and Place what it counts as.
	User  string
	Place *session.Place
}

// close closes the socket and gives the place back.
func (s Reserved) close() error {
	if s.Place != nil {
		s.Place.Release()
	}
	return s.Socket.Close()
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

// Hold keeps a socket and returns the token that gets it. It closes the socket, and gives its place back, when there are too many already.
func (r *Reservations) Hold(s Reserved) (Token, error) {
	var token Token
	if _, err := rand.Read(token[:]); err != nil {
		return token, errors.Join(fmt.Errorf("make reservation token: %w", err), s.close())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.held) >= maxReservations {
		return token, errors.Join(errors.New("hold relay port: too many are held already"), s.close())
	}
	r.held[token] = &reservation{s, time.AfterFunc(reservationTime, func() {
		_ = r.Drop(token)
	})}
	return token, nil
}

// Take hands out what a token stands for, once, to the user that it was made for.
func (r *Reservations) Take(token Token, user string) (s Reserved, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	held := r.held[token]
	if held == nil || held.User != user {
		return s, false
	}
	r.forget(token, held)
	return held.Reserved, true
}

// Drop closes the socket that is held for a token, if it is still there.
func (r *Reservations) Drop(token Token) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	held := r.held[token]
	if held == nil {
		return nil
	}
	r.forget(token, held)
	return held.close()
}

// forget needs the lock.
func (r *Reservations) forget(token Token, held *reservation) {
	delete(r.held, token)
	held.expiry.Stop()
}

// Close closes what is held.
func (r *Reservations) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for token, held := range r.held {
		r.forget(token, held)
		errs = append(errs, held.close())
	}
	return errors.Join(errs...)
}
