package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// journalFolder returns the folder for the journal of sessions. With --journal-dir, it is a subfolder of that folder.
// Only the user of this process can read and change the subfolder, because other users of the node may write to
// --journal-dir. The process would relay the sessions of a forged journal without authentication. If the subfolder is
// not safe, journalFolder returns --state-dir and the reason.
func (o options) journalFolder() (string, error) {
	if o.journalDir == "" {
		return o.stateDir, nil
	}
	dir := filepath.Join(o.journalDir, strconv.Itoa(os.Geteuid()))
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return o.stateDir, fmt.Errorf("make the journal folder: %w: the journal is in --state-dir", err)
	}
	// If any user may write to the parent folder, another user could replace the folder, unless the parent is sticky.
	err := onlyOurs(dir, func(mode fs.FileMode) bool { return mode.Perm()&0o077 == 0 }, os.Geteuid())
	parent := func(mode fs.FileMode) bool { return mode.Perm()&0o022 == 0 || mode&fs.ModeSticky != 0 }
	if err = errors.Join(err, onlyOurs(o.journalDir, parent, os.Geteuid(), 0)); err != nil {
		return o.stateDir, fmt.Errorf("check the journal folder: %w: the journal is in --state-dir", err)
	}
	return dir, nil
}

// onlyOurs returns an error if a path is not a folder, if another user owns it, or if its mode is not permitted.
func onlyOurs(path string, permitted func(fs.FileMode) bool, users ...int) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() || !permitted(info.Mode()) {
		return fmt.Errorf("%s has mode %s, so other users may change it: remove it", path, info.Mode())
	}
	for _, user := range users {
		if info.Sys().(*syscall.Stat_t).Uid == uint32(user) {
			return nil
		}
	}
	return fmt.Errorf("%s belongs to another user: remove it", path)
}
