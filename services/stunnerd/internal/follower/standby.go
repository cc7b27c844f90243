package follower

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// readStandby reads the config that somebody else has laid ready for a first start without the source, in the form of [config.Config.Pack] or as
// it is. It was published at some time: unlike what is kept here nobody knows when, and a pod that serves it beats one that serves nothing.
func readStandby(path, id string) (config.Config, error) {
	if path == "" {
		return config.Config{}, errNothingKept
	}
	in, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return config.Config{}, errNothingKept
	}
	if err != nil {
		return config.Config{}, fmt.Errorf("read standby config: %w", err)
	}
	defer func() { _ = in.Close() }()
	data, err := io.ReadAll(io.LimitReader(in, config.MaxDocument+1))
	if err != nil {
		return config.Config{}, fmt.Errorf("read standby config: %w", err)
	}
	c, _, err := config.Unpack(data)
	if err == nil {
		err = fit(c, id)
	}
	if err != nil {
		return config.Config{}, fmt.Errorf("read standby config: %w", err)
	}
	return c, nil
}
