package floods

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// flood is the input of one hostile tenant. It contains only objects that the role edit, extended by Gateways, may
// write in a namespace.
type flood struct {
	name string
	// long floods run with -long only.
	long bool
	// first are the first objects of the flood. After them, objects returns an object for each number below size.
	first   []string
	size    int
	objects func(i int) []string
	// churn changes the objects repeatedly for some seconds; nil does nothing.
	churn func(ctx context.Context, a *apiServer, turn int)
}

var (
	shared = parent(home, "shared")
	// wideService is the backend of wide routes.
	wideService = []string{static("wide", 0)}
)

var floods = []flood{
	{name: "a route of 114,688 endpoints at the shared Gateway", long: true, first: wideService, size: 1,
		objects: func(int) []string { return []string{route("flood", "wide", []string{shared}, wide(7)...)} }},
	{name: "40 such routes at its own and the shared Gateway", first: append(wideService, gateway("flood", "own", "Same")),
		size: 40, objects: func(i int) []string {
			return []string{route("flood", numbered("wide", i), []string{shared, parent("", "own")}, wide(7)...)}
		}},
	{name: "60 Gateways of 98,304 endpoints", first: wideService, size: 60, objects: func(i int) []string {
		name := numbered("wide", i)
		return []string{gateway("flood", name, "Same"), route("flood", name, []string{parent("", name)}, wide(6)...)}
	}},
	{name: "60 Gateways that use their whole budget", long: true, first: wideService, size: 60, objects: func(i int) []string {
		name := numbered("full", i)
		all := []string{gateway("flood", name, "Same")}
		for r := range 2 {
			all = append(all, route("flood", numbered(name, r), []string{parent("", name)}, wide(1)...))
		}
		return all
	}},
	{name: "570 ConfigMaps of 900 kB with the operator's label", size: 570,
		objects: func(i int) []string { return []string{heavy("ConfigMap", "data", i)} }},
	{name: "570 Secrets of 900 kB with the operator's label", long: true, size: 570,
		objects: func(i int) []string { return []string{heavy("Secret", "stringData", i)} }},
	{name: "10,001 routes at the shared Gateway", long: true, size: 10_001, objects: func(i int) []string {
		return []string{route("flood", numbered("tiny", i), []string{shared}, rule(`{"name":"none"}`))}
	}},
	{name: "500 tiny Gateways", size: 500,
		objects: func(i int) []string { return []string{gateway("flood", numbered("tiny", i), "Same")} }},
	{name: "a Service of 100,000 endpoints at the shared Gateway", long: true, size: 100,
		first: []string{service("flood", "large"), route("flood", "large", []string{shared}, rule(`{"name":"large"}`))},
		objects: func(i int) []string {
			var addresses []string
			for a := range 1000 {
				addresses = append(addresses, fmt.Sprintf("10.%d.%d.%d", 100+i, a/250, a%250+1))
			}
			return []string{slice("flood", numbered("large", i), "large", addresses)}
		}},
	{name: "800 objects with 250 kB of annotations", long: true, size: 200, objects: func(i int) []string {
		more := `"annotations":{"example.org/deep":"` + strings.Repeat(`[[[[{{{{`, 250<<10/8) + `"}`
		name := numbered("heavy", i)
		return []string{
			gateway("flood", name, "Same", more), service("flood", name, more),
			object("GatewayConfig", "flood", name, `"spec":{}`, more),
			object("StaticService", "flood", name, `"spec":{"prefixes":[]}`, more),
		}
	}},
	{name: "50 Gateways of 64 listeners with 500 routes each", long: true, first: wideService, size: 500,
		objects: func(i int) []string {
			var parents []string
			for g := range 32 {
				parents = append(parents, parent("", numbered("many", (g+i)%50)))
			}
			all := []string{route("flood", numbered("to-many", i), parents, rule(toStatic("wide", "")))}
			if i < 50 {
				var listeners []string
				for l := range 64 {
					listeners = append(listeners, fmt.Sprintf(`{"name":"l%d","port":%d,"protocol":"TURN-UDP"}`, l, 1024+l))
				}
				all = append(all, object("Gateway", "flood", numbered("many", i),
					`"spec":{"gatewayClassName":"turn","listeners":[`+strings.Join(listeners, ",")+`]}`))
			}
			return all
		}},
	{name: "1,000 StaticServices of 1,024 prefixes", long: true, size: 1000, objects: func(i int) []string {
		name := numbered("wide", i)
		return []string{static(name, i), route("flood", name, []string{shared}, rule(toStatic(name, "")))}
	}},
	{name: "1,000 GatewayConfigs, each of a Gateway", long: true, size: 1000, objects: func(i int) []string {
		name := numbered("config", i)
		return []string{
			object("GatewayConfig", "flood", name, fmt.Sprintf(
				`"spec":{"userName":"u","password":"p","loadBalancerServiceAnnotations":{"a":%q}}`, strings.Repeat("x", 1000))),
			object("Gateway", "flood", name, fmt.Sprintf(`"spec":{"gatewayClassName":"turn",
				"infrastructure":{"parametersRef":{"group":"stunner.l7mp.io","kind":"GatewayConfig","name":%q}},
				"listeners":[{"name":"udp","port":3478,"protocol":"TURN-UDP"}]}`, name)),
		}
	}},
	{name: "labels that change continuously", long: true, size: 200, objects: func(i int) []string {
		name := numbered("media", i)
		return []string{
			service("flood", name), route("flood", numbered("to", i), []string{shared}, rule(fmt.Sprintf(`{"name":%q}`, name))),
		}
	}, churn: func(ctx context.Context, a *apiServer, turn int) {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{"turn":"%d"}}}`, turn)
		_, err := a.of("Service").Namespace("flood").Patch(
			ctx, numbered("media", turn%200), types.MergePatchType, patch, metav1.PatchOptions{})
		if err == nil {
			_, err = a.of("Namespace").Patch(ctx, "flood", types.MergePatchType, patch, metav1.PatchOptions{})
		}
		if err != nil {
			a.Errorf("flood: %v", err)
		}
	}},
	{name: "a Gateway that is created and deleted", churn: func(ctx context.Context, a *apiServer, _ int) {
		err := a.create(ctx, gateway("flood", "short-lived", "All"))
		if err == nil || apierrors.IsAlreadyExists(err) {
			err = a.of("Gateway").Namespace("flood").Delete(ctx, "short-lived", metav1.DeleteOptions{})
		}
		if err != nil {
			a.Errorf("flood: %v", err)
		}
	}},
	{name: "3,000 routes to Gateways and Services of others", long: true, size: 3000, objects: func(i int) []string {
		parents := []string{shared}
		for t := range tenants {
			parents = append(parents, parent(numbered("good", t), "own"))
		}
		return []string{route(hostile[i%len(hostile)], numbered("foreign", i), parents,
			rule(`{"name":"media","namespace":"good-0"}`, `{"name":"media","namespace":"good-1"}`))}
	}},
	{name: "hostile names", long: true, size: 200, objects: func(i int) []string {
		label := numbered("g"+strings.Repeat("x", 50), i)
		domain := fmt.Sprintf("%s.%d", strings.TrimSuffix(strings.Repeat("a.", 120), "."), i)
		return []string{
			gateway("flood", label, "Same"), gateway("flood", domain, "Same"),
			route("flood", domain, []string{shared, parent("", label), parent("", domain)},
				rule(`{"name":"`+strings.Repeat("s", 63)+`"}`)),
			object("ConfigMap", "flood", label, `"data":{"stunnerd.conf":"{"}`, owned),
			object("Secret", "flood", label+"-standby",
				`"type":"stunner.l7mp.io/standby-config","stringData":{"stunnerd.conf.gz":"{"}`, owned),
		}
	}},
}

func numbered(name string, i int) string { return fmt.Sprintf("%s-%d", name, i) }

// owned is the label of generated objects.
const owned = `"labels":{"stunner.l7mp.io/owned-by":"stunner"}`

// heavy returns an object of 900 kB with the label of generated objects.
func heavy(kind, field string, i int) string {
	return object(kind, "flood", numbered("heavy", i),
		fmt.Sprintf(`%q:{"stunnerd.conf":%q}`, field, strings.Repeat("x", 900_000)), owned)
}

// object returns an object as JSON: its fields, and more fields of its metadata.
func object(kind, namespace, name, fields string, more ...string) string {
	return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"namespace":%q,"name":%q%s},%s}`, kinds[kind].version, kind,
		namespace, name, strings.Join(append([]string{""}, more...), ","), fields)
}

