package balancer

import (
	"fmt"
	"strings"
)

const pageHead = `<!-- Written by make gen from services/operator/internal/balancer/table.go. -->

# Load balancers of providers

The operator creates Services of type LoadBalancer, and a controller of the cloud or of the cluster serves them.
Not every load balancer serves UDP, UDP and TCP in one Service, or session affinity, and some need annotations.
This page lists what is documented in public for each provider, and condition ` + "`LoadBalancerLimited`" + ` of a Gateway says what does not work for this Gateway.
The condition is set before the load balancer answers, and is a warning: the Services are created all the same.
It has the settings that help, and ends when one of them is set.
A Gateway without a Service of type LoadBalancer does not have the condition.

The provider is the first of

1. ` + "`spec.loadBalancerProvider`" + ` of the GatewayConfig of the class
2. the provider of ` + "`spec.loadBalancerClass`" + ` of the Service, which ` + "`spec.service.loadBalancerClass`" + ` of the Dataplane sets.
   With another class the provider is unknown
3. the provider of an annotation of the Service
4. the provider of ` + "`spec.providerID`" + ` of the nodes, if all nodes with a provider ID have the same one.

If the provider is unknown, there is no condition.
Set ` + "`loadBalancerProvider`" + ` if the nodes belong to a provider whose load balancers you do not use: ` + "`metallb`" + ` for MetalLB on virtual machines of a cloud, ` + "`other`" + ` for a load balancer that is not in the table.
With the file provider there are no Services, and no condition.

`

const pageColumns = `Below, *with settings* means that one of the settings in the section of the provider is necessary, *depends* that it depends on the installation, and *unknown* that no public documentation says it.
The operator warns of neither of the last two.

`

// Page returns docs/providers.md.
func Page() string {
	var b strings.Builder
	b.WriteString(pageHead)
	b.WriteString("| `loadBalancerProvider` | load balancers of | found by |\n| --- | --- | --- |\n")
	for _, p := range Providers {
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s | %s |\n", p.Name, p.Name, p.Title, p.found())
	}
	b.WriteString("| `other` | a provider that is not listed | |\n\n" + pageColumns)
	b.WriteString("| |")
	for _, f := range columns() {
		fmt.Fprintf(&b, " %s |", f.Name)
	}
	b.WriteString("\n|" + strings.Repeat(" --- |", len(columns())+1) + "\n")
	for i := range Providers {
		p := &Providers[i]
		if p.Address.Support == No {
			continue // without an address, no other feature matters
		}
		fmt.Fprintf(&b, "| %s |", p.Name)
		for _, f := range columns() {
			fmt.Fprintf(&b, " %s |", f.Of(p).Support.word())
		}
		b.WriteString("\n")
	}
	for i := range Providers {
		b.WriteString(Providers[i].section())
	}
	return b.String()
}

// columns returns the features that have a column of their own. It leaves out the address, because all providers but
// one have it. No feature has two columns.
func columns() (all []Feature) {
	for _, f := range Features {
		if f.Name != "address" && f.Name != "health check port beside UDP" {
			all = append(all, f)
		}
	}
	return all
}

func (s Support) word() string {
	if s == Unknown {
		return "unknown"
	}
	return string(s)
}

// found says how the provider is found.
func (p Provider) found() string {
	var ways []string
	for _, scheme := range p.Schemes {
		if scheme == "ocid1" { // the only ID without a scheme
			ways = append(ways, "node `ocid1.…`")
			continue
		}
		ways = append(ways, "node `"+scheme+"://…`")
	}
	for _, class := range p.Classes {
		ways = append(ways, "class `"+class+"`")
	}
	for _, mark := range p.Marks {
		ways = append(ways, "annotation `"+mark+"…`")
	}
	return strings.Join(ways, ", ")
}

func (p *Provider) section() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n## %s\n\n%s.\n", p.Name, upper(p.Title))
	var items []string
	for _, f := range append([]Feature{Features[0]}, columns()...) {
		a := f.Of(p)
		if len(a.With) == 0 && a.Note == "" {
			continue
		}
		item := "* " + f.Name + ": " + a.Support.word()
		if len(a.With) > 0 {
			var settings []string
			for _, x := range a.With {
				settings = append(settings, x.code())
			}
			item = "* " + f.Name + ": with " + strings.Join(settings, ", or ")
		}
		items = append(items, item+".\n"+sentences("  ", a.Note))
	}
	for _, c := range p.Cautions {
		var settings []string
		for _, x := range c.If {
			settings = append(settings, x.code())
		}
		items = append(items, fmt.Sprintf("* With %s, %s %s: %s.\n", strings.Join(settings, ", or "), p.Subject, c.Problem,
			c.Remedy))
	}
	if len(items) > 0 {
		b.WriteString("\n" + strings.Join(items, ""))
	}
	if len(p.Notes) > 0 {
		b.WriteString("\n")
		for _, note := range p.Notes {
			b.WriteString(sentences("", note))
		}
	}
	if len(p.Reads) > 0 {
		b.WriteString("\n| annotation of the Service | sets |\n| --- | --- |\n")
		for _, a := range p.Reads {
			fmt.Fprintf(&b, "| `%s` | %s |\n", a.Name, a.Effect)
		}
	}
	b.WriteString("\nSources:\n\n")
	for _, s := range p.Sources {
		fmt.Fprintf(&b, "* [%s](%s)\n", s.Title, s.URL)
	}
	return b.String()
}

// code returns the setting in Markdown.
func (x Setting) code() string {
	switch {
	case x.Local:
		return "`externalTrafficPolicy: Local`"
	case x.Cluster:
		return "`externalTrafficPolicy: Cluster`"
	case len(x.Classes) > 0:
		return "`loadBalancerClass` `" + strings.Join(x.Classes, "` or `") + "`"
	case len(x.Values) == 0:
		return "`" + x.Annotation + "`"
	}
	return "`" + x.Annotation + ": " + strings.Join(x.Values, "` or `") + "`"
}

// sentences returns a text with one sentence a line.
func sentences(indent, text string) string {
	if text == "" {
		return ""
	}
	return indent + strings.ReplaceAll(text, ". ", ".\n"+indent) + "\n"
}

func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
