package diagnose

import (
	"cmp"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// specs are the specs of the product's kinds in this release.
var specs = map[string]any{
	"gatewayconfigs." + ownAPI: stunnerv1.GatewayConfigSpec{}, "dataplanes." + ownAPI: stunnerv1.DataplaneSpec{},
	"staticservices." + ownAPI: stunnerv1.StaticServiceSpec{}, "udproutes." + ownAPI: stunnerv1.UDPRouteSpec{},
}

// oldestGatewayAPI is the oldest minor version of the CRDs of the Gateway API with all fields that the operator reads.
const oldestGatewayAPI = 1

// kindsRules check the CRDs.
var kindsRules = []Rule{
	{"kinds are served", func(s *Snapshot, _ *Gateway) (found []Finding) {
		if len(s.Served) == 0 {
			return nil
		}
		for _, k := range needed {
			if slices.Contains(s.Served, k.Group+"/"+k.Version+"/"+k.Resource) {
				continue
			}
			f := Finding{
				Severity: Error, Object: objectName("CustomResourceDefinition", "", k.Resource+"."+k.Group), Field: "spec.versions",
				Problem: "the API server does not serve version " + k.Version + " of " + k.Kind,
				Remedy:  "install the CRDs of the release of the operator: kubectl apply --server-side -k kustomize/base/crds",
				Command: "kubectl get crd " + k.Resource + "." + k.Group,
			}
			if k.Group == gatewayAPI {
				f.Remedy = "install the CRDs of the Gateway API, experimental channel, as docs/install.md describes"
			}
			found = append(found, f)
		}
		return found
	}},
	{"CRDs are of this release", func(s *Snapshot, _ *Gateway) (found []Finding) {
		for _, crd := range list[unstructured.Unstructured](s, "CustomResourceDefinition") {
			spec, ours := specs[crd.GetName()]
			if !ours {
				continue
			}
			if missing := missingFields(crd, spec); len(missing) > 0 {
				found = append(found, Finding{
					Severity: Warning, Object: ref("CustomResourceDefinition", crd), Field: "spec.versions[v1].schema",
					Problem: "is of an older release: the API server removes the fields " + few(missing) + owners(crd),
					Remedy:  "install the CRDs of this release: Helm does not update CRDs; kubectl apply --server-side -k kustomize/base/crds",
					Command: describe("crd", crd),
				})
			}
		}
		return found
	}},
	{"CRDs of the Gateway API are recent", func(s *Snapshot, _ *Gateway) (found []Finding) {
		for _, crd := range list[unstructured.Unstructured](s, "CustomResourceDefinition") {
			version := crd.GetAnnotations()[bundleAnnotation]
			major, minor, ok := minorVersion(version)
			if !strings.HasSuffix(crd.GetName(), "."+gatewayAPI) || !ok || major > 1 ||
				major == 1 && minor >= oldestGatewayAPI {
				continue
			}
			found = append(found, Finding{
				Severity: Warning, Object: ref("CustomResourceDefinition", crd), Field: "metadata.annotations[" + bundleAnnotation + "]",
				Problem: version + " is older than the operator supports" + owners(crd),
				Remedy:  "let the owner install v1.1 or later, or disable the CRDs of the owner",
				Command: describe("crd", crd),
			})
		}
		return found
	}},
	{"CRDs have one owner", func(s *Snapshot, _ *Gateway) (found []Finding) {
		for _, crd := range list[unstructured.Unstructured](s, "CustomResourceDefinition") {
			if managers := schemaManagers(crd); len(managers) > 1 {
				found = append(found, Finding{
					Severity: Warning, Object: ref("CustomResourceDefinition", crd), Field: "metadata.managedFields",
					Problem: "several tools write its versions, and each reverts the others: " + few(managers),
					Remedy:  "let one of them install the CRDs: disable them in the charts of the others",
					Command: "kubectl get crd " + crd.GetName() + " --show-managed-fields -o yaml",
				})
			}
		}
		return found
	}},
}

const bundleAnnotation = "gateway.networking.k8s.io/bundle-version"

var versionPattern = regexp.MustCompile(`^v?(\d+)\.(\d+)`)

// minorVersion parses the start of a version such as "v1.17.3".
func minorVersion(version string) (major, minor int, ok bool) {
	m := versionPattern.FindStringSubmatch(version)
	if m == nil {
		return 0, 0, false
	}
	major, _ = strconv.Atoi(m[1])
	minor, _ = strconv.Atoi(m[2])
	return major, minor, true
}

// missingFields returns the fields of a spec that the schema of a CRD does not have.
func missingFields(crd *unstructured.Unstructured, spec any) (missing []string) {
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, v := range versions {
		v, _ := v.(map[string]any)
		properties, found, _ := unstructured.NestedMap(
			v,
			"schema",
			"openAPIV3Schema",
			"properties",
			"spec",
			"properties",
		)
		if v["name"] != "v1" || !found {
			continue
		}
		for _, field := range jsonFields(reflect.TypeOf(spec)) {
			if _, has := properties[field]; !has {
				missing = append(missing, "spec."+field)
			}
		}
	}
	return missing
}

// jsonFields returns the JSON names of the fields of a struct and of its inlined structs.
func jsonFields(t reflect.Type) (names []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case strings.Contains(options, "inline"):
			names = append(names, jsonFields(f.Type)...)
		case name != "" && name != "-":
			names = append(names, name)
		}
	}
	return names
}

