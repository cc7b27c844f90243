package offload

import (
	"os"
	"path/filepath"
)

// sysctls is the folder of net.core for the network namespace of this process.
const sysctls = "/proc/sys/net/core"

// onHost reports whether this process is in the initial network namespace, or cannot find out. sysctls is the folder of
// net.core: net.core.somaxconn exists in each namespace, and net.core.netdev_budget only in the initial one, because
// its interrupts serve all namespaces.
func onHost(sysctls string) bool {
	exists := func(name string) bool {
		_, err := os.Stat(filepath.Join(sysctls, name))
		return err == nil
	}
	return exists("netdev_budget") || !exists("somaxconn")
}
