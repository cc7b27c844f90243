// Command page writes docs/reference/metrics.md to its standard output, for make gen.
package main

import (
	"fmt"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

func main() { fmt.Print(telemetry.Page()) }
