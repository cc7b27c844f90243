package command

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"regexp"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// apiKeyPrefix is the beginning of each API key. Scanners of source code recognize a committed key by it.
const apiKeyPrefix = "stunner_"

// apiKeyName matches the names that the policy file of the auth service accepts.
var apiKeyName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// apiKey is a new API key of the auth service.
type apiKey struct {
	Name string `json:"name"`
	Key  string `json:"key"`
	Hash string `json:"hash"`
}

func newAuthKey(g *globals) *cobra.Command {
	c := &cobra.Command{Use: "key", Short: "API keys of the auth service"}
	c.AddCommand(newAuthKeyNew(g))
	return c
}

func newAuthKeyNew(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "new NAME",
		Short: "Make an API key for the auth service",
		Long: `Prints a new API key with 256 random bits, and its entry for the policy file of
the auth service (auth --policy, docs/auth-policy.md). Nothing stores the key: give
it to the caller now. The policy file has its SHA-256 hash only.

To replace a key, add the hash as second entry to the hashes of its name.`,
		Example: "  stunnerctl auth key new shop",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if !apiKeyName.MatchString(args[0]) {
				return usagef(
					"name %q: use 1 to 63 of the characters A-Z, a-z, 0-9, dot, hyphen and underscore", args[0])
			}
			made := makeAPIKey(args[0])
			if p := g.printer(); !p.IsTable() {
				return p.Value(made)
			}
			name, err := yaml.Marshal(made.Name) // in quotation marks if YAML would read a number or a boolean
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(g.Out, `Key, which is shown only now:

%s

Entry for the policy file, below keys:

- name: %s  hashes:
  - %s
`, made.Key, name, made.Hash)
			return err
		},
	}
}

func makeAPIKey(name string) apiKey {
	var bits [32]byte
	_, _ = rand.Read(bits[:]) // never fails
	key := apiKeyPrefix + base64.RawURLEncoding.EncodeToString(bits[:])
	return apiKey{Name: name, Key: key, Hash: fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(key)))}
}
