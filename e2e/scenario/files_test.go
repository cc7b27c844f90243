package scenario

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

func put(s *stage, ts *testscript.TestScript, args []string) error {
	for _, name := range args {
		if err := s.stack.Put(filepath.Base(name), []byte(ts.ReadFile(name))); err != nil {
			return err
		}
	}
	return nil
}

func edit(s *stage, _ *testscript.TestScript, args []string) error {
	old, err := regexp.Compile("(?m)" + args[1])
	if err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(s.stack.Input(), args[0]))
	if err != nil {
		return err
	}
	if !old.Match(data) {
		return fmt.Errorf("%s does not contain %s", args[0], old)
	}
	return s.stack.Put(args[0], old.ReplaceAll(data, []byte(args[2])))
}

func file(s *stage, ts *testscript.TestScript, neg bool, args []string) error {
	pattern, err := regexp.Compile("(?m)" + args[1])
	if err != nil {
		return err
	}
	ctx, cancel := s.within(patience)
	defer cancel()
	return bed.Until(ctx, func(context.Context) error {
		found, err := anyMatches(ts.MkAbs(args[0]), pattern)
		if err != nil {
			return err
		}
		if found == neg {
			return fmt.Errorf("match of %s in %s: %t", pattern, args[0], found)
		}
		return nil
	})
}

// anyMatches reports whether a file, or a file below a folder, matches. Files may be removed while the folder is read.
func anyMatches(path string, pattern *regexp.Regexp) (found bool, err error) {
	err = filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return ignoreAbsent(err)
		}
		data, err := os.ReadFile(name)
		found = found || pattern.Match(data)
		return ignoreAbsent(err)
	})
	return found, err
}

func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func expand(_ *stage, ts *testscript.TestScript, args []string) error {
	return os.WriteFile(ts.MkAbs(args[0]), []byte(os.Expand(ts.ReadFile(args[0]), ts.Getenv)), 0o600)
}

func large(_ *stage, ts *testscript.TestScript, args []string) error {
	size, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	const frame = `{"ttl":60,"pad":""}`
	pad := strings.Repeat("x", max(0, size-len(frame)))
	return os.WriteFile(ts.MkAbs(args[0]), []byte(strings.Replace(frame, `""`, `"`+pad+`"`, 1)), 0o600)
}
