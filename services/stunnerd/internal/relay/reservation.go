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
	// reservationTime is how long a port stays reserved (RFC 8656 §7.2).
	reservationTime = 30 * time.Second
	// maxReservations bounds the reserved ports of the process.
	maxReservations = 256
)

// Reserved is a relay socket with its advertised address. User and Port are set only for a reserved port. A reserved
// port has the same advertised address as the socket on the port below.
type Reserved struct {
	Socket
	Advertised netip.Addr
	// User is the user ID that may use the port.
	User string
	// Port is the entry of the port in the session table.
	Port *session.RelayPort
}

// close closes the socket and releases its entry in the session table.
func (s Reserved) close() error {
	if s.Port != nil {
		s.Port.Release()
	}
	return s.Socket.Close()
}

// Reservations holds reserved ports until their tokens are used. Use NewReservations.
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

// Hold reserves the port of a socket and returns the token of the reservation. After an error, the socket is closed and
// its entry in the session table is released.
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
	r.held[token] = &reservation{s, time.AfterFunc(reservationTime, func() { _ = r.Drop(token) })}
	return token, nil
}

// Take removes the reservation of a token and returns its socket. ok is false if the token is unknown, expired or used,
// or was issued to another user.
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

// Drop closes the socket of a token, unless the reservation has already ended.
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

// forget removes a reservation. The caller holds mu.
func (r *Reservations) forget(token Token, held *reservation) {
	delete(r.held, token)
	held.expiry.Stop()
}

// Close closes all reserved sockets.
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
