package relay

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// reserved are the descriptors that clients do not get: probes, metrics and the source of the config need some.
const reserved = 32

// ErrNoRoom is the error if the free descriptors are not for clients.
var ErrNoRoom = errors.New("the process has no more descriptors for clients: raise its limit (ulimit -n)")

// Descriptors returns the limit of descriptors of the process.
func Descriptors() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int(min(limit.Cur, math.MaxInt32))
}

// Room returns ErrNoRoom if no descriptor is left for clients. The kernel assigns the lowest free number, so the number
// of a new descriptor tells how many are in use.
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
