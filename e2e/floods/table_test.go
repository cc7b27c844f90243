package floods

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// flood is the input of one hostile tenant. It contains only objects that role edit, extended by Gateways, may write in
// a namespace.
type flood struct {
	name string
	// long floods run with -long only.
	long bool
	// objects returns the objects for each number below size.
	size    int
	objects func(i int) []string
	// churn changes the objects repeatedly for some seconds; nil does nothing.
	churn func(ctx context.Context, w *world, turn int)
}

var floods = []flood{
	{name: "a route of 114,688 endpoints at the shared Gateway", size: 1, objects: func(int) []string {
		return []string{
			static("flood", "wide", 0), route("flood", "wide", []string{parent(home, "shared")}, wide(7, "wide")...),
		}
	}},
	{name: "40 such routes at its own and the shared Gateway", size: 40, objects: func(i int) []string {
		all := []string{route(
			"flood", fmt.Sprintf("wide-%d", i), []string{parent(home, "shared"), parent("", "own")}, wide(7, "wide")...,
		)}
		if i == 0 {
			all = append([]string{static("flood", "wide", 0), gateway("flood", "own", `"Same"`)}, all...)
		}
		return all
	}},
	{name: "60 Gateways of 98,304 endpoints", size: 60, objects: func(i int) []string {
		all := []string{
			gateway("flood", fmt.Sprintf("wide-%d", i), `"Same"`),
			route(
				"flood", fmt.Sprintf("wide-%d", i), []string{parent("", fmt.Sprintf("wide-%d", i))}, wide(6, "wide")...,
			),
		}
		if i == 0 {
			all = append(all, static("flood", "wide", 0))
		}
		return all
	}},
	{name: "60 Gateways that use their whole budget", long: true, size: 60, objects: func(i int) []string {
		all := []string{gateway("flood", fmt.Sprintf("full-%d", i), `"Same"`)}
		for r := range 2 {
			all = append(all, route(
				"flood", fmt.Sprintf("full-%d-%d", i, r), []string{parent("", fmt.Sprintf("full-%d", i))},
				wide(1, "wide")...,
			))
		}
		if i == 0 {
			all = append(all, static("flood", "wide", 0))
		}
		return all
	}},
	{name: "570 ConfigMaps of 900 kB with the operator's label", size: 570, objects: func(i int) []string {
		return []string{
			heavy("ConfigMap", i),
		}
	}},

	{name: "570 Secrets of 900 kB with the operator's label", long: true, size: 570, objects: func(
		i int,
	) []string {
		return []string{heavy("Secret", i)}
	}},
	{name: "10,001 routes at the shared Gateway", long: true, size: 10_001, objects: func(i int) []string {
		return []string{
			route("flood", fmt.Sprintf("tiny-%d", i), []string{parent(home, "shared")}, rule(`{"name":"none"}`)),
		}
	}},
	{name: "500 tiny Gateways", long: true, size: 500, objects: func(i int) []string {
		return []string{gateway("flood", fmt.Sprintf("tiny-%d", i), `"Same"`)}
	}},
	{name: "a Service of 100,000 endpoints at the shared Gateway", long: true, size: 100, objects: func(
		i int,
	) []string {
		var addresses []string
		for a := range 1000 {
			addresses = append(addresses, fmt.Sprintf("10.%d.%d.%d", 100+i, a/250, a%250+1))
		}
		all := []string{slice("flood", fmt.Sprintf("crowd-%d", i), "crowd", addresses)}
		if i == 0 {
			all = append(all, fmt.Sprintf(
				`{"apiVersion":"v1","kind":"Service",%s,"spec":{"clusterIP":"None","ports":[{"port":7000,"protocol":"UDP"}]}}`,
				meta("flood", "crowd"),
			),
				route("flood", "crowd", []string{parent(home, "shared")}, rule(`{"name":"crowd"}`)))
		}
		return all
	}},
	{name: "800 objects with 250 kB of annotations", long: true, size: 200, objects: func(i int) []string {
		more := `"annotations":{"example.org/deep":"` + strings.Repeat(`[[[[{{{{`, 250<<10/8) + `"}`
		name := fmt.Sprintf("heavy-%d", i)
		return []string{
			gateway("flood", name, `"Same"`, more),
			fmt.Sprintf(
				`{"apiVersion":"v1","kind":"Service",%s,"spec":{"clusterIP":"None","ports":[{"port":7000,"protocol":"UDP"}]}}`,
				meta("flood", name, more),
			),
			fmt.Sprintf(
				`{"apiVersion":"stunner.l7mp.io/v1","kind":"GatewayConfig",%s,"spec":{}}`, meta("flood", name, more),
			),
			fmt.Sprintf(
				`{"apiVersion":"stunner.l7mp.io/v1","kind":"StaticService",%s,"spec":{"prefixes":[]}}`,
				meta("flood", name, more),
			),
		}
	}},
	{name: "50 Gateways of 64 listeners with 500 routes each", long: true, size: 500, objects: func(i int) []string {
		var parents []string
		for g := range 32 {
			parents = append(parents, parent("", fmt.Sprintf("many-%d", (g+i)%50)))
		}
		all := []string{route(
			"flood", fmt.Sprintf("to-many-%d", i), parents,
			rule(`{"group":"stunner.l7mp.io","kind":"StaticService","name":"wide"}`),
		)}
		if i == 0 {
			all = append(all, static("flood", "wide", 0))
		}
		if i < 50 {
			var listeners []string
			for l := range 64 {
				listeners = append(listeners, fmt.Sprintf(`{"name":"l%d","port":%d,"protocol":"TURN-UDP"}`, l, 1024+l))
			}
			all = append(all, fmt.Sprintf(`{"apiVersion":"gateway.networking.k8s.io/v1","kind":"Gateway",%s,"spec":{"gatewayClassName":"turn","listeners":[%s]}}`,
				meta("flood", fmt.Sprintf("many-%d", i)), strings.Join(listeners, ",")))
		}
		return all
	}},
	{name: "1,000 StaticServices of 1,024 prefixes", long: true, size: 1000, objects: func(i int) []string {
		return []string{static("flood", fmt.Sprintf("wide-%d", i), i),
			route(
				"flood", fmt.Sprintf("wide-%d", i), []string{parent(home, "shared")},
				rule(fmt.Sprintf(`{"group":"stunner.l7mp.io","kind":"StaticService","name":"wide-%d"}`, i)),
			)}
	}},
	{name: "1,000 GatewayConfigs, each of a Gateway", long: true, size: 1000, objects: func(i int) []string {
		name := fmt.Sprintf("config-%d", i)
		return []string{
			fmt.Sprintf(`{"apiVersion":"stunner.l7mp.io/v1","kind":"GatewayConfig",%s,"spec":{"userName":"u","password":"p","loadBalancerServiceAnnotations":{"a":"%s"}}}`,
				meta("flood", name), strings.Repeat("x", 1000)),
			fmt.Sprintf(`{"apiVersion":"gateway.networking.k8s.io/v1","kind":"Gateway",%s,"spec":{"gatewayClassName":"turn",
				"infrastructure":{"parametersRef":{"group":"stunner.l7mp.io","kind":"GatewayConfig","name":%q}},
				"listeners":[{"name":"udp","port":3478,"protocol":"TURN-UDP"}]}}`, meta("flood", name), name),
		}
	}},
	{name: "labels that change continuously", long: true, size: 200, objects: func(i int) []string {
		return []string{
			fmt.Sprintf(
				`{"apiVersion":"v1","kind":"Service",%s,"spec":{"clusterIP":"None","ports":[{"port":7000,"protocol":"UDP"}]}}`,
				meta("flood", fmt.Sprintf("media-%d", i)),
			),
			route(
				"flood", fmt.Sprintf("to-%d", i), []string{parent(home, "shared")},
				rule(fmt.Sprintf(`{"name":"media-%d"}`, i)),
			),
		}
	}, churn: func(ctx context.Context, w *world, turn int) {
		patch := []byte(fmt.Sprintf(`{"metadata":{"labels":{"turn":"%d"}}}`, turn))
		_, err := w.of("v1", "Service").Namespace("flood").Patch(
			ctx, fmt.Sprintf("media-%d", turn%200), types.MergePatchType, patch, metav1.PatchOptions{},
		)
		if err == nil {
			_, err = w.of("v1", "Namespace").Patch(ctx, "flood", types.MergePatchType, patch, metav1.PatchOptions{})
		}
		if err != nil {
			w.Errorf("flood: %v", err)
		}
	}},
	{name: "a Gateway that is created and deleted", long: true, churn: func(ctx context.Context, w *world, _ int) {
		if err := w.create(ctx, gateway("flood", "blinking", `"All"`)); err != nil && !apierrors.IsAlreadyExists(err) {
			w.Errorf("flood: %v", err)
		}
		if err := w.of("gateway.networking.k8s.io/v1", "Gateway").Namespace("flood").Delete(
			ctx, "blinking", metav1.DeleteOptions{},
		); err != nil {
			w.Errorf("flood: %v", err)
		}
	}},
	{name: "3,000 routes to Gateways and Services of others", long: true, size: 3000, objects: func(i int) []string {
		var parents []string
		for t := range tenants {
			parents = append(parents, parent(tenantOf(t), "own"))
		}
		return []string{route(hostile[i%len(hostile)], fmt.Sprintf("foreign-%d", i), append(
			parents, parent(home, "shared"),
		),
			rule(`{"name":"media","namespace":"good-0"}`, `{"name":"media","namespace":"good-1"}`))}
	}},
	{name: "hostile names", long: true, size: 200, objects: func(i int) []string {
		label, domain := fmt.Sprintf("g%s-%d", strings.Repeat("x", 50), i), fmt.Sprintf(
			"%s.%d", strings.TrimSuffix(strings.Repeat("a.", 120), "."), i,
		)
		return []string{
			gateway("flood", label, `"Same"`),
			gateway("flood", domain, `"Same"`),
			route(
				"flood", domain, []string{parent(home, "shared"), parent("", label), parent("", domain)},
				rule(`{"name":"`+strings.Repeat("s", 63)+`"}`),
			),
			fmt.Sprintf(
				`{"apiVersion":"v1","kind":"ConfigMap",%s,"data":{"stunnerd.conf":"{"}}`, meta("flood", label, ours),
			),
			fmt.Sprintf(
				`{"apiVersion":"v1","kind":"Secret",%s,"type":"stunner.l7mp.io/standby-config","stringData":{"stunnerd.conf.gz":"{"}}`,
				meta("flood", label+"-standby", ours),
			),
		}
	}},
}

const ours = `"labels":{"stunner.l7mp.io/owned-by":"stunner"}`

// heavy returns an object of 900 kB with the labels of generated objects.
func heavy(kind string, i int) string {
	field := "data"
	if kind == "Secret" {
		field = "stringData"
	}
	return fmt.Sprintf(
		`{"apiVersion":"v1","kind":%q,%s,%q:{"stunnerd.conf":%q}}`, kind,
		meta("flood", fmt.Sprintf("heavy-%d", i), ours), field, strings.Repeat("x", 900_000),
	)
}
