package translate

import (
	"net/netip"
	"slices"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
)

// claims are the annotations by which load balancers are asked for an address. Who may set one could otherwise take the address of somebody else.
var claims = []string{
	"io.cilium/lb-ipam-ips",
	"kube-vip.io/loadbalancerIPs",
	"lbipam.cilium.io/ips",
	"loadbalancer.openstack.org/load-balancer-address",
	"metallb.io/loadBalancerIPs",
	"metallb.universe.tf/loadBalancerIPs",
	"networking.gke.io/load-balancer-ip-addresses",
	"purelb.io/addresses",
	"service.beta.kubernetes.io/azure-load-balancer-ipv4",
	"service.beta.kubernetes.io/azure-load-balancer-ipv6",
}

// addressAllowed lets a Gateway ask for addresses from the ranges of its class only. The GatewayConfig of the class may ask for any. On one host there is no
// load balancer, and nobody to take an address from.
func (d draft) addressAllowed() condition.Finding {
	if d.view.Host() != nil || d.parameters.config == nil {
		return condition.Finding{}
	}
	if wished := wishedAddress(d.gateway); wished != "" && !d.parameters.allows(wished) {
		return condition.AddressNotAllowed("spec.addresses[0].value", wished)
	}
	for _, claim := range claims {
		value := d.owner.Annotations[claim]
		if value == d.parameters.common[claim] {
			continue
		}
		for _, part := range strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' }) {
			if !d.parameters.allows(part) {
				return condition.AddressNotAllowed("annotation "+claim, part)
			}
		}
	}
	return condition.Finding{}
}

// gatewayRules judge what cannot be blamed on a single listener.
var gatewayRules = rules[draft]{draft.nameFits, draft.addressSupported, draft.addressUsable, draft.addressAllowed, draft.annotationsFit, draft.servesSomething, draft.workloadIsFree}

// nameFits leaves room for the suffix of a second Service.
func (d draft) nameFits() condition.Finding {
	if len(validation.IsDNS1123Label(d.gateway.Name+"-tcp")) > 0 {
		return condition.NameInvalid(d.gateway.Name)
	}
	return condition.Finding{}
}

func (d draft) addressSupported() condition.Finding {
	switch kind, _ := wished(d.gateway); kind {
	case "", gwapiv1.IPAddressType, gwapiv1.HostnameAddressType:
		return condition.Finding{}
	default:
		return condition.AddressKind(string(kind))
	}
}

func (d draft) addressUsable() condition.Finding {
	kind, value := wished(d.gateway)
	if kind != gwapiv1.IPAddressType || value == "" {
		return condition.Finding{}
	}
	switch address, err := netip.ParseAddr(value); {
	case err != nil:
		return condition.AddressValue(value)
	case d.view.Host() == nil && special(address):
		return condition.AddressSpecial(value)
	}
	return condition.Finding{}
}

// annotationsFit keeps objects from being refused because of what is copied onto them.
func (d draft) annotationsFit() condition.Finding {
	size := 0
	for key, value := range d.owner.Annotations {
		size += len(key) + len(value)
	}
	if size > maxAnnotations {
		return condition.AnnotationsTooLarge(size, maxAnnotations)
	}
	return condition.Finding{}
}

// maxAnnotations leaves room for those of the operator and of others.
const maxAnnotations = apivalidation.TotalAnnotationSizeLimitB - 16<<10

// servesSomething keeps an edit that leaves no listener from deleting the Service. A certificate that was taken back is no such mistake: it
// must go out of use, though it were the only one.
func (d draft) servesSomething() condition.Finding {
	if slices.ContainsFunc(d.listeners, func(l *listener) bool { return l.served() || l.revoked }) {
		return condition.Finding{}
	}
	return condition.NoValidListener()
}

// workloadIsFree matters where a Dataplane fixes the name of its workload: two Gateways would tear at one Deployment. It stays with the
// one that was there first.
func (d draft) workloadIsFree() condition.Finding {
	if d.parameters.dataplane == nil || d.parameters.dataplane.Spec.WorkloadName == "" || d.wishes.unmanaged {
		return condition.Finding{}
	}
	for _, key := range d.view.GatewaysIn(d.gateway.Namespace) {
		other := d.view.Gateway(key)
		if other == d.gateway || older(d.gateway, other) {
			continue
		}
		if class := classOf(d.view, other, d.opt); class != nil {
			p, unfit := parametersOf(d.view, other, class, d.opt)
			if unfit.OK() && manifest.WorkloadName(p.dataplane, key.Name) == d.parameters.dataplane.Spec.WorkloadName {
				return condition.WorkloadTaken(d.parameters.dataplane.Name, d.parameters.dataplane.Spec.WorkloadName, key.String())
			}
		}
	}
	return condition.Finding{}
}

// older tells which of two Gateways of a namespace was there first; the name decides where the clock does not.
func older(a, b *gwapiv1.Gateway) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}
