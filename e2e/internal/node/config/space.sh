# Runs in the namespaces of the node, before anything else does.
set -eu
mount --make-rshared /
hostname {{.Name}}
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns

# Kubelet insists on some settings of the kernel, which are not ours to change. It finds files with the values that it wants, and writes none.
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

# Pods speak to one another by their own addresses, on whatever nodes they are, and to everybody else by that of their node.
nft -f - <<RULES
table ip pods {
  chain postrouting {
    type nat hook postrouting priority srcnat
    ip saddr {{.Pods}} ip daddr != {{.AllPods}} masquerade
  }
}
RULES
