//go:build !unix

package command

import (
	"fmt"
	"io"
)

// printOnSignal does nothing, because this system has no SIGUSR1.
func printOnSignal(io.Writer, fmt.Stringer) (stop func()) { return func() {} }
