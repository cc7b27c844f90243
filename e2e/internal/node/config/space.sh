# Runs first in the namespaces of the node.
set -eu
mount --make-rshared /
hostname {{.Name}}
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns

# Kubelet requires certain kernel settings, which must not change on the host. It finds files with the required values
# instead.
while read -r setting value; do
  echo "$value" >"{{.Dir}}/$setting"
  mount --bind "{{.Dir}}/$setting" "/proc/sys/$(echo "$setting" | tr . /)"
done <<SETTINGS
vm.overcommit_memory 1
vm.panic_on_oom 0
kernel.panic 10
kernel.panic_on_oops 1
kernel.keys.root_maxkeys 1000000
kernel.keys.root_maxbytes 25000000
SETTINGS

ip link set lo up
ip address add {{.Node}}/24 dev eth0
ip link set eth0 up
ip route add default via {{.Client}}
echo 1 >/proc/sys/net/ipv4/ip_forward

# Pods reach each other by their own addresses on all nodes, and all other hosts by the address of their node (SNAT).
nft -f - <<RULES
table ip pods {
  chain postrouting {
    type nat hook postrouting priority srcnat
    ip saddr {{.Pods}} ip daddr != {{.AllPods}} masquerade
  }
}
RULES