// schemaManagers returns the field managers that own spec.versions of a CRD, without the API server.
func schemaManagers(crd *unstructured.Unstructured) (managers []string) {
	for _, m := range crd.GetManagedFields() {
		if m.FieldsV1 == nil || m.Subresource != "" || m.Manager == "kube-apiserver" {
			continue
		}
		if strings.Contains(m.FieldsV1.GetRawString(), `"f:versions"`) && !slices.Contains(managers, m.Manager) {
			managers = append(managers, m.Manager)
		}
	}
	return managers
}

// owners describes which tool installed a CRD, if that is known.
func owners(crd *unstructured.Unstructured) string {
	release := crd.GetAnnotations()["meta.helm.sh/release-name"]
	if release != "" {
		release = "Helm release " + release
	}
	owner := cmp.Or(release, crd.GetLabels()["app.kubernetes.io/managed-by"], few(schemaManagers(crd)))
	if owner == "" {
		return ""
	}
	return " (installed by " + owner + ")"
}

func kindsFact(s *Snapshot, _ *Gateway) string {
	if len(s.Served) == 0 && !s.readable("CustomResourceDefinition", "") {
		return notChecked + ": the CRDs are not readable"
	}
	var facts []string
	for _, crd := range list[unstructured.Unstructured](s, "CustomResourceDefinition") {
		if v := crd.GetAnnotations()[bundleAnnotation]; v != "" && !slices.Contains(facts, "Gateway API "+v) {
			facts = append(facts, "Gateway API "+v)
		}
	}
	if len(facts) == 0 {
		return "served"
	}
	return few(facts)
}

// admissionRules check the admission policies of the operator.
var admissionRules = []Rule{
	{"admission policies are bound", func(s *Snapshot, _ *Gateway) (found []Finding) {
		if !s.readable("ValidatingAdmissionPolicyBinding", "") {
			return nil
		}
		bound := map[string]bool{}
		for _, b := range list[admissionv1.ValidatingAdmissionPolicyBinding](s, "ValidatingAdmissionPolicyBinding") {
			if slices.Contains(b.Spec.ValidationActions, admissionv1.Deny) {
				bound[b.Spec.PolicyName] = true
			}
		}
		for _, p := range s.policies() {
			if !bound[p.Name] {
				found = append(found, Finding{
					Severity: Warning, Object: ref("ValidatingAdmissionPolicy", p), Field: "metadata.name",
					Problem: "no binding with action Deny names the policy: it does not limit the operator",
					Remedy:  "install the binding again with the chart or kustomize/base/policy.yaml",
					Command: "kubectl get validatingadmissionpolicybindings",
				})
			}
			if p.Status.TypeChecking != nil && len(p.Status.TypeChecking.ExpressionWarnings) > 0 {
				w := p.Status.TypeChecking.ExpressionWarnings[0]
				found = append(found, Finding{
					Severity: Warning, Object: ref("ValidatingAdmissionPolicy", p), Field: w.FieldRef, Problem: w.Warning,
					Remedy:  "install the policies of this release: the API server has another version of the kind",
					Command: describe("validatingadmissionpolicy", p),
				})
			}
		}
		return found
	}},
}

