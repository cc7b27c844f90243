package relay

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// reserved are the descriptors that clients never get: probes, metrics and the source of the config need some, most of all when clients want too many.
const reserved = 32

// ErrNoRoom says that the descriptors that are left are not for clients.
var ErrNoRoom = errors.New("the process has no more descriptors for clients: raise its limit (ulimit -n)")

// Descriptors is how many descriptors the process may have.
func Descriptors() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int(min(limit.Cur, math.MaxInt32))
}

// Room returns ErrNoRoom when clients may not have another descriptor. The kernel gives out the lowest number that is free, so a new one tells
// how many are taken.
func Room() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read limit of descriptors: %w", err)
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return errors.Join(ErrNoRoom, err)
	}
	_ = unix.Close(fd)
	if uint64(fd) >= limit.Cur-min(reserved, limit.Cur/8) {
		return ErrNoRoom
	}
	return nil
}
