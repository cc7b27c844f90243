package balancer

import (
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// The CRD admits the providers of the table, and other.
func TestEveryProviderOfTheCRDHasARow(t *testing.T) {
	crd := read(t, "../crd/crds/stunner.l7mp.io_gatewayconfigs.yaml")
	found := regexp.MustCompile(`(?m)^( *)loadBalancerProvider:\n(?:^ .*\n)*?^ *enum:\n((?: *- .*\n)+)`).FindStringSubmatch(crd)
	if found == nil {
		t.Fatal("the CRD has no values of loadBalancerProvider")
	}
	want := strings.Fields(strings.ReplaceAll(found[2], "- ", " "))
	got := []string{string(stunnerv1.LoadBalancerOther)}
	for _, p := range Providers {
		got = append(got, string(p.Name))
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("rows %v, values of the CRD %v", got, want)
	}
}

// A row is consistent, and nothing names two providers.
func TestRows(t *testing.T) {
	names := map[string]stunnerv1.LoadBalancerProvider{}
	for i := range Providers {
		p := &Providers[i]
		if p.Title == "" || p.Subject == "" {
			t.Errorf("%s has no title or no subject", p.Name)
		}
		for _, name := range slices.Concat(p.Schemes, p.Classes, p.Marks) {
			if other, taken := names[name]; taken {
				t.Errorf("%s names %s and %s", name, p.Name, other)
			}
			names[name] = p.Name
		}
		for _, f := range Features {
			a := f.Of(p)
			if (a.Support == With) != (len(a.With) > 0) {
				t.Errorf("%s: %s: %q with settings %v", p.Name, f.Name, a.Support, a.With)
			}
			if f.remedy == "" && a.Support == No {
				t.Errorf("%s: %s has no remedy", p.Name, f.Name)
			}
		}
		for _, c := range p.Cautions {
			if len(c.If) == 0 || c.Problem == "" || c.Remedy == "" {
				t.Errorf("%s: incomplete caution %+v", p.Name, c)
			}
		}
	}
}

// docs/providers.md is written from the table and has the sources of every row.
func TestPage(t *testing.T) {
	page := read(t, "../../../../docs/providers.md")
	if page != Page() {
		t.Error("docs/providers.md is not current: run make gen")
	}
	for _, p := range Providers {
		_, section, found := strings.Cut(page, "\n## "+string(p.Name)+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		if !found || len(p.Sources) == 0 {
			t.Errorf("%s has no section or no source", p.Name)
		}
		for _, s := range p.Sources {
			u, err := url.Parse(s.URL)
			if err != nil || u.Scheme != "https" || !strings.Contains(u.Host, ".") || strings.ContainsAny(s.URL, " ()") {
				t.Errorf("%s: %q is no https URL: %v", p.Name, s.URL, err)
			}
			if !strings.Contains(section, "]("+s.URL+")") {
				t.Errorf("%s: the section does not have %s", p.Name, s.URL)
			}
		}
	}
}

// The condition of every provider is in a golden case of the translation.
func TestEveryRowHasAGolden(t *testing.T) {
	files, err := filepath.Glob("../translate/testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden cases: %v", err)
	}
	var all strings.Builder
	for _, file := range files {
		all.WriteString(read(t, file))
	}
	for _, p := range Providers {
		if !strings.Contains(all.String(), "; provider "+string(p.Name)+" is described in docs/providers.md#"+string(p.Name)) {
			t.Errorf("no golden case has the condition of %s", p.Name)
		}
	}
}

// everything is a Service that needs every feature.
func everything() Service {
	return Service{
		UDP: []int32{3478}, TCP: []int32{3478}, Affinity: true, IPv6: true, CountsSources: true,
		Annotations: map[string]string{},
	}
}

// Every setting that a limit names removes the limit.
func TestSettingsEndLimits(t *testing.T) {
	tested := 0
	for i := range Providers {
		p := &Providers[i]
		for _, f := range Features {
			a := f.Of(p)
			before := everything()
			if a.Support == With && a.suffices(before) {
				t.Errorf("%s: %s needs no setting", p.Name, f.Name)
			}
			for _, x := range a.With {
				for _, s := range applied(x) {
					tested++
					if !a.suffices(s) {
						t.Errorf("%s: %s: %s has no effect", p.Name, f.Name, x)
					}
				}
			}
		}
		for _, c := range p.Cautions {
			for _, x := range c.If {
				for _, s := range applied(x) {
					if c.UDP || c.TCP {
						none := s
						none.UDP, none.TCP = nil, nil
						if c.applies(none) {
							t.Errorf("%s: caution of %s without ports", p.Name, x)
						}
					}
					if len(c.Unless) == 0 && !c.applies(s) {
						t.Errorf("%s: no caution of %s", p.Name, x)
					}
				}
			}
		}
	}
	if tested < 20 {
		t.Errorf("%d settings tested, want at least 20", tested)
	}
}

// applied returns the Service that needs every feature with each value of a setting.
func applied(x Setting) (all []Service) {
	values := x.Values
	switch {
	case x.Local || x.Cluster:
		s := everything()
		s.Local = x.Local
		return []Service{s}
	case len(x.Classes) > 0:
		values = x.Classes
	case len(values) == 0:
		values = []string{"8086"}
	}
	for _, value := range values {
		s := everything()
		if len(x.Classes) > 0 {
			s.Class = value
		} else {
			s.Annotations[x.Annotation] = " " + strings.ToUpper(value)
		}
		all = append(all, s)
	}
	return all
}

// A fact that is unknown or depends on the installation limits nothing. A Service that needs nothing has no limit.
func TestUnknownLimitsNothing(t *testing.T) {
	for _, a := range []Ability{{}, {Support: Depends}} {
		p := Provider{Address: a, UDP: a, Mixed: a, SamePort: a, Affinity: a, Health: a, IPv6: a, Source: a}
		if limits := p.Limits(everything()); len(limits) > 0 {
			t.Errorf("%q limits %v", a.Support, limits)
		}
	}
	for _, p := range Providers {
		if limits := p.Limits(Service{TCP: []int32{3478}, Addressed: true}); len(limits) > 0 {
			t.Errorf("%s limits a Service that needs nothing: %v", p.Name, limits)
		}
	}
}

// A load balancer that serves no UDP has only this limit: limits about the ports and health checks of UDP are left out.
func TestLimitsThatPresupposeUDP(t *testing.T) {
	no := Ability{Support: No}
	p := Provider{UDP: no, Mixed: no, SamePort: no, Health: no}
	if limits := p.Limits(everything()); len(limits) != 1 || limits[0].Problem != "serves no UDP" {
		t.Errorf("limits %v, want that of UDP", limits)
	}
	p.UDP = Ability{Support: Yes}
	if limits := p.Limits(everything()); len(limits) != 3 {
		t.Errorf("limits %v, want those of both transports, one port, and health", limits)
	}
}

// A Service with UDP ports and a TCP health check port has both transports.
func TestHealthPortBesideUDP(t *testing.T) {
	p := Provider{Mixed: Ability{Support: No}}
	s := Service{UDP: []int32{3478}, HealthPort: true}
	if limits := p.Limits(s); len(limits) != 1 || !strings.Contains(limits[0].Remedy, "disable-health-check-expose") {
		t.Errorf("limits %v", limits)
	}
}

func TestFind(t *testing.T) {
	metallb := map[string]string{"metallb.io/address-pool": "public"}
	for name, c := range map[string]struct {
		configured stunnerv1.LoadBalancerProvider
		service    Service
		schemes    []string
		want       stunnerv1.LoadBalancerProvider
		how        How
	}{
		"nothing":                      {"", Service{}, nil, "", ByNodes},
		"nodes":                        {"", Service{}, []string{"hcloud"}, "hetzner", ByNodes},
		"unknown nodes":                {"", Service{}, []string{"kind"}, "", ByNodes},
		"nodes of two providers":       {"", Service{}, []string{"hcloud", "k3s"}, "", ByNodes},
		"an annotation before nodes":   {"", Service{Annotations: metallb}, []string{"hcloud"}, "metallb", ByAnnotation},
		"a class before an annotation": {"", Service{Class: ciliumL2, Annotations: metallb}, []string{"aws"}, "cilium", ByClass},
		"an unknown class":             {"", Service{Class: "a.b/c", Annotations: metallb}, []string{"aws"}, "", ByClass},
		"the config before a class":    {"gke", Service{Class: ciliumL2}, []string{"aws"}, "gke", ByConfig},
		"another provider":             {"other", Service{Class: ciliumL2, Annotations: metallb}, []string{"aws"}, "", ByConfig},
	} {
		p, how := Find(c.configured, c.service, c.schemes)
		got := stunnerv1.LoadBalancerProvider("")
		if p != nil {
			got = p.Name
		}
		if got != c.want || how != c.how {
			t.Errorf("%s: %q by %d, want %q by %d", name, got, how, c.want, c.how)
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
