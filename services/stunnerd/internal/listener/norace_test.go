//go:build !race

package listener

// measured is the number of connections of TestPricesCoverConnectionsWithoutASession, and raceFactor the factor by
// which the race detector may exceed the prices.
const measured, raceFactor = 100, 1
