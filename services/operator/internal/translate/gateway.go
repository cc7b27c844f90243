package translate

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// Gateway translates one Gateway. Each step works with what the steps before it found, as far as they came: a Gateway that is
// refused still gets a full status.
func Gateway(v *resource.View, key types.NamespacedName, opt Options) Result {
	gw := v.Gateway(key)
	class := classOf(v, gw, opt)
	if class == nil {
		return Result{Gateway: key}
	}
	d := draft{view: v, opt: opt, gateway: gw, before: v.GatewayStatus(key)}
	var unfit, unauthentic, unreadable, unmakeable condition.Finding
	d.parameters, unfit = parametersOf(v, gw, class, opt)
	d.owner = manifest.OwnerOf(gw, d.parameters.annotations())
	d.auth, unauthentic = d.authOf()
	d.wishes, unreadable = wishesOf(gw, d.parameters.config)
	d.listeners = listenersOf(v, gw, d.wishes, d.parameters)
	d.hold()
	d.budget = d.parameters.budget()
	d.admission = d.admit()
	d.admission.attach(d.listeners)
	d.clusters, d.named = clustersOf(d.admission.served, d.admission.kept)
	d.exposures = d.exposuresOf()
	d.notes = append(d.wishes.notes, d.layOver()...)
	d.workload, unmakeable = d.workloadOf()
	d.notes = append(d.notes, d.scaled()...)
	d.notes = append(d.notes, d.crowded()...)
	d.notes = append(d.notes, d.unaddressed()...)
	findAddresses(v, gw, d.listeners)
	unsound := first(unreadable, unmakeable, gatewayRules.judge(d))
	r := d.assemble(first(unfit, unauthentic.As(condition.ReasonPending), unsound))
	if first(unfit, unsound).OK() {
		r.Skeleton = d.skeleton()
	}
	return r
}

// authOf returns who may use the Gateway.
func (d draft) authOf() (config.Auth, condition.Finding) {
	auth, unfit := authOf(d.view, d.parameters.config, d.opt)
	if !unfit.OK() {
		return auth.Auth, unfit
	}
	return auth.of(resource.KeyOf(d.gateway), d.parameters.config)
}

// classOf returns the class of a Gateway if both exist and the class is ours, else nil.
func classOf(v *resource.View, gw *gwapiv1.Gateway, opt Options) *gwapiv1.GatewayClass {
	if gw == nil {
		return nil
	}
	class := v.Class(string(gw.Spec.GatewayClassName))
	if class == nil || string(class.Spec.ControllerName) != opt.ControllerName {
		return nil
	}
	return class
}

// draft is what the steps of a translation have found out about a Gateway.
type draft struct {
	view    *resource.View
	opt     Options
	gateway *gwapiv1.Gateway
	// before is the status that the Gateway has.
	before     gwapiv1.GatewayStatus
	parameters parameters
	// owner is who all objects belong to.
	owner     manifest.Owner
	auth      config.Auth
	wishes    wishes
	listeners []*listener
	budget    stunnerv1.Budget
	admission *admission
	clusters  []config.Cluster
	named     []config.Cluster
	exposures []manifest.Exposure
	workload  resource.Object
	// notes are what people might not expect.
	notes []string
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

// special tells whether an API server takes an address for none that a Service could have.
func special(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast()
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

// assemble puts config, objects and status together, or, when the Gateway is refused, the status alone.
func (d draft) assemble(refused condition.Finding) Result {
	r := Result{Gateway: resource.KeyOf(d.gateway), Ours: true, Notes: d.notes, OverBudget: d.admission.holds(), Demand: d.admission.demand}
	if refused.OK() {
		c := d.config()
		if refused = publishable(c); refused.OK() {
			r.Config, r.Named, r.HeldListeners, r.Objects = &c, d.named, d.waiting(), d.objects(c)
			if d.parameters.dataplane != nil {
				r.RelayPorts = manifest.RelayPorts(d.parameters.dataplane)
			}
			r.KeepReplicas = d.keepsReplicas()
		}
	}
	r.Hold = !refused.OK()
	r.Status = d.status(refused)
	return r
}

// publishable holds a config against what a dataplane checks, so that none is ever sent that would be turned down there.
func publishable(c config.Config) condition.Finding {
	if err := acceptable(c); err != nil {
		return condition.ConfigInvalid(errors.New(strings.ReplaceAll(err.Error(), "\n", "; ")))
	}
	return condition.Finding{}
}

// acceptable tells what keeps a dataplane from reading a config. One that is too large harms others as well: who follows all configs over one
// stream loses it there, and comes back to the same place.
func acceptable(c config.Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if heft(c) < config.MaxDocument/2 {
		return nil // as almost all are: to write one down costs a third of the translation
	}
	if size := len(c.Canonical()); size > config.MaxDocument {
		return fmt.Errorf("it has %d bytes, the limit is %d: let its routes lead to fewer endpoints, or to prefixes", size, config.MaxDocument)
	}
	return nil
}

// heft is about how many bytes those parts of a config have of which there may be many. All others are some kilobytes.
func heft(c config.Config) (bytes int) {
	for _, l := range c.Listeners {
		bytes += len(l.Cert) + len(l.Key)
		for _, more := range l.Certificates {
			bytes += len(more.Cert) + len(more.Key)
		}
		for _, route := range l.Routes {
			bytes += len(route)
		}
	}
	for _, cluster := range c.Clusters {
		bytes += len(cluster.Name)
		for _, list := range [][]string{cluster.Endpoints, cluster.Except} {
			for _, text := range list {
				bytes += len(text)
			}
		}
	}
	return bytes
}
