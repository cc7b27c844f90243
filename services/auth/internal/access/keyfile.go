package access

import (
	"bytes"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/stunner-gateway/stunner/services/auth/internal/yamlfile"
)

// rereadInterval is the minimum time between two reads of a file with token keys. The file is read repeatedly because a
// mounted Secret can change.
const rereadInterval = 10 * time.Second

// keyFile contains the token keys of a file. If the file becomes invalid, its previous keys stay in use.
type keyFile struct {
	flag, path string
	parse      func(raw []byte) (jwt.Keyfunc, error)
	log        *slog.Logger

	mu     sync.Mutex
	readAt time.Time
	raw    []byte
	keys   jwt.Keyfunc
	reads  keyReads
}

// openKeyFile reads a file with token keys. It returns an error if the file is invalid.
func openKeyFile(flag, path string, log *slog.Logger, parse func([]byte) (jwt.Keyfunc, error)) (*keyFile, error) {
	f := &keyFile{flag: flag, path: path, parse: parse, log: log}
	if err := f.read(); err != nil {
		return nil, err
	}
	return f, nil
}

// state reads the file again if its last read is not recent, because the file is otherwise read at requests only.
func (f *keyFile) state() KeyState {
	f.current()
	return f.reads.state()
}

func (f *keyFile) key(t *jwt.Token) (any, error) { return f.current()(t) }

func (f *keyFile) current() jwt.Keyfunc {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.readAt) >= rereadInterval {
		if err := f.read(); err != nil {
			f.log.Warn("cannot read token keys, keep known token keys", "error", err)
		}
	}
	return f.keys
}

// read reads the keys of the file.
func (f *keyFile) read() (err error) {
	defer func() { f.reads.done(err) }()
	f.readAt = time.Now()
	raw, err := readSet(f.path)
	if err != nil {
		return fmt.Errorf("read %s: %w", f.flag, err)
	}
	if f.keys != nil && bytes.Equal(raw, f.raw) {
		return nil
	}
	keys, err := f.parse(raw)
	if err != nil {
		return fmt.Errorf("read %s: %s %w", f.flag, f.path, err)
	}
	if f.keys != nil {
		f.log.Info("token keys have changed", "file", f.path)
	}
	f.raw, f.keys = raw, keys
	return nil
}

func readSet(path string) ([]byte, error) { return yamlfile.ReadFile(path, maxSet) }
