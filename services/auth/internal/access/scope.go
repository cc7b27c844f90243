package access

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// The fields of the claim "stunner" if it is an object, and the fields of its field "scope".
var (
	stunnerNames = []string{"gateways", "region", "scope"}
	scopeNames   = []string{"routes", "allocations", "bytesPerSecond", "bytes", "notBefore"}
)

// parseStunner returns the fields of the claim "stunner" if it is an object. A field that the claim does not have is
// empty. An unknown field is refused, because it may be a limit.
func parseStunner(raw json.RawMessage) (gateways, scope json.RawMessage, region string, err error) {
	all, err := parseKnown(raw, stunnerNames)
	switch {
	case err != nil:
		return nil, nil, "", err
	case len(all) == 0:
		return nil, nil, "", errors.New("it is an object without a field")
	}
	if raw, ok := all["region"]; ok {
		var text *string
		if json.Unmarshal(raw, &text) != nil || text == nil {
			return nil, nil, "", errors.New("field region must be a text")
		}
		region = *text
	}
	return all["gateways"], all["scope"], region, nil
}

// parseScope returns the caveats of the field "scope". A scope without any limit, and a field without a limit, are
// refused, because the issuer must have intended a limit.
func parseScope(raw json.RawMessage) (c credential.Caveats, err error) {
	all, err := parseKnown(raw, scopeNames)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return credential.Caveats{}, errors.New("routes must be a list of NAMESPACE/NAME, and limits must be integers")
	}
	if err := c.Validate(); err != nil {
		return credential.Caveats{}, err
	}
	var set map[string]json.RawMessage
	written, err := json.Marshal(c)
	if err == nil {
		err = json.Unmarshal(written, &set)
	}
	if err != nil || len(set) != len(all) || len(set) == 0 {
		return credential.Caveats{}, errors.New("each field must be a limit: a list with an entry, or a number above 0")
	}
	return c, nil
}

// parseKnown is parseExact, and refuses other names.
func parseKnown(raw json.RawMessage, names []string) (map[string]json.RawMessage, error) {
	all, err := parseExact(raw, names)
	if err != nil {
		return nil, err
	}
	for found := range all {
		if !slices.Contains(names, found) {
			return nil, fmt.Errorf("it has a field that is none of %v", names)
		}
	}
	return all, nil
}
