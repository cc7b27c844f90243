package revoke

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Folder is a Store in a folder that an operator reads, with a file for each revocation. Several replicas may use it.
type Folder struct {
	path string
	// naming makes the comparison of a version and the removal of its file one step in this process.
	naming sync.Mutex
}

// filePrefix is the beginning of the names of the files. The folder may have other files.
const filePrefix = "revocation-"

// maxFile is the maximum size of a file in bytes.
const maxFile = 64 << 10

// OpenFolder returns a Folder. The folder must exist.
func OpenFolder(path string) (*Folder, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("open folder of revocations: %w", err)
	case !info.IsDir():
		return nil, fmt.Errorf("open folder of revocations: %s is no folder", path)
	}
	return &Folder{path: path}, nil
}

// List implements Store. It skips files that are not in the form that Put writes.
func (f *Folder) List(context.Context) (all []Revocation, err error) {
	entries, err := os.ReadDir(f.path)
	if err != nil {
		return nil, fmt.Errorf("list revocations: %w", err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), filePrefix) || !strings.HasSuffix(e.Name(), ".yaml") || !e.Type().IsRegular() {
			continue
		}
		r, ours, err := read(filepath.Join(f.path, e.Name()))
		switch {
		case errors.Is(err, fs.ErrNotExist): // another replica has removed it
		case err != nil:
			return nil, fmt.Errorf("list revocations: %w", err)
		case ours && e.Name() == fileOf(r.Namespace, r.ID):
			all = append(all, r)
		}
	}
	return all, nil
}

func read(path string) (r Revocation, ours bool, err error) {
	file, err := os.Open(path)
	if err != nil {
		return r, false, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return r, false, err
	}
	var m manifest
	if len(data) > maxFile || json.Unmarshal(data, &m) != nil {
		return r, false, nil
	}
	r, ours = m.revocation()
	sum := sha256.Sum256(data)
	r.Version = hex.EncodeToString(sum[:])
	return r, ours, nil
}

// Put implements Store. The file is complete when its name appears, and it is on the disk when Put returns. The name of
// the temporary file is hidden, so that the operator does not read it.
func (f *Folder) Put(_ context.Context, r Revocation) error {
	data, err := json.MarshalIndent(r.manifest(), "", "  ") // JSON is YAML
	if err != nil {
		return fmt.Errorf("write revocation: %w", err)
	}
	temporary, err := os.CreateTemp(f.path, "."+filePrefix+"*")
	if err != nil {
		return storeError("write revocation", err)
	}
	_, err = temporary.Write(append(data, '\n'))
	err = errors.Join(err, temporary.Chmod(0o644), temporary.Sync(), temporary.Close())
	if err == nil {
		err = f.rename(temporary.Name(), filepath.Join(f.path, fileOf(r.Namespace, r.ID)))
	}
	if err != nil {
		return errors.Join(storeError("write revocation", err), os.Remove(temporary.Name()))
	}
	return f.sync()
}

func (f *Folder) rename(from, to string) error {
	f.naming.Lock()
	defer f.naming.Unlock()
	return os.Rename(from, to)
}

// Delete implements Store. A write of another replica between the comparison of the version and the removal is lost.
func (f *Folder) Delete(_ context.Context, namespace, id, version string) error {
	removed, err := f.remove(filepath.Join(f.path, fileOf(namespace, id)), version)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return storeError("delete revocation", err)
	case !removed:
		return nil
	}
	return f.sync()
}

// remove removes a file with the given version, or with any version if version is empty.
func (f *Folder) remove(path, version string) (removed bool, err error) {
	f.naming.Lock()
	defer f.naming.Unlock()
	if version != "" {
		r, _, err := read(path)
		if err != nil || r.Version != version {
			return false, err
		}
	}
	return true, os.Remove(path)
}

// sync makes the names in the folder durable on the disk.
func (f *Folder) sync() error {
	dir, err := os.Open(f.path)
	if err != nil {
		return fmt.Errorf("sync folder of revocations: %w", err)
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// fileOf returns the name of the file of a revocation. Namespaces and IDs contain no characters that are special in
// names of files.
func fileOf(namespace, id string) string { return filePrefix + namespace + "-" + id + ".yaml" }

func storeError(verb string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		err = errors.Join(ErrForbidden, err)
	}
	return fmt.Errorf("%s: %w", verb, err)
}
