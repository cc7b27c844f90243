//go:build race

package listener

// With the race detector stacks are larger and handshakes slower.
const measured, raceFactor = 50, 2
