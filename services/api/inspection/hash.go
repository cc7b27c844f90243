package inspection

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Hash returns a short HMAC of texts, which is shown in place of a user name or an address. The key is random and never
// leaves the process, so that a reader of a hash cannot find the text by hashing guesses.
func Hash(key []byte, parts ...string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(mac.Sum(nil))[:12]
}
