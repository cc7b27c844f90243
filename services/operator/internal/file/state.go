package file

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// savedState is the state that is saved in state/operator.json for the next run of the operator. It contains no
// secrets.
type savedState struct {
	// Ports are the host ports of listeners and of the metrics and health check endpoints of dataplanes.
	Ports map[string]assignment `json:"ports"`
	// Published are the revisions of the published configs, by Gateway as NAMESPACE/NAME.
	Published map[string]string `json:"published"`
	// Listeners are the names of the listeners in the published configs, by Gateway as NAMESPACE/NAME.
	Listeners map[string][]string `json:"listeners"`
	// Inventory are the objects in use by file, see ledger.
	Inventory map[string][]identity `json:"inventory"`
	// Addresses are the public addresses of listeners that this host has or had. The value is a Gateway with such a
	// listener.
	Addresses map[string]string `json:"addresses,omitempty"`
	// Auth are the auth services that were connected, by their names.
	Auth map[string]authService `json:"auth,omitempty"`
}

const stateFile = "operator.json"

// loadState reads the state that the previous run saved. It returns an error if the file is invalid: with an empty
// state, the ports of Gateways would change.
func loadState(dir string) (savedState, error) {
	m := savedState{Ports: map[string]assignment{}, Published: map[string]string{}, Listeners: map[string][]string{}}
	path := filepath.Join(dir, stateFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && len(bytes.TrimSpace(data)) == 0) {
		return m, nil
	}
	if err != nil {
		return m, fmt.Errorf("read state: %w", err)
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return m, fmt.Errorf("read state %s: %w: remove the file to start without it; ports may then change", path, err)
	}
	return m, nil
}

// publish records that a config is published.
func (m savedState) publish(c config.Config) {
	var listeners []string
	for _, l := range c.Listeners {
		listeners = append(listeners, l.Name)
	}
	m.Published[c.Admin.Name], m.Listeners[c.Admin.Name] = c.Revision(), listeners
}

// withdraw records that the config of a Gateway is withdrawn.
func (m savedState) withdraw(name string) {
	delete(m.Published, name)
	delete(m.Listeners, name)
}

// publishedFile returns the path of the file with the published config of a Gateway. The config contains secrets, and
// the folder can be read by the user of the operator only.
func (p Provider) publishedFile(key types.NamespacedName) string {
	return filepath.Join(p.publishedDir(), safeName(key.Namespace+"_"+key.Name+".gz"))
}

// stored returns the config of a Gateway that the previous run published, or nil.
func (p Provider) stored(key types.NamespacedName) (*config.Config, error) {
	data, err := os.ReadFile(p.publishedFile(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var c config.Config
	if err == nil {
		c, _, err = config.Unpack(data)
	}
	if err == nil {
		c.Default()
		err = c.Validate()
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w: the config is published again when the Gateway has no problem",
			p.publishedFile(key), err)
	}
	if c.Admin.Name != key.String() { // two names may have the same file name
		return nil, nil
	}
	return &c, nil
}

// store stores the published config of a Gateway for the next run. A run that only renders stores none.
func (p Provider) store(key types.NamespacedName, c config.Config) error {
	if !p.serves() {
		return nil
	}
	return replaceFile(p.publishedFile(key), c.Pack(), 0o600)
}

func (m savedState) save(dir string) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return replaceFile(filepath.Join(dir, stateFile), append(data, '\n'), 0o600)
}

// lock locks an output folder, so that only one operator at a time uses it. The kernel releases the lock when the
// process ends.
func lock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock output folder: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock output folder %s: another operator uses it: stop that one or choose another --output",
			filepath.Dir(dir))
	}
	return f, nil
}

// token returns the bearer token of config discovery. It is read from a file and stays the same after a restart of the
// operator, because dataplanes continue to run and use it. If other users can read the file, the token is replaced.
func token(path string) (credential.Secret, error) {
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 == 0 {
		data, err := os.ReadFile(path)
		if have := strings.TrimSpace(string(data)); err == nil && len(have) >= tokenLength {
			return credential.Secret(have), nil
		}
	}
	raw := make([]byte, 32)
	rand.Read(raw) // never fails: crypto/rand ends the process instead
	made := base64.RawURLEncoding.EncodeToString(raw)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("replace discovery token: %w", err)
	}
	return credential.Secret(made), replaceFile(path, []byte(made+"\n"), 0o600)
}

// tokenLength is the number of characters of a token: 32 bytes in base64 without padding.
const tokenLength = 43
