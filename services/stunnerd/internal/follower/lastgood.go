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

// MaxAge is for how long nobody may have stood by a kept config that is started with. Since when it is unchanged does not count.
const MaxAge = 7 * 24 * time.Hour

// lastGoodFile is the name of the file in the state directory.
const lastGoodFile = "last-good.json"

// LastGood keeps the config that was last put in force on disk, for a start without anybody to ask. The file holds secrets: it is
// readable by the owner alone.
type LastGood struct {
	// Dir is the state directory. Empty means that nothing is kept.
	Dir string
	// ID is the config that this process runs; a kept config of another id is not touched.
	ID string
}

type kept struct {
	// Saved is when the source stood by the config last.
	Saved  time.Time     `json:"saved"`
	Config config.Config `json:"config"`
}

// Save replaces what is kept, as a whole or not at all.
func (l LastGood) Save(c config.Config, now time.Time) error {
	if l.Dir == "" {
		return nil
	}
	data, err := json.Marshal(kept{now, c})
	if err != nil {
		return fmt.Errorf("keep last good config: %w", err)
	}
	if err := os.MkdirAll(l.Dir, 0o700); err != nil {
		return fmt.Errorf("keep last good config: %w", err)
	}
	tmp, err := os.CreateTemp(l.Dir, lastGoodFile+".*") // CreateTemp makes it 0600
	if err != nil {
		return fmt.Errorf("keep last good config: %w", err)
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), filepath.Join(l.Dir, lastGoodFile))
	}
	if err != nil {
		return fmt.Errorf("keep last good config: %w", errors.Join(err, os.Remove(tmp.Name())))
	}
	return nil
}

// errNothingKept says that there is no config to start with.
var errNothingKept = errors.New("no last good config")

// Load returns what was kept, if it is of this id, valid, and younger than MaxAge, and when its source stood by it last.
func (l LastGood) Load(now time.Time) (config.Config, time.Time, error) {
	if l.Dir == "" {
		return config.Config{}, time.Time{}, errNothingKept
	}
	data, err := os.ReadFile(filepath.Join(l.Dir, lastGoodFile))
	if errors.Is(err, fs.ErrNotExist) {
		return config.Config{}, time.Time{}, errNothingKept
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
		err = fit(c, l.ID)
	}
	switch {
	case err != nil:
		return config.Config{}, time.Time{}, fmt.Errorf("read last good config: %w", err)
	case now.Sub(k.Saved) > MaxAge:
		return config.Config{}, time.Time{}, fmt.Errorf("read last good config: saved %s, which is more than %s ago", k.Saved.Format(time.RFC3339), MaxAge)
	}
	return c, k.Saved, nil
}

// fit tells whether a config can be started with by who runs the config id.
func fit(c config.Config, id string) error {
	switch err := c.Validate(); {
	case err != nil:
		return err
	case c.Admin.Name != id:
		return fmt.Errorf("it is of %s, not of %s", c.Admin.Name, id)
	}
	return nil
}
