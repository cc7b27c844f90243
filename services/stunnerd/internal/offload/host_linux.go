package offload

import (
	"os"
	"path/filepath"
)

// sysctls is the folder of net.core for the network namespace of this process.
const sysctls = "/proc/sys/net/core"

// onHost reports whether this process is in the initial network namespace. It also returns true if that is unknown.
// sysctls is the folder of net.core. net.core.somaxconn exists in each namespace. net.core.netdev_budget exists only in
// the initial namespace, because it applies to interrupts for all namespaces.
func onHost(sysctls string) bool {
	exists := func(name string) bool {
		_, err := os.Stat(filepath.Join(sysctls, name))
		return err == nil
	}
	return exists("netdev_budget") || !exists("somaxconn")
}