// policies returns the admission policies of the operator.
func (s *Snapshot) policies() (all []*admissionv1.ValidatingAdmissionPolicy) {
	for _, p := range list[admissionv1.ValidatingAdmissionPolicy](s, "ValidatingAdmissionPolicy") {
		if slices.ContainsFunc(
			p.Spec.MatchConditions,
			func(c admissionv1.MatchCondition) bool { return c.Name == "by-the-operator" },
		) {
			all = append(all, p)
		}
	}
	return all
}

func admissionFact(s *Snapshot, _ *Gateway) string {
	if !s.readable("ValidatingAdmissionPolicy", "") {
		return notChecked + ": the policies are not readable"
	}
	return fmt.Sprintf("%d policies", len(s.policies()))
}

// proxyRules check whether UDP calls survive the end of a pod.
var proxyRules = []Rule{
	{"Services keep the calls of draining pods", func(s *Snapshot, _ *Gateway) []Finding {
		p := s.proxy()
		f := Finding{Severity: Warning, Object: p.object, Field: p.field, Command: p.command}
		switch {
		case p.mode == "ipvs":
			f.Problem = "kube-proxy runs in mode ipvs: UDP calls of a draining pod are interrupted"
			f.Remedy = "set mode to nftables or iptables; or annotate the Gateway with stunner.l7mp.io/external-traffic-policy: local, so that " +
				"its pods can forward to each other; or use TURN-TCP"
		case p.cilium && p.major == 1 && p.minor <= 17:
			f.Problem = fmt.Sprintf(
				"Cilium %d.%d replaces kube-proxy: UDP calls of a draining pod are interrupted",
				p.major,
				p.minor,
			)
			f.Remedy = "update Cilium to 1.18 or 1.19, or use TURN-TCP"
		default:
			return nil
		}
		return []Finding{f}
	}},
}

// proxyState is the implementation of Services on the nodes.
type proxyState struct {
	object, field, command string
	// mode is the mode of kube-proxy, or empty if unknown.
	mode         string
	cilium       bool
	major, minor int
}

var proxyMode = regexp.MustCompile(`(?m)^mode:[ \t]*"?([a-z]*)"?[ \t]*$`)

func (s *Snapshot) proxy() (p proxyState) {
	if c := find[corev1.ConfigMap](s, "ConfigMap", "kube-system", "cilium-config"); c != nil {
		replaces := c.Data["kube-proxy-replacement"]
		p.cilium = replaces == "true" || replaces == "strict"
		p.object, p.field, p.command = ref(
			"ConfigMap",
			c,
		), "data[kube-proxy-replacement]", "kubectl get daemonset -n kube-system cilium -o wide"
		if d := find[appsv1.DaemonSet](s, "DaemonSet", "kube-system", "cilium"); d != nil {
			for _, container := range d.Spec.Template.Spec.Containers {
				image, _, _ := strings.Cut(container.Image, "@")
				if major, minor, ok := minorVersion(image[strings.LastIndexByte(image, ':')+1:]); ok &&
					container.Name == "cilium-agent" {
					p.major, p.minor = major, minor
				}
			}
		}
		if p.cilium {
			return p
		}
	}
	if c := find[corev1.ConfigMap](s, "ConfigMap", "kube-system", "kube-proxy"); c != nil {
		p.object, p.field, p.command = ref(
			"ConfigMap",
			c,
		), "data[config.conf].mode", "kubectl get configmap -n kube-system kube-proxy -o yaml"
		p.mode = "iptables" // the default on Linux
		if m := proxyMode.FindStringSubmatch(c.Data["config.conf"]); m != nil && m[1] != "" {
			p.mode = m[1]
		}
	}
	return p
}

func proxyFact(s *Snapshot, _ *Gateway) string {
	p := s.proxy()
	switch {
	case p.cilium:
		return fmt.Sprintf("Cilium %d.%d", p.major, p.minor)
	case p.mode != "":
		return "kube-proxy, mode " + p.mode
	}
	return notChecked + ": kube-system has neither ConfigMap kube-proxy nor cilium-config, or they are not readable"
}
