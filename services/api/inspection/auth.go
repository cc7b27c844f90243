package inspection

import "time"

// AuthStatus is the state of an auth service. It contains no content of requests and no user names.
type AuthStatus struct {
	// Program is the program with its version, Go version and commit.
	Program string `json:"program"`
	// Now is the time of the clock of the service.
	Now time.Time `json:"now"`
	// Problem is why the service is not ready; empty if it is.
	Problem string `json:"problem,omitempty"`
	// Open is set if the service has neither keys of tokens nor a policy file, so that requests need no token.
	Open bool `json:"open,omitempty"`
	// KeysRead is the time of the last successful read of the keys of tokens and of the policy file. If they were read
	// at different times, it is the earliest of these times. It is zero if there was no such read, or if Open is set.
	KeysRead time.Time `json:"keysRead,omitzero"`
	// KeysProblem is why the last read of the keys or of the policy file failed.
	KeysProblem string `json:"keysProblem,omitempty"`
	// Configs are the revisions of the configs in use, by NAMESPACE/NAME of the Gateway.
	Configs map[string]string `json:"configs"`
	// Omitted is the number of further configs.
	Omitted int `json:"omitted,omitempty"`
	// Changed is when the service has last received a config.
	Changed time.Time `json:"changed,omitzero"`
	// Granted is the number of requests of the last ten minutes that got credentials.
	Granted uint64 `json:"granted"`
	// Refused is the number of requests of the last ten minutes that were refused, by reason.
	Refused map[string]uint64 `json:"refused,omitempty"`
}
