package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// classRules check the GatewayClass.
var classRules = []Rule{
	{"class exists", func(s *Snapshot, g *Gateway) []Finding {
		if g.Class != nil || !s.readable("GatewayClass", "") || s.Folder {
			return nil
		}
		remedy := "create the GatewayClass"
		if ours := s.classNames(); len(ours) > 0 {
			remedy += ", or use " + few(ours)
		}
		return []Finding{{
			Severity: Error, Object: ref("Gateway", g), Field: "spec.gatewayClassName",
			Problem: fmt.Sprintf("GatewayClass %q does not exist", g.Spec.GatewayClassName),
			Remedy:  remedy, Command: "kubectl get gatewayclasses",
		}}
	}},
	{"class has the controller", func(s *Snapshot, g *Gateway) []Finding {
		if g.Class == nil || s.Folder || !s.foreign(g.Class) {
			return nil
		}
		remedy := "name a GatewayClass of this product"
		if ours := s.classNames(); len(ours) > 0 {
			remedy = "use " + few(ours)
		}
		remedy += "; if it is that of an operator of STUNner, use --controller-name " + string(g.Class.Spec.ControllerName)
		return []Finding{{
			Severity: Error, Object: ref("Gateway", g), Field: "spec.gatewayClassName",
			Problem: fmt.Sprintf("GatewayClass %s belongs to controller %s", g.Class.Name, g.Class.Spec.ControllerName),
			Remedy:  remedy, Command: "kubectl get gatewayclasses",
		}}
	}},
	{"class is watched", func(s *Snapshot, g *Gateway) []Finding {
		if g.Class == nil {
			return nil
		}
		c := conditionOf(g.Class.Status.Conditions, "Accepted")
		if c != nil && c.LastTransitionTime.Unix() != 0 {
			return nil
		}
		return []Finding{{
			Severity: Error, Object: ref("GatewayClass", g.Class), Field: "spec.controllerName",
			Problem: fmt.Sprintf("no operator has processed the class: controller %s", g.Class.Spec.ControllerName),
			Remedy:  "start the operator, or write the --controller-name of the running operator",
			Command: s.operatorPods(),
		}}
	}},
	{"class is accepted", func(s *Snapshot, g *Gateway) (found []Finding) {
		if g.Class == nil {
			return nil
		}
		for _, c := range wrong(g.Class.Status.Conditions) {
			found = append(found, s.fromCondition(ref("GatewayClass", g.Class), "", c, describe("gatewayclass", g.Class))...)
		}
		return found
	}},
}

// classNames returns the names of the accepted classes of this product.
func (s *Snapshot) classNames() (names []string) {
	for _, class := range list[gwapiv1.GatewayClass](s, "GatewayClass") {
		if !s.foreign(class) {
			names = append(names, class.Name)
		}
	}
	return slices.Sorted(slices.Values(names))
}

// operatorPods is the command that shows the pods of the operator.
func (s *Snapshot) operatorPods() string {
	if s.Folder {
		return ""
	}
	return "kubectl get pods -n " + s.operatorNamespace() + " -l app=" + s.operatorApp()
}

// operatorApp returns the value of the label app of the operator, which is the name of its Deployment, too, unless a
// value of the chart sets another one.
func (s *Snapshot) operatorApp() string { return cmp.Or(s.OperatorApp, "stunner-operator") }

func (s *Snapshot) operatorNamespace() string { return cmp.Or(s.OperatorNamespace, "stunner-system") }

func classFact(s *Snapshot, g *Gateway) string {
	if g.Class == nil {
		if !s.readable("GatewayClass", "") || s.Folder {
			return notChecked
		}
		return string(g.Spec.GatewayClassName) + " does not exist"
	}
	if s.Folder {
		return g.Class.Name
	}
	return fmt.Sprintf("%s, controller %s", g.Class.Name, g.Class.Spec.ControllerName)
}

// parametersRules check the GatewayConfig and the Dataplane.
var parametersRules = []Rule{
	{"GatewayConfig exists", func(s *Snapshot, g *Gateway) []Finding {
		namespace, name := g.configKey()
		if name == "" || g.Config != nil || !s.readable("GatewayConfig", namespace) {
			return nil
		}
		object, field := ref("Gateway", g), "spec.infrastructure.parametersRef"
		if infra := g.Spec.Infrastructure; infra == nil || infra.ParametersRef == nil {
			object, field = ref("GatewayClass", g.Class), "spec.parametersRef"
		}
		return []Finding{{
			Severity: Error, Object: object, Field: field,
			Problem: fmt.Sprintf("GatewayConfig %s/%s does not exist", namespace, name),
			Remedy:  "create it, or name another one; until then what was published stays in force",
			Command: "kubectl get gatewayconfigs -A",
		}}
	}},
	{"GatewayConfig is accepted", func(s *Snapshot, g *Gateway) (found []Finding) {
		if g.Config == nil {
			return nil
		}
		for _, c := range wrong(g.Config.Status.Conditions) {
			found = append(found, s.fromCondition(ref("GatewayConfig", g.Config), "", c, describe("gatewayconfig", g.Config))...)
		}
		return found
	}},
	{"Dataplane is accepted", func(s *Snapshot, g *Gateway) (found []Finding) {
		if g.Dataplane == nil {
			return nil
		}
		for _, c := range wrong(g.Dataplane.Status.Conditions) {
			found = append(found, s.fromCondition(ref("Dataplane", g.Dataplane), "", c, describe("dataplane", g.Dataplane))...)
		}
		return found
	}},
	{"clients have credentials", func(_ *Snapshot, g *Gateway) []Finding {
		if g.Config == nil || g.Config.Spec.STUNMode {
			return nil
		}
		if strings.ToLower(string(g.Config.Spec.AuthType)) != string(authNone) {
			return nil
		}
		return []Finding{{
			Severity: Error, Object: ref("GatewayConfig", g.Config), Field: "spec.authType",
			Problem: "none: clients get no relay, only STUN is served",
			Remedy:  "set authType: ephemeral and authRef, or stunMode: true if only STUN is wanted",
			Command: "kubectl get gatewayconfig -n " + g.Config.Namespace + " " + g.Config.Name + " -o yaml",
		}}
	}},
}

const authNone = stunnerv1.AuthType("none")

func parametersFact(s *Snapshot, g *Gateway) string {
	if g.Config == nil {
		return notChecked
	}
	fact := ref("GatewayConfig", g.Config)
	if g.Dataplane != nil {
		fact += ", " + ref("Dataplane", g.Dataplane)
	}
	return fact
}
