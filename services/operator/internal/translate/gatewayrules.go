package translate

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// gatewayRules lists the problems that prevent any change of a Gateway's published config and objects, see Held. The
// status shows the first one. If there is no problem, lostListener and publishable can still prevent the change, see
// assemble.
var gatewayRules = []gatewayRule{
	{check: draft.isRead},
	{check: draft.parametersResolve},
	{check: draft.authIsComplete, configOnly: true},
	{check: draft.portAnnotationsParse},
	{check: draft.workloadBuilds},
	{check: draft.nameFits},
	{check: draft.addressTypeSupported},
	{check: draft.addressUsable},
	{check: draft.addressAllowed},
	{check: draft.annotationsFit},
	{check: draft.metadataIsShort},
	{check: draft.hasValidListener},
	{check: draft.servesExposedListeners, configOnly: true},
	{check: draft.workloadNameFree},
}

type gatewayRule struct {
	check rule[draft]
	// configOnly means that the problem affects the config but not the other objects. Missing Services and a missing
	// workload may then still be created, see Result.Skeleton.
	configOnly bool
}

// firstProblem returns the first problem of the Gateway according to gatewayRules. skeleton is true if no problem
// prevents creating the objects of Result.Skeleton.
func (d draft) firstProblem() (refused condition.Finding, skeleton bool) {
	for _, r := range gatewayRules {
		found := r.check(d)
		refused = first(refused, found)
		if !found.OK() && !r.configOnly {
			return refused, false
		}
	}
	return refused, true
}

// isRead rejects a Gateway if the operator has not read its current version.
func (d draft) isRead() condition.Finding { return unreadFinding(d.gateway) }

// unreadFinding returns a finding if the operator has not read the current version of an object.
func unreadFinding(o resource.Object) condition.Finding {
	if reason := resource.Unread(o); reason != "" {
		return condition.NotRead(reason)
	}
	return condition.Finding{}
}

func (d draft) parametersResolve() condition.Finding { return d.findings.parameters }

func (d draft) authIsComplete() condition.Finding { return d.findings.auth }

func (d draft) portAnnotationsParse() condition.Finding { return d.findings.annotations }

func (d draft) workloadBuilds() condition.Finding { return d.findings.workload }

// nameFits checks that the name of the Gateway is the name of a Service, also with the suffix of a second Service,
// because the Services are named after the Gateway. The API server requires a label that starts with a letter (RFC
// 1035), unless its feature gate RelaxedServiceNameValidation, an alpha feature since Kubernetes 1.34, is enabled. The
// file provider creates no Services.
func (d draft) nameFits() condition.Finding {
	check := validation.IsDNS1035Label
	if d.view.Host() != nil {
		check = validation.IsDNS1123Label
	}
	if len(check(d.gateway.Name+"-tcp")) > 0 {
		return condition.NameInvalid(d.gateway.Name)
	}
	return condition.Finding{}
}

func (d draft) addressTypeSupported() condition.Finding {
	for _, a := range requestedAddresses(d.gateway) {
		if a.kind != gwapiv1.IPAddressType && a.kind != gwapiv1.HostnameAddressType {
			return condition.AddressKind(a.field("type"), string(a.kind))
		}
	}
	return condition.Finding{}
}

func (d draft) addressUsable() condition.Finding {
	for _, requested := range requestedAddresses(d.gateway) {
		value := requested.field("value")
		switch a, err := netip.ParseAddr(requested.value); {
		case requested.kind == gwapiv1.HostnameAddressType && err == nil:
			return condition.AddressIsNoHostname(value, requested.value)
		case requested.kind == gwapiv1.HostnameAddressType:
		case err != nil:
			return condition.AddressValue(value, requested.value)
		case d.view.Host() == nil && invalidInService(a):
			return condition.AddressSpecial(value, requested.value)
		}
	}
	return condition.Finding{}
}

