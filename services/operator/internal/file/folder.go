package file

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/stunner-gateway/stunner/services/operator/internal/decode"
)

// maxFileBytes is one byte more than package decode accepts, so that decode reports a file that is too big.
const maxFileBytes = 4<<20 + 1

// folder is the input folder. The *.yaml and *.yml files in the folder and in its direct subfolders are read, except
// for hidden files and subfolders.
type folder struct {
	path string
	// out is the output folder, which is not read even if it is a subfolder.
	out string
}

// contents are the files of the input folder at one time.
type contents struct {
	files map[string][]byte
	// unreadable are the files that exist but cannot be read. The objects that were read from these files before stay
	// in use.
	unreadable map[string]error
}

// dirs returns the folder and its direct subfolders, without hidden ones and the output folder.
func (f folder) dirs() ([]string, error) {
	entries, err := os.ReadDir(f.path)
	if err != nil {
		return nil, fmt.Errorf("read input folder: %w", err)
	}
	dirs := []string{f.path}
	for _, e := range entries {
		dir := filepath.Join(f.path, e.Name())
		if hidden(e.Name()) || sameFile(dir, f.out) {
			continue
		}
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// read returns the contents of all input files. It returns an error only if the folder or a subfolder cannot be read.
// The caller must then change nothing.
func (f folder) read() (contents, error) {
	c := contents{files: map[string][]byte{}, unreadable: map[string]error{}}
	dirs, err := f.dirs()
	if err != nil {
		return c, err
	}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return c, fmt.Errorf("read input folder: %w", err)
		}
		for _, e := range entries {
			c.add(f.path, filepath.Join(dir, e.Name()))
		}
	}
	return c, nil
}

// add reads one file if it is an input file. Pipes and devices are skipped, because reading them may block forever.
func (c contents) add(base, path string) {
	if ext := filepath.Ext(path); hidden(filepath.Base(path)) || (ext != ".yaml" && ext != ".yml") {
		return
	}
	name := strings.TrimPrefix(strings.TrimPrefix(path, base), string(filepath.Separator))
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, linkErr := os.Lstat(path); linkErr == nil { // a symbolic link to a file that does not exist
			c.unreadable[name] = &fs.PathError{Op: "read", Path: path, Err: errNoTarget}
		}
		return
	case err != nil:
		c.unreadable[name] = err
		return
	case info.IsDir():
		c.unreadable[name] = &fs.PathError{Op: "read", Path: path, Err: syscall.EISDIR}
		return
	case !info.Mode().IsRegular():
		return
	}
	data, err := readAtMost(path, maxFileBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		c.unreadable[name] = err
	default:
		c.files[name] = data
	}
}

func readAtMost(path string, n int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, n))
}

func hidden(name string) bool { return strings.HasPrefix(name, ".") }

func sameFile(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

// byPlace compares objects by file and line.
func byPlace(a, b decode.Located) int {
	return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
}
