package tenant

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// settle waits until the operator has observed the generations of objects, and has processed them.
func (n *tenant) settle(list ...*unstructured.Unstructured) {
	n.Helper()
	n.must(run.settle(n.Context()))
	observed := 0
	for _, o := range list {
		if hasConditions(o) {
			n.await(run.processed(o)) // most objects are processed by now
			observed++
		}
	}
	if observed > 0 {
		n.must(run.settle(n.Context()))
	}
}

// processed returns a condition: the status of an object has its generation.
func (p *product) processed(o *unstructured.Unstructured) func(context.Context) error {
	return func(ctx context.Context) error {
		now := o.DeepCopy()
		if err := p.admin.Get(ctx, client.ObjectKeyFromObject(o), now); err != nil {
			return client.IgnoreNotFound(err)
		}
		for _, c := range conditionsOf(now) {
			if c.Type == "Accepted" && c.ObservedGeneration == now.GetGeneration() {
				return nil
			}
		}
		return fmt.Errorf("the operator has not processed %s %s: %v", o.GetKind(), o.GetName(), now.Object["status"])
	}
}

// hasConditions reports whether the operator writes the status of an object.
func hasConditions(o *unstructured.Unstructured) bool {
	switch o.GetKind() {
	case "GatewayConfig", "StaticService":
		return true
	case "Gateway":
		name, _, _ := unstructured.NestedString(o.Object, "spec", "gatewayClassName")
		return name == class
	case "UDPRoute":
		parents, _, _ := unstructured.NestedSlice(o.Object, "spec", "parentRefs")
		return slices.ContainsFunc(
			parents, func(p any) bool { kind, named := p.(map[string]any)["kind"]; return !named || kind == "Gateway" },
		)
	}
	return false
}

// conditionsOf returns all conditions in the status of an object: of the object, of its listeners and of its parents.
func conditionsOf(o *unstructured.Unstructured) (all []metav1.Condition) {
	var status struct {
		Conditions         []metav1.Condition
		Listeners, Parents []struct{ Conditions []metav1.Condition }
	}
	text, _ := json.Marshal(o.Object["status"]) // the object was read from JSON
	_ = json.Unmarshal(text, &status)
	all = status.Conditions
	for _, part := range append(status.Listeners, status.Parents...) {
		all = append(all, part.Conditions...)
	}
	return all
}

// pass is one change that the operator processes.
type pass struct {
	done chan struct{}
	err  error
}

// settle waits until the operator has processed an object that is newer than all it has observed before. Concurrent
// callers wait for one object.
func (p *product) settle(ctx context.Context) error {
	p.mu.Lock()
	mine, first := p.next, p.next == nil
	if first {
		mine = &pass{done: make(chan struct{})}
		p.next = mine
	}
	p.mu.Unlock()
	if !first {
		<-mine.done
		return mine.err
	}
	p.turn.Lock()
	p.mu.Lock()
	p.next = nil
	p.last++
	number := p.last
	p.mu.Unlock()
	mine.err = p.processOne(ctx, number)
	p.turn.Unlock()
	close(mine.done)
	return mine.err
}

func (p *product) processOne(ctx context.Context, number int) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	if err := p.Cluster.Apply(ctx, "club", fmt.Sprintf(`
{apiVersion: stunner.l7mp.io/v1, kind: StaticService, metadata: {name: last}, spec: {prefixes: [198.51.100.%d]}}
`, number%250)); err != nil {
		return err
	}
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kinds["static"])
	o.SetNamespace("club")
	o.SetName("last")
	return harness.Until(ctx, p.processed(o))
}
