package follower

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// readStandby reads the standby config, plain or packed by [config.Config.Pack]. The operator mounts it into its pods,
// so that they can start while the operator is unreachable. Its age is unknown and not limited: a pod with an old
// config is better than a pod without a config.
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