// invalidInService reports whether a Service cannot have an address: the API server rejects it in spec.externalIPs, or
// it is a multicast address.
func invalidInService(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast()
}

// addressAnnotation is the name of an annotation, and the provider that reads it.
type addressAnnotation struct{ name, provider string }

// addressAnnotations are the annotations by which a Service requests an address from a load balancer, with the provider
// that reads them. The value of some annotations is the name of a reserved address or of an existing load balancer, so
// the requested address is not known here. spec.allowedAddresses permits no such name. Only the GatewayConfig of the
// class can set these annotations.
var addressAnnotations = []addressAnnotation{
	{"io.cilium/lb-ipam-ips", "Cilium"},
	{"lbipam.cilium.io/ips", "Cilium"},
	{"kube-vip.io/loadbalancerIPs", "kube-vip"},
	{"loadbalancer.openstack.org/load-balancer-address", "OpenStack"},
	{"loadbalancer.openstack.org/load-balancer-id", "OpenStack"},
	{"loadbalancer.openstack.org/port-id", "OpenStack"},
	{"metallb.io/loadBalancerIPs", "MetalLB"},
	{"metallb.universe.tf/loadBalancerIPs", "MetalLB"},
	{"networking.gke.io/load-balancer-ip-addresses", "GKE"},
	{"purelb.io/addresses", "PureLB"},
	{"service.beta.kubernetes.io/azure-load-balancer-ipv4", "Azure"},
	{"service.beta.kubernetes.io/azure-load-balancer-ipv6", "Azure"},
	{"service.beta.kubernetes.io/azure-pip-name", "Azure"},
	{"service.beta.kubernetes.io/azure-pip-name-ipv6", "Azure"},
	{"service.beta.kubernetes.io/azure-pip-prefix-id", "Azure"},
	{"service.beta.kubernetes.io/azure-pip-prefix-id-ipv6", "Azure"},
	{"service.beta.kubernetes.io/aws-load-balancer-eip-allocations", "AWS"},
	{"service.beta.kubernetes.io/aws-load-balancer-private-ipv4-addresses", "AWS"},
	{"service.beta.kubernetes.io/aws-load-balancer-ipv6-addresses", "AWS"},
	{"load-balancer.hetzner.cloud/id", "Hetzner"},
	{"load-balancer.hetzner.cloud/name", "Hetzner"},
	{"load-balancer.hetzner.cloud/private-ipv4", "Hetzner"},
}

// addressAllowed checks the requested addresses against spec.allowedAddresses of the class's GatewayConfig. Without
// this check, a tenant could take the address of another tenant. An annotation that comes from the class's
// GatewayConfig may request any address. The rule does not apply to the file provider, which has no load balancer.
func (d draft) addressAllowed() condition.Finding {
	if d.view.Host() != nil || d.parameters.config == nil {
		return condition.Finding{}
	}
	for _, a := range requestedAddresses(d.gateway) {
		if a.kind == gwapiv1.IPAddressType && !d.parameters.allowsAddress(a.value) {
			return condition.AddressNotAllowed(a.field("value"), a.value, resource.KeyOf(d.parameters.config).String())
		}
	}
	for _, a := range addressAnnotations {
		name := a.name
		text := d.owner.Annotations[name]
		if text == d.parameters.classAnnotations[name] {
			continue
		}
		for _, part := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
			if !d.parameters.allowsAddress(part) {
				return condition.AddressNotAllowed("annotation "+name, part, resource.KeyOf(d.parameters.config).String())
			}
		}
	}
	return condition.Finding{}
}

// annotationsFit checks the total size of the annotations that are copied to objects, because the API server rejects an
// object above its limit.
func (d draft) annotationsFit() condition.Finding {
	size := 0
	for name, text := range d.owner.Annotations {
		size += len(name) + len(text)
	}
	if size > maxAnnotations {
		return condition.AnnotationsTooLarge(size, maxAnnotations)
	}
	return condition.Finding{}
}

