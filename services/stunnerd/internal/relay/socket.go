package relay

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Socket is an open relay socket that no session uses yet.
type Socket struct {
	conn *net.UDPConn
	from *receiver
}

// OpenSocket opens a relay socket of an address's family on a port that the kernel picks.
func OpenSocket(family netip.Addr) (*Socket, error) { return openPort(family, 0) }

// OpenEven opens a relay socket on an even port; with next it opens one on the port above too (RFC 8656 §7.2).
func OpenEven(family netip.Addr, next bool) (even, odd *Socket, err error) {
	for range evenTries {
		if even, err = OpenSocket(family); err != nil {
			return nil, nil, err
		}
		if even.port()%2 == 0 {
			if !next {
				return even, nil, nil
			}
			if odd, err = openPort(family, int(even.port())+1); err == nil {
				return even, odd, nil
			}
		}
		if err := even.Close(); err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, errors.New("open relay socket: found no even port")
}

// evenTries makes it all but certain that a free pair is found: half of all ports are even.
const evenTries = 64

func openPort(family netip.Addr, port int) (*Socket, error) {
	network := "udp4"
	if family.Is6() {
		network = "udp6"
	}
	conn, err := net.ListenUDP(network, &net.UDPAddr{Port: port})
	if err != nil {
		return nil, fmt.Errorf("open relay socket: %w", err)
	}
	from, err := newReceiver(conn)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open relay socket: %w", err), conn.Close())
	}
	return &Socket{conn, from}, nil
}

func (s *Socket) port() uint16 { return s.conn.LocalAddr().(*net.UDPAddr).AddrPort().Port() }

// Close closes the socket.
func (s *Socket) Close() error { return s.conn.Close() }

// Token is the value of a RESERVATION-TOKEN attribute.
type Token [8]byte

const (
	// reservationTime is how long a reserved port is held (RFC 8656 §7.2).
	reservationTime = 30 * time.Second
	// maxReservations bounds the ports that are held for nobody.
	maxReservations = 256
)

// Reservations holds the second port of a pair until its client comes for it. The zero Reservations is not usable: call
// NewReservations.
type Reservations struct {
	mu   sync.Mutex
	held map[Token]*reservation
}

type reservation struct {
	socket *Socket
	expiry *time.Timer
}

// NewReservations returns an empty set.
func NewReservations() *Reservations { return &Reservations{held: map[Token]*reservation{}} }

// Hold keeps a socket and returns the token that gets it. It closes the socket when there are too many already.
func (r *Reservations) Hold(s *Socket) (Token, error) {
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
		if late := r.Take(token); late != nil {
			_ = late.Close()
		}
	})}
	return token, nil
}

// Take hands out the socket behind a token, once; nil when there is none.
func (r *Reservations) Take(token Token) *Socket {
	r.mu.Lock()
	defer r.mu.Unlock()
	held := r.held[token]
	if held == nil {
		return nil
	}
	delete(r.held, token)
	held.expiry.Stop()
	return held.socket
}

// Close closes what is held.
func (r *Reservations) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for token, held := range r.held {
		held.expiry.Stop()
		errs = append(errs, held.socket.Close())
		delete(r.held, token)
	}
	return errors.Join(errs...)
}
