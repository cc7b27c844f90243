package inspection

import (
	"encoding/json"
	"time"

	"github.com/stunner-gateway/stunner/services/api/finding"
)

// Config is the config of a Gateway as a replica of the operator publishes it.
type Config struct {
	// Revision is the revision of the published config, with its secrets.
	Revision string `json:"revision"`
	// AuthRevision is the revision of the part that auth services receive; see AuthStatus.Configs.
	AuthRevision string `json:"authRevision,omitempty"`
	// Config is the config with "<redacted>" in the place of each secret.
	Config json.RawMessage `json:"config"`
}

// Operator is the state of a replica of the operator.
type Operator struct {
	// Version is the program with its version, Go version and commit.
	Version string `json:"version"`
	// Replica is the name of the replica.
	Replica string `json:"replica"`
	// Leader is the name of the replica that is the leader; empty if it is unknown.
	Leader string `json:"leader"`
	// Now is the time of the replica's clock.
	Now time.Time `json:"now"`
	// Problems are the conditions that report a problem, sorted by object.
	Problems []Problem `json:"problems"`
	// Omitted is the number of further problems.
	Omitted int `json:"omitted,omitempty"`
	// Output is the path of the output folder of a file provider.
	Output string `json:"output,omitempty"`
	// Faults are the faults of the host of a file provider: of folders, disks, ports, addresses and processes. A fault
	// of one Gateway has the Gateway as its object.
	Faults []finding.Finding `json:"faults,omitempty"`
}

// Problem is a condition that reports a problem.
type Problem struct {
	// Object is KIND NAMESPACE/NAME, or KIND NAME for an object without a namespace.
	Object string `json:"object"`
	// Field is the part of the object, such as spec.listeners{NAME}; empty for the whole object.
	Field     string `json:"field,omitempty"`
	Condition string `json:"condition"`
	Status    string `json:"status,omitempty"`
	Reason    string `json:"reason"`
	Message   string `json:"message"`
	// Findings are the causes of the problem, with their remedies.
	Findings []finding.Finding `json:"findings,omitempty"`
}
