package scenario

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// token makes a JSON Web Token (RFC 7519) without the library of the auth service, which is under test.
func token(_ *stage, ts *testscript.TestScript, args []string) error {
	var claims map[string]any
	if err := json.Unmarshal([]byte(args[2]), &claims); err != nil {
		return fmt.Errorf("read claims: %w", err)
	}
	claims["exp"] = time.Now().Add(time.Hour).Unix()
	payload, err := json.Marshal(claims)
	if err != nil {
		return fmt.Errorf("write claims: %w", err)
	}
	signed := encode([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + encode(payload)
	mac := hmac.New(sha256.New, bytes.TrimSpace([]byte(ts.ReadFile(args[1]))))
	mac.Write([]byte(signed))
	ts.Setenv(args[0], signed+"."+encode(mac.Sum(nil)))
	return nil
}

func encode(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }
