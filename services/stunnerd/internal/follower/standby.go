package follower

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// readStandby reads the standby config, which the operator writes for pods that start without it, plain or packed by
// [config.Config.Pack]. Its age is unknown and not limited: a pod with an old config is better than one without a
// config.
func readStandby(path, id string) (config.Config, error) {
	if path == "" {
		return config.Config{}, errNothingSaved
	}
	in, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return config.Config{}, errNothingSaved
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
		err = check(c, id)
	}
	if err != nil {
		return config.Config{}, fmt.Errorf("read standby config: %w", err)
	}
	return c, nil
}
