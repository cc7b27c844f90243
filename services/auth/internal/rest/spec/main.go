// Command spec converts the contract openapi/auth.yaml to the JSON that the service serves at /openapi.json. The
// contract is outside of the module, so it cannot be embedded itself.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"go.yaml.in/yaml/v3"
)

func main() {
	if err := convert(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "spec:", err)
		os.Exit(1)
	}
}

func convert(from, to string) error {
	raw, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("read contract: %w", err)
	}
	var document map[string]any
	if err := yaml.Unmarshal(raw, &document); err != nil {
		return fmt.Errorf("parse %s: %w", from, err)
	}
	out, err := json.Marshal(document)
	if err != nil {
		return fmt.Errorf("convert %s: %w", from, err)
	}
	return os.WriteFile(to, append(out, '\n'), 0o644)
}
