package output

import (
	"fmt"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// Age returns the time since then as kubectl prints ages, such as 5m or 2d3h, or "" for a zero time.
func Age(then, now time.Time) string {
	if then.IsZero() {
		return ""
	}
	return duration.HumanDuration(max(0, now.Sub(then)))
}

// Duration returns a duration as kubectl prints ages.
func Duration(d time.Duration) string { return duration.HumanDuration(max(0, d)) }

// Bytes returns a number of bytes in a unit of 1000, such as 1.2 MB.
func Bytes(n uint64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	exponent := min(int(math.Log10(float64(n))/3), 6)
	value := float64(n) / math.Pow(1000, float64(exponent))
	if value < 10 {
		return fmt.Sprintf("%.1f %cB", value, " kMGTPE"[exponent])
	}
	return fmt.Sprintf("%.0f %cB", value, " kMGTPE"[exponent])
}
