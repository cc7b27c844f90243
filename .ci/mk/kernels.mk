# Other kernels, in a virtual machine. It emulates its processors, so that it needs no KVM, and its times mean little.

KERNEL        = $(shell apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-/ { print $$2; exit }')
KERNEL_FOLDER = $(CURDIR)/bin/kernels/$(KERNEL)
HUGE         ?= 100000

# Modules that the tests use. Nothing in the machine loads modules by itself.
KERNEL_MODULES := veth,sch_ingress,cls_bpf,bonding,8021q,bridge,macvlan,tun,virtio_net

BOOT = $(CURDIR)/bin/boot -kernel $(KERNEL_FOLDER) -modules $(KERNEL_MODULES)

.PHONY: kernels

kernels: ## Run the tests of in-kernel forwarding, and 100,000 allocations on one process (HUGE), on Linux 6.1 in a virtual machine; needs Debian 12
	@.ci/install kernels
	@[[ -n "$(KERNEL)" ]] || { echo "apt-cache knows no package linux-image-amd64: run this on Debian 12 for amd64" >&2; exit 1; }
	@[[ -d $(KERNEL_FOLDER) ]] || { mkdir -p $(KERNEL_FOLDER).new; cd $(KERNEL_FOLDER).new; apt-get download -qq -o APT::Sandbox::User=root $(KERNEL); dpkg-deb -x *.deb .; rm *.deb; mv $(KERNEL_FOLDER).new $(KERNEL_FOLDER); }
	@CGO_ENABLED=0 GOWORK=off go -C .ci/tools build -o $(CURDIR)/bin/boot ./boot
	@go build -o bin/kernels ./services/stunnerd ./e2e/media/bare
	@go test -c -o bin/kernels ./services/stunnerd/internal/offload ./e2e/media
	cd services/stunnerd/internal/offload && $(BOOT) $(CURDIR)/bin/kernels/offload.test -test.v -test.timeout=60m -every-device -every-size -cards
	cd e2e/media && $(BOOT) -memory 8G $(CURDIR)/bin/kernels/media.test -test.v -test.timeout=60m -test.run='^TestMedia$$' -rows=many -huge=$(HUGE) -servers='^stunnerd$$' -programs=$(CURDIR)/bin/kernels