// metadataIsShort checks the number of labels and annotations that are copied to objects. The API server records the
// manager of each one, and needs seconds of CPU time to apply an object with thousands of them.
func (d draft) metadataIsShort() condition.Finding {
	if number := len(d.owner.Labels) + len(d.owner.Annotations); number > maxMetadata {
		return condition.MetadataTooLong(number, maxMetadata)
	}
	return condition.Finding{}
}

// maxMetadata is the maximum number of labels and annotations that are copied to objects.
const maxMetadata = 1000

// maxAnnotations is the API server's limit for the total size of an object's annotations in bytes, less 16 KiB for the
// annotations that the operator and other controllers add.
const maxAnnotations = apivalidation.TotalAnnotationSizeLimitB - 16<<10

// hasValidListener rejects a Gateway without a valid listener, because the Gateway's Services would be deleted and lose
// their addresses. A listener with a revoked certificate also passes: the certificate must not stay in use, even if the
// Gateway has no other listener.
func (d draft) hasValidListener() condition.Finding {
	if slices.ContainsFunc(d.listeners, func(l *listener) bool { return l.served() || l.revoked }) {
		return condition.Finding{}
	}
	return condition.NoValidListener()
}

// servesExposedListeners checks a Gateway of the existing system before the operator publishes its first config: a
// listener that the Service of that system exposes must be served. Otherwise the dataplanes would lose a listener that
// they still serve. Such a Service lacks the label that the operator sets with the first config. A listener without a
// ReferenceGrant is no exception here: its certificate was not revoked, because the existing system needs no grant.
func (d draft) servesExposedListeners() condition.Finding {
	if d.opt.Published != nil || d.view.Host() != nil {
		return condition.Finding{}
	}
	for _, svc := range d.view.ServicesOf(resource.KeyOf(d.gateway)) {
		if _, ours := svc.Labels[gwapiv1.GatewayNameLabelKey]; ours {
			continue
		}
		lost := d.listenerNames(func(l *listener) bool {
			exposed := func(p corev1.ServicePort) bool { return p.Name == l.name() }
			return !l.served() && slices.ContainsFunc(svc.Spec.Ports, exposed)
		})
		if len(lost) > 0 {
			return condition.ListenersLost(lost, svc.Name)
		}
	}
	return condition.Finding{}
}

// workloadNameFree prevents two Gateways from writing the same Deployment, which can happen if a Dataplane of either
// Gateway sets spec.workloadName. An older Gateway keeps the name, unless it is unmanaged.
func (d draft) workloadNameFree() condition.Finding {
	template := d.parameters.dataplane
	if template == nil || d.annotations.unmanaged {
		return condition.Finding{}
	}
	name := manifest.WorkloadName(template, d.gateway.Name)
	// Without this check, each Gateway would depend on all Gateways of its namespace.
	if len(d.view.DataplanesOfWorkload(name)) == 0 {
		return condition.Finding{}
	}
	for _, key := range d.view.GatewaysIn(d.gateway.Namespace) {
		other := d.view.Gateway(key)
		if other == d.gateway || older(d.gateway, other) {
			continue
		}
		if class, _ := classOf(d.view, other, d.opt); class != nil {
			p, found := parametersOf(d.view, other, class, d.opt)
			if a, _ := annotationsOf(other, p.config); found.OK() && !a.unmanaged &&
				manifest.WorkloadName(p.dataplane, key.Name) == name {
				return condition.WorkloadTaken(template.Name, template.Spec.WorkloadName, name, key.String())
			}
		}
	}
	return condition.Finding{}
}

// older reports whether a was created before b. If the creation times are equal, the first one by namespace and name
// counts as older.
func older(a, b *gwapiv1.Gateway) bool { return compareAge(a, b) < 0 }

func compareAge(a, b *gwapiv1.Gateway) int {
	created := a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	return cmp.Or(created, cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
