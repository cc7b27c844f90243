package follower

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// MaxAge is the maximum age of a saved config with which a process may start. The age counts from the last confirmation
// by the source, and not from the last change of the config.
const MaxAge = 7 * 24 * time.Hour

// lastGoodFile is the name of the file in the state directory.
const lastGoodFile = "last-good.json"

// LastGood stores the last applied config on disk, for a start without the source. The file contains secrets and is
// readable by its owner only.
type LastGood struct {
	// Dir is the state directory. If it is empty, nothing is stored.
	Dir string
	// ID is the id of the config that this process runs. A saved config of another id is not used.
	ID string
}

type savedConfig struct {
	// Saved is when the source last confirmed the config.
	Saved  time.Time     `json:"saved"`
	Config config.Config `json:"config"`
}

// Save atomically replaces the saved config.
func (l LastGood) Save(c config.Config, now time.Time) error {
	if err := l.replace(lastGoodFile, savedConfig{now, c}); err != nil {
		return fmt.Errorf("save last good config: %w", err)
	}
	return nil
}

// replace atomically replaces a file of the state directory with the JSON of a value. The file is readable by its owner
// only.
func (l LastGood) replace(name string, content any) error {
	if l.Dir == "" {
		return nil
	}
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(l.Dir, 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(l.Dir, name+".*") // CreateTemp sets mode 0600
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), filepath.Join(l.Dir, name))
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}

// errNothingSaved is the error of loading the last good config, or the standby config, if there is no such file.
var errNothingSaved = errors.New("no last good config")

// Load returns the saved config and the time of its last confirmation by the source. It is an error if the config has
// another id, is invalid, or is older than MaxAge.
func (l LastGood) Load(now time.Time) (config.Config, time.Time, error) {
	if l.Dir == "" {
		return config.Config{}, time.Time{}, errNothingSaved
	}
	data, err := os.ReadFile(filepath.Join(l.Dir, lastGoodFile))
	if errors.Is(err, fs.ErrNotExist) {
		return config.Config{}, time.Time{}, errNothingSaved
	}
	var k struct {
		Saved  time.Time       `json:"saved"`
		Config json.RawMessage `json:"config"`
	}
	if err == nil {
		err = json.Unmarshal(data, &k)
	}
	if err != nil {
		return config.Config{}, time.Time{}, fmt.Errorf("read last good config: %w", err)
	}
	c, _, err := config.Parse(k.Config)
	if err == nil {
		err = check(c, l.ID)
	}
	switch {
	case err != nil:
		return config.Config{}, time.Time{}, fmt.Errorf("read last good config: %w", err)
	case now.Sub(k.Saved) > MaxAge:
		return config.Config{}, time.Time{}, fmt.Errorf("read last good config: saved %s, which is more than %s ago",
			k.Saved.Format(time.RFC3339), MaxAge)
	}
	return c, k.Saved, nil
}

// check returns an error if a saved config is invalid or has another id.
func check(c config.Config, id string) error {
	switch err := c.Validate(); {
	case err != nil:
		return err
	case c.Admin.Name != id:
		return fmt.Errorf("it is of %s, not of %s", c.Admin.Name, id)
	}
	return nil
}
