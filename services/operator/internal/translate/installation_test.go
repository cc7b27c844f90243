package translate

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// installed returns installations in the order of their age. The last two are of the same second.
func installed() []resource.Installation {
	at := func(s int) time.Time { return time.Date(2026, 1, 2, 3, 4, s, 0, time.UTC) }
	return []resource.Installation{
		{Namespace: "z", Since: at(0)}, {Namespace: "m", Since: at(1)}, {Namespace: "a", Since: at(2)},
		{Namespace: "b", Since: at(2)},
	}
}

// For any content of the condition of a GatewayClass, and any order in which running installations write, they agree on
// the oldest one after each has written at most twice. After that none of them writes.
func TestInstallationsAgreeOnTheOldest(t *testing.T) {
	all := installed()
	starts := []Claims{{}}
	for _, manager := range all {
		starts = append(starts, Claims{Manager: manager})
		for _, paused := range all {
			starts = append(starts, Claims{Manager: manager, Paused: paused})
		}
	}
	for running := 1; running < 1<<len(all); running++ {
		var up, gone []resource.Installation
		for i, in := range all {
			if running>>i&1 == 1 {
				up = append(up, in)
			} else {
				gone = append(gone, in)
			}
		}
		for _, start := range starts {
			for turn := range up {
				claims, writes := start, map[resource.Installation]int{}
				for n := range 4 * len(up) {
					own := up[(turn+n)%len(up)]
					next := claims.Settle(resource.Installations{Own: own, Gone: gone})
					if next != claims {
						writes[own]++
					}
					claims = next
				}
				name := fmt.Sprintf("%v run, %v starts, from %v", up, up[turn], start)
				if claims.Manager != up[0] {
					t.Errorf("%s: %s manages the class", name, claims.Manager)
				}
				if (claims.Paused != resource.Installation{}) != (len(up) > 1) || claims.Paused == up[0] {
					t.Errorf("%s: %s is named as paused", name, claims.Paused)
				}
				for own, n := range writes {
					if n > 2 {
						t.Errorf("%s: %s writes %d times", name, own, n)
					}
				}
			}
		}
	}
}

// An installation whose Lease was created again does not pause itself, and an installation that may still run pauses a
// younger one.
func TestInstallationsSettle(t *testing.T) {
	oldest, older, own := installed()[0], installed()[1], installed()[2]
	before := own
	before.Since = before.Since.Add(-time.Hour)
	for _, c := range []struct {
		title  string
		claims Claims
		gone   []resource.Installation
		want   Claims
	}{
		{"none", Claims{}, nil, Claims{Manager: own}},
		{"own", Claims{Manager: own}, nil, Claims{Manager: own}},
		{"own with a former Lease", Claims{Manager: before}, nil, Claims{Manager: own}},
		{"own is paused, with a former Lease", Claims{older, before}, nil, Claims{older, own}},
		{"another", Claims{Manager: older}, nil, Claims{older, own}},
		{"another, gone", Claims{Manager: older}, []resource.Installation{older}, Claims{Manager: own}},
		{"two others", Claims{oldest, older}, nil, Claims{oldest, older}},
		{"two others, one gone", Claims{oldest, older}, []resource.Installation{oldest}, Claims{older, own}},
	} {
		if got := c.claims.Settle(resource.Installations{Own: own, Gone: c.gone}); got != c.want {
			t.Errorf("%s: got %v, want %v", c.title, got, c.want)
		}
	}
}

// The claims in a GatewayClass are read as they were written. A paused installation changes no other condition and no
// order.
func TestClassSaysWhichInstallationManagesIt(t *testing.T) {
	older, own := installed()[0], installed()[1]
	opt := DefaultOptions()
	opt.Now = metav1.Unix(2, 0)
	class := &gwapiv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "calls", Generation: 3}}
	class.Spec.ControllerName = gwapiv1.GatewayController(opt.ControllerName)
	translated := func(known resource.Installations, before ...metav1.Condition) []metav1.Condition {
		class := class.DeepCopy()
		class.Status.Conditions = before
		return Class(resource.NewView([]resource.Object{class, &known}), "calls", opt).Status.Conditions
	}
	foreign := metav1.Condition{Type: "example.net/Any", Status: metav1.ConditionTrue}
	if got := translated(resource.Installations{}); len(got) != 1 {
		t.Errorf("without a leader: %v", got)
	}
	sole := translated(resource.Installations{Own: older}, foreign)
	if got := ClaimsOf(sole); got != (Claims{Manager: older}) || sole[1].Status != metav1.ConditionFalse {
		t.Fatalf("the older one writes %v", sole)
	}
	if kept := translated(resource.Installations{}, sole...); ClaimsOf(kept) != (Claims{Manager: older}) {
		t.Errorf("a replica that is not the leader writes %v", kept)
	}
	sole[0].Message = "of another release"
	paused := translated(resource.Installations{Own: own}, sole...)
	if got := ClaimsOf(paused); got != (Claims{older, own}) || !condition.Wrong(paused[1]) {
		t.Errorf("the younger one claims %v", got)
	}
	for i, c := range paused {
		if c.Type != condition.ControllerConflict && c != sole[i] {
			t.Errorf("the younger one writes %v, it was %v", c, sole[i])
		}
	}
	resumed := translated(resource.Installations{Own: own, Gone: []resource.Installation{older}}, paused...)
	if got := ClaimsOf(resumed); got != (Claims{Manager: own}) || resumed[0].Message == sole[0].Message {
		t.Errorf("after the older one is gone: %v", resumed)
	}
}

// Names and times of installations survive being written to a message.
func TestInstallationIsParsed(t *testing.T) {
	for _, want := range installed() {
		want.Namespace = "stunner-" + want.Namespace
		if got, ok := resource.ParseInstallation(want.String()); !ok || got != want {
			t.Errorf("%s: got %v %t", want, got, ok)
		}
	}
	for _, text := range []string{"", "a", "@2026-01-02T03:04:05Z", "a@", "a@yesterday", "a@2026-13-02T03:04:05Z"} {
		if got, ok := resource.ParseInstallation(text); ok || got != (resource.Installation{}) {
			t.Errorf("%q: got %v", text, got)
		}
	}
}
