#!/usr/bin/env bash
# Installs the releases that devcontainer.json names, which come in as $KIND and $TILT, each held against the checksum that its project publishes.
set -euo pipefail
releases=https://github.com
cd "$(mktemp -d)"

case $(uname -m) in
  x86_64) go_arch=amd64 tilt_arch=x86_64 ;;
  aarch64) go_arch=arm64 tilt_arch=arm64 ;;
  *) echo "install kind and Tilt: there are none for $(uname -m)" >&2 && exit 1 ;;
esac

fetch() { curl --fail --location --silent --show-error --remote-name "$releases/$1"; }

fetch "kubernetes-sigs/kind/releases/download/v$KIND/kind-linux-$go_arch"
fetch "kubernetes-sigs/kind/releases/download/v$KIND/kind-linux-$go_arch.sha256sum"
sha256sum --check "kind-linux-$go_arch.sha256sum"
install -m 755 "kind-linux-$go_arch" /usr/local/bin/kind

fetch "tilt-dev/tilt/releases/download/v$TILT/tilt.$TILT.linux.$tilt_arch.tar.gz"
fetch "tilt-dev/tilt/releases/download/v$TILT/checksums.txt"
sha256sum --check --ignore-missing checksums.txt
tar -xzf "tilt.$TILT.linux.$tilt_arch.tar.gz" tilt
install -m 755 tilt /usr/local/bin/tilt
