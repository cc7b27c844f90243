package relay

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// reserved is the number of file descriptors that are kept for probes, metrics and the source of the config, but at
// most an eighth of all.
const reserved = 32

// ErrNoRoom is the error if all file descriptors for clients are in use.
var ErrNoRoom = errors.New("the process has no more descriptors for clients: raise its limit (ulimit -n)")

// Descriptors returns the largest number of open file descriptors of the process (RLIMIT_NOFILE), or 0 if it is
// unknown.
func Descriptors() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int(min(limit.Cur, math.MaxInt32))
}

// highest returns the maximum number of a client's file descriptor. The kernel assigns the lowest free number, so the
// number of a new descriptor is about the number of open descriptors.
func highest() (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read limit of descriptors: %w", err)
	}
	return int(min(limit.Cur-min(reserved, limit.Cur/8), math.MaxInt32)) - 1, nil
}

// Room returns ErrNoRoom if no file descriptor is left for clients.
func Room() error {
	most, err := highest()
	if err != nil {
		return err
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return errors.Join(ErrNoRoom, err)
	}
	_ = unix.Close(fd)
	if fd > most {
		return ErrNoRoom
	}
	return nil
}