// gateway returns a Gateway that allows routes of its own namespace ("Same") or of all ("All").
func gateway(namespace, name, from string, more ...string) string {
	return object("Gateway", namespace, name, fmt.Sprintf(`"spec":{"gatewayClassName":"turn","listeners":[{"name":"udp",
		"port":3478,"protocol":"TURN-UDP","allowedRoutes":{"namespaces":{"from":%q}}}]}`, from), more...)
}

func service(namespace, name string, more ...string) string {
	const spec = `"spec":{"clusterIP":"None","ports":[{"port":7000,"protocol":"UDP"}]}`
	return object("Service", namespace, name, spec, more...)
}

func parent(namespace, name string) string {
	if namespace == "" {
		return fmt.Sprintf(`{"name":%q}`, name)
	}
	return fmt.Sprintf(`{"name":%q,"namespace":%q}`, name, namespace)
}

func rule(backends ...string) string { return `{"backendRefs":[` + strings.Join(backends, ",") + `]}` }

func route(namespace, name string, parents []string, rules ...string) string {
	return object("UDPRoute", namespace, name,
		fmt.Sprintf(`"spec":{"parentRefs":[%s],"rules":[%s]}`, strings.Join(parents, ","), strings.Join(rules, ",")))
}

func slice(namespace, name, service string, addresses []string) string {
	var each []string
	for _, a := range addresses {
		each = append(each, fmt.Sprintf(`{"addresses":[%q]}`, a))
	}
	return object("EndpointSlice", namespace, name, fmt.Sprintf(
		`"addressType":"IPv4","ports":[{"port":7000,"protocol":"UDP"}],"endpoints":[%s]`, strings.Join(each, ",")),
		fmt.Sprintf(`"labels":{"kubernetes.io/service-name":%q}`, service))
}

// static returns a StaticService with 1,024 prefixes.
func static(name string, seed int) string {
	var all []string
	for i := range 1024 {
		all = append(all, fmt.Sprintf(`"172.%d.%d.%d/32"`, 16+seed%16, i/250, i%250))
	}
	return object("StaticService", "flood", name, `"spec":{"prefixes":[`+strings.Join(all, ",")+`]}`)
}

// toStatic returns a reference to a StaticService, with more fields.
func toStatic(name, more string) string {
	return fmt.Sprintf(`{"group":"stunner.l7mp.io","kind":"StaticService","name":%q%s}`, name, more)
}

// wide returns rules with n × 16 backends, each of which is wideService at another port.
func wide(n int) (rules []string) {
	for r := range n {
		var backends []string
		for b := range 16 {
			backends = append(backends, toStatic("wide", fmt.Sprintf(`,"port":%d`, 1001+16*r+b)))
		}
		rules = append(rules, rule(backends...))
	}
	return rules
}
