package iceservers

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Requests that fail are repeated, first after firstBackoff, then after twice as long, at most longestBackoff. Of this
// time the second half is random.
const (
	mostFailures      = 5 // in a row, until a caller gets the error
	firstBackoff      = 500 * time.Millisecond
	longestBackoff    = 30 * time.Second
	longestRetryAfter = 5 * time.Minute
)

func temporary(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Temporary()
}

// backoff returns how long to wait after a number of failures in a row. It is at least what the service asks for.
func backoff(err error, failures int) time.Duration {
	longest := longestBackoff
	if temporary(err) && failures < 10 {
		longest = min(firstBackoff<<(failures-1), longestBackoff)
	}
	least := longest / 2
	var e *Error
	if errors.As(err, &e) && e.RetryAfter > 0 {
		least = min(e.RetryAfter, longestRetryAfter)
	}
	return least + rand.N(longest/2)
}

// sleep waits for a time. Its error is the cause of the end of the context.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
