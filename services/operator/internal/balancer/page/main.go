// Command page writes docs/providers.md to its standard output, for make gen.
package main

import (
	"fmt"

	"github.com/stunner-gateway/stunner/services/operator/internal/balancer"
)

func main() { fmt.Print(balancer.Page()) }
