package file

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// output is the output folder. A file in it is replaced atomically and only if its content changes, because other
// programs may watch the file.
type output struct {
	dir     string
	written map[string]bool // files that this round has written
}

// begin starts a round.
func (o *output) begin() { o.written = map[string]bool{} }

// path joins names to a path inside the output folder. The names come from YAML, so they are converted by safeName
// first: no name may lead out of the folder.
func (o *output) path(names ...string) string {
	for i, name := range names {
		names[i] = safeName(name)
	}
	return filepath.Join(append([]string{o.dir}, names...)...)
}

// maxName is the maximum length of a file name in bytes, which every file system allows.
const maxName = 240

// safeName converts any text to a file name. The name for a long text contains its hash, so that names stay distinct.
func safeName(name string) string {
	name = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		}
		return '_'
	}, name)
	if len(name) > maxName {
		sum := sha256.Sum256([]byte(name))
		name = name[:maxName-20] + "_" + hex.EncodeToString(sum[:4]) + filepath.Ext(name)
	}
	if name == "" || name[0] == '.' {
		name = "_" + name
	}
	return name
}

// writeYAML writes a value as YAML. Everyone can read the file, so the value must not contain secrets.
func (o *output) writeYAML(path string, value any) error {
	data, err := yaml.Marshal(value)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return o.write(path, data)
}

func (o *output) write(path string, data []byte) error {
	o.written[path] = true
	return replaceFile(path, data, 0o644)
}

// removeStale removes the files in a subfolder of the output folder that were not written in this round.
func (o *output) removeStale(name string) error {
	var errs []error
	err := filepath.WalkDir(filepath.Join(o.dir, name), func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // nothing has been written there yet
		case err != nil:
			errs = append(errs, err)
		case !entry.IsDir() && !o.written[path]:
			errs = append(errs, os.Remove(path))
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}

// replaceFile replaces a file atomically, unless the file already has this content.
func replaceFile(path string, data []byte, mode os.FileMode) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	temp, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(temp.Name())
	_, err = temp.Write(data)
	err = errors.Join(err, temp.Chmod(mode), temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
