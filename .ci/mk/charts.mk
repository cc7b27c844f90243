# Charts: copies of files of other folders, and the schemas and tables that are generated from their values.

CHARTS      := charts/stunner charts/stunner-crds
# Charts in the chart stunner, because Helm installs the folder crds of a chart in a chart only if a value says so.
KINDS       := charts/stunner/charts/crds
RIGHTS      := $(addprefix kustomize/,base/rbac.yaml base/roles.yaml base/inspection.yaml base/policy.yaml components/namespaced/cluster.yaml components/namespaced/events.yaml components/namespaced/watched/role.yaml)
GATEWAY_API  = $(shell go -C services/operator list -m -f '{{.Dir}}' sigs.k8s.io/gateway-api)/config/crd/standard
# Existing UDPRoutes have apiVersion v1alpha2, which the standard channel knows but does not serve. Objects are stored as v1, as in the channel.
UDPROUTES      := gateway.networking.k8s.io_udproutes.yaml
SERVE_V1ALPHA2 := sed -i '/^    name: v1alpha2$$/,/^    storage: /s/^    served: false$$/    served: true/'

.PHONY: charts

charts:
	rm -rf $(addsuffix /files,$(CHARTS))
	install -m 644 -D -t charts/stunner-crds/files/stunner $(CRDS)/stunner.l7mp.io_*.yaml
	install -m 644 -D -t charts/stunner-crds/files/gateway-api $(GATEWAY_API)/*.yaml
	$(SERVE_V1ALPHA2) charts/stunner-crds/files/gateway-api/$(UDPROUTES)
	cd charts/stunner-crds/files/gateway-api && { echo 'resources:'; printf -- '  - %s\n' *.yaml; } > Kustomization
	rm -rf $(KINDS)/crds $(KINDS)/charts/gatewayAPI/crds
	install -m 644 -D -t $(KINDS)/crds $(CRDS)/stunner.l7mp.io_*.yaml
	sed -i "0,/^metadata:$$/s//metadata:\n  labels:\n    app.kubernetes.io\/version: $$(sed -n 's/^appVersion: //p' charts/stunner/Chart.yaml)/" $(KINDS)/crds/*.yaml
	install -m 644 -D -t $(KINDS)/charts/gatewayAPI/crds charts/stunner-crds/files/gateway-api/gateway.networking.k8s.io_*s.yaml
	rm $(KINDS)/charts/gatewayAPI/crds/gateway.networking.k8s.io_vap_safeupgrades.yaml
	install -m 644 -D -t charts/stunner/files/rbac $(RIGHTS)
	install -m 644 -D -t charts/stunner/files/monitoring dashboards/*.json dashboards/alerts.yaml
	GOWORK=off go -C .ci/tools run ./values $(addprefix ../../,$(CHARTS))
