package bed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Folders of the programs, below the root of the repository.
const (
	Operator = "services/operator"
	Stunnerd = "services/stunnerd"
	Auth     = "services/auth"
	Echo     = "e2e/echo"
)

// Root finds the root of the repository: the nearest folder, from the working directory upwards, that holds go.work.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find root of repository: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("find root of repository: no go.work in the working directory or above: run inside the repository")
		}
		dir = parent
	}
}

// Build compiles programs into dir, each under the name of its folder. What did not change comes from the build cache.
func Build(ctx context.Context, root, dir string, folders ...string) error {
	for _, folder := range folders {
		cmd := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(dir, filepath.Base(folder)), ".")
		cmd.Dir = filepath.Join(root, folder)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", folder, err, out)
		}
	}
	return nil
}
