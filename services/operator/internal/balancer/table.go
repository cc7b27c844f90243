package balancer

import stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"

// Annotations that several abilities name.
const (
	awsType        = "service.beta.kubernetes.io/aws-load-balancer-type"
	awsScheme      = "service.beta.kubernetes.io/aws-load-balancer-scheme"
	awsInternal    = "service.beta.kubernetes.io/aws-load-balancer-internal"
	awsTarget      = "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type"
	awsHealthPort  = "service.beta.kubernetes.io/aws-load-balancer-healthcheck-port"
	awsFamily      = "service.beta.kubernetes.io/aws-load-balancer-ip-address-type"
	awsPrefixNAT   = "service.beta.kubernetes.io/aws-load-balancer-enable-prefix-for-ipv6-source-nat"
	awsSamePort    = "service.beta.kubernetes.io/aws-load-balancer-enable-tcp-udp-listener"
	awsProxy       = "service.beta.kubernetes.io/aws-load-balancer-proxy-protocol"
	gkeRBS         = "cloud.google.com/l4-rbs"
	doProxy        = "service.beta.kubernetes.io/do-loadbalancer-enable-proxy-protocol"
	hetznerProxy   = "load-balancer.hetzner.cloud/uses-proxyprotocol"
	openstackProxy = "loadbalancer.openstack.org/proxy-protocol"
	ociType        = "oci.oraclecloud.com/load-balancer-type"
	ociSecurity    = "oci-network-load-balancer.oraclecloud.com/security-list-management-mode"
	ociPreserve    = "oci-network-load-balancer.oraclecloud.com/is-preserve-source"
)

// Classes of load balancers.
var (
	awsClasses = []string{"service.k8s.aws/nlb", "eks.amazonaws.com/nlb"}
	gkeClasses = []string{"networking.gke.io/l4-regional-external", "networking.gke.io/l4-regional-internal"}
)

const ciliumL2 = "io.cilium/l2-announcer"

// awsController are the settings with which the AWS Load Balancer Controller serves a Service in place of the cloud
// controller.
var awsController = []Setting{{Annotation: awsType, Values: []string{"external", "nlb-ip"}}, {Classes: awsClasses}}

// local is the ability to keep the addresses of clients with externalTrafficPolicy Local.
var local = Ability{Support: With, With: []Setting{{Local: true}}}

// readsProxy is the annotation of a Gateway whose listeners read the PROXY protocol.
const readsProxy = "stunner.l7mp.io/proxy-protocol"

// proxyProtocol returns the caution that a load balancer sends the PROXY protocol to listeners that do not read it.
func proxyProtocol(annotation string, values ...string) Caution {
	return Caution{
		If: []Setting{{Annotation: annotation, Values: values}}, TCP: true,
		Unless:  []Setting{{Annotation: readsProxy}},
		Problem: "begins each TCP connection with a header of the PROXY protocol, which the listeners do not read",
		Remedy: "set annotation " + readsProxy + " of the Gateway to the prefixes of the addresses from which the load " +
			"balancer connects, or remove annotation " + annotation,
	}
}

// yes is an ability that needs no settings.
func yes(note string) Ability { return Ability{Support: Yes, Note: note} }

// Providers are the rows of the table.
var Providers = []Provider{
	{
		Name: stunnerv1.LoadBalancerAWS, Title: "Amazon Web Services", Subject: "the load balancer of AWS",
		Schemes: []string{"aws"}, Classes: awsClasses,
		Address: yes(""),
		UDP: Ability{
			Support: With,
			With:    []Setting{{Annotation: awsType, Values: []string{"external", "nlb", "nlb-ip"}}, {Classes: awsClasses}},
			Note: "A Network Load Balancer serves UDP, a Classic Load Balancer does not. " +
				"Without one of these settings the cloud controller creates a Classic Load Balancer. " +
				"Set the annotation before the Service exists: the controllers do not change the type of a load balancer.",
		},
		Mixed: Ability{
			Support: With, With: awsController,
			Note: "The cloud controller, which serves the type `nlb`, refuses a Service with both transports.",
		},
		SamePort: Ability{
			Support: With, With: []Setting{{Annotation: awsSamePort, Values: []string{"true"}}},
			Note: "It needs the AWS Load Balancer Controller 2.13 or later, with its feature gate `EnableTCPUDPListener`.",
		},
		Affinity: Ability{
			Support: With, With: awsController,
			Note: "The cloud controller refuses a Service with session affinity.",
		},
		Health: Ability{
			Support: With, With: []Setting{{Local: true}, {Annotation: awsHealthPort}},
			Note: "A target group for UDP is checked over TCP or HTTP, by default at the port of the traffic. " +
				"With `externalTrafficPolicy: Local` the default is the health check node port of the Service. " +
				"With targets of type `ip`, set the port of the probes, 8086, with protocol `HTTP` and path `/live`.",
		},
		IPv6: Ability{
			Support: With, With: []Setting{{Annotation: awsFamily, Values: []string{"dualstack"}}},
			Note: "The cloud controller creates no load balancer with both families.",
		},
		Source: Ability{
			Support: With,
			With:    []Setting{{Local: true}, {Annotation: awsTarget, Values: []string{"ip"}}},
			Note: "With targets of type `ip` the addresses of clients over TCP need the target group attribute " +
				"`preserve_client_ip.enabled=true`.",
		},
		Cautions: []Caution{
			{
				If: awsController, Unless: []Setting{{Annotation: awsScheme}, {Annotation: awsInternal}},
				Problem: "is internal by default, so clients on the internet do not reach it",
				Remedy:  "set annotation " + awsScheme + ": internet-facing or internal",
			},
			{
				If:     []Setting{{Annotation: awsFamily, Values: []string{"dualstack"}}},
				Unless: []Setting{{Annotation: awsPrefixNAT, Values: []string{"on"}}}, UDP: true,
				Problem: "serves UDP with both address families only with IPv6 prefixes for source NAT",
				Remedy:  "set annotation " + awsPrefixNAT + `: "on"`,
			},
			proxyProtocol(awsProxy, "*"),
		},
		Reads: []Annotation{
			{awsType, "the controller and the type of the load balancer"},
			{awsScheme, "internet-facing or internal"},
			{awsTarget, "whether targets are nodes (`instance`) or pods (`ip`)"},
			{awsHealthPort, "the port of the health check; `-healthcheck-protocol` and `-healthcheck-path` belong to it"},
			{awsFamily, "`ipv4` or `dualstack`"},
			{awsSamePort, "one listener for both transports of a port"},
		},
		Notes: []string{"A UDP flow is forgotten after 120 s without a packet. The keepalives of ICE are more frequent."},
		Sources: []Source{
			{
				"annotations of the AWS Load Balancer Controller",
				"https://kubernetes-sigs.github.io/aws-load-balancer-controller/latest/guide/service/annotations/",
			},
			{
				"Network Load Balancers of the AWS Load Balancer Controller",
				"https://kubernetes-sigs.github.io/aws-load-balancer-controller/latest/guide/service/nlb/",
			},
			{"annotations of the cloud controller", "https://cloud-provider-aws.sigs.k8s.io/service_controller/"},
			{"mixed protocols and UDP in the cloud controller", "https://github.com/kubernetes/kubernetes/pull/105361"},
			{
				"session affinity in the cloud controller",
				"https://github.com/kubernetes/cloud-provider-aws/blob/master/pkg/providers/v1/aws.go",
			},
			{"both families in the cloud controller", "https://github.com/kubernetes/cloud-provider-aws/issues/1219"},
			{
				"Network Load Balancers: families, timeouts",
				"https://docs.aws.amazon.com/elasticloadbalancing/latest/network/network-load-balancers.html",
			},
			{
				"health checks of target groups",
				"https://docs.aws.amazon.com/elasticloadbalancing/latest/network/target-group-health-checks.html",
			},
			{
				"client IP preservation",
				"https://docs.aws.amazon.com/elasticloadbalancing/latest/network/edit-target-group-attributes.html",
			},
		},
	},
	{
		Name: stunnerv1.LoadBalancerGKE, Title: "Google Kubernetes Engine", Subject: "the load balancer of GKE",
		Schemes: []string{"gce"}, Classes: gkeClasses,
		Address: yes(""), UDP: yes(""),
		Mixed: Ability{
			Support: With,
			With:    []Setting{{Classes: gkeClasses}, {Annotation: gkeRBS, Values: []string{"enabled"}}},
			Note: "It needs a cluster that was created with version 1.34.1-gke.2190000 or later, and the add-on " +
				"`HttpLoadBalancing`.",
		},
		SamePort: Ability{Support: Yes, Note: "A Service with both transports has forwarding rules for all ports."},
		Affinity: yes(""),
		Health:   yes("The health check is that of the nodes and needs no port of the Service."),
		IPv6:     Ability{Support: Depends, Note: "The cluster needs both address families."},
		Source:   local,
		Reads: []Annotation{
			{gkeRBS, "`enabled`: a load balancer with a backend service"},
			{"networking.gke.io/load-balancer-type", "`Internal`: an address in the VPC network"},
			{"networking.gke.io/load-balancer-ip-addresses", "reserved addresses"},
		},
		Sources: []Source{
			{
				"Services with several protocols",
				"https://docs.cloud.google.com/kubernetes-engine/docs/how-to/mixed-protocol-lb",
			},
			{"LoadBalancer Services", "https://docs.cloud.google.com/kubernetes-engine/docs/concepts/service-load-balancer"},
			{"parameters of Services", "https://cloud.google.com/kubernetes-engine/docs/how-to/service-parameters"},
		},
	},
	{
		Name: stunnerv1.LoadBalancerAKS, Title: "Azure Kubernetes Service", Subject: "the load balancer of Azure",
		Schemes: []string{"azure"},
		Address: yes(""), UDP: yes(""),
		Mixed: yes(""), SamePort: yes(""), Affinity: yes(""),
		Health: Ability{
			Support: Yes,
			Note: "UDP ports have no probe of their own. With `externalTrafficPolicy: Local` the health check node port " +
				"of the Service is probed.",
		},
		IPv6:   Ability{Support: Depends, Note: "The cluster needs both address families."},
		Source: local,
		Reads: []Annotation{
			{"service.beta.kubernetes.io/azure-load-balancer-internal", "an address in the virtual network"},
			{"service.beta.kubernetes.io/azure-load-balancer-ipv4", "an address; `-ipv6` for the other family"},
			{
				"service.beta.kubernetes.io/port_PORT_health-probe_port",
				"the port of the probe of a TCP port; `_protocol` and `_request-path` belong to it",
			},
		},
		Sources: []Source{
			{"annotations of the cloud controller", "https://kubernetes-sigs.github.io/cloud-provider-azure/topics/loadbalancer/"},
			{
				"probes in the cloud controller",
				"https://github.com/kubernetes-sigs/cloud-provider-azure/blob/master/pkg/provider/azure_loadbalancer_healthprobe.go",
			},
			{"several protocols in a Service", "https://github.com/kubernetes/kubernetes/pull/67986"},
			{"public load balancers of AKS", "https://learn.microsoft.com/en-us/azure/aks/load-balancer-standard"},
		},
	},
	{
		Name: stunnerv1.LoadBalancerDigitalOcean, Title: "DigitalOcean", Subject: "the load balancer of DigitalOcean",
		Schemes: []string{"digitalocean"},
		Address: yes(""), UDP: Ability{Support: Yes, Note: "It needs Kubernetes 1.21.11-do.1, 1.22.8-do.1 or later."},
		Health: yes("The cloud controller selects the health check of the nodes. Other annotations about health " +
			"checks count only with `service.beta.kubernetes.io/do-loadbalancer-override-health-check`."),
		Cautions: []Caution{proxyProtocol(doProxy, "true")},
		Reads: []Annotation{
			{"service.beta.kubernetes.io/do-loadbalancer-type", "`REGIONAL` or `REGIONAL_NETWORK`"},
			{"service.beta.kubernetes.io/do-loadbalancer-healthcheck-port", "the port of the health check"},
			{doProxy, "the PROXY protocol for TCP; the Gateway needs annotation `" + readsProxy + "`"},
		},
		Sources: []Source{
			{
				"settings of load balancers",
				"https://docs.digitalocean.com/products/kubernetes/how-to/configure-load-balancers/",
			},
			{
				"annotations of the cloud controller",
				"https://github.com/digitalocean/digitalocean-cloud-controller-manager/blob/master/docs/controllers/services/annotations.md",
			},
			{
				"UDP in the cloud controller",
				"https://github.com/digitalocean/digitalocean-cloud-controller-manager/pull/475",
			},
		},
	},
	{
		Name: stunnerv1.LoadBalancerHetzner, Title: "Hetzner Cloud", Subject: "the load balancer of Hetzner Cloud",
		Schemes: []string{"hcloud"},
		Address: yes(""),
		UDP: Ability{
			Support: No,
			Note: "The load balancers serve TCP, HTTP and HTTPS. Use a load balancer in the cluster, such as MetalLB, " +
				"with its `spec.service.loadBalancerClass`, or node ports.",
		},
		Mixed: Ability{Support: No}, SamePort: Ability{Support: No},
		IPv6:     Ability{Support: Yes, Note: "Annotation `load-balancer.hetzner.cloud/ipv6-disabled` turns it off."},
		Cautions: []Caution{proxyProtocol(hetznerProxy, "true")},
		Reads: []Annotation{
			{"load-balancer.hetzner.cloud/location", "the location; or `network-zone`"},
			{"load-balancer.hetzner.cloud/use-private-ip", "the nodes are reached in their private network"},
			{"load-balancer.hetzner.cloud/health-check-port", "the port of the health check"},
			{hetznerProxy, "the PROXY protocol for TCP; the Gateway needs annotation `" + readsProxy + "`"},
		},
		Sources: []Source{
			{"UDP", "https://github.com/hetznercloud/hcloud-cloud-controller-manager/issues/252"},
			{"UDP, in December 2025", "https://github.com/hetznercloud/hcloud-cloud-controller-manager/issues/1100"},
			{
				"annotations of the cloud controller",
				"https://github.com/hetznercloud/hcloud-cloud-controller-manager/blob/main/docs/reference/load_balancer_annotations.md",
			},
		},
	},
	{
		Name: stunnerv1.LoadBalancerOVH, Title: "OVHcloud and other OpenStack clouds",
		Subject: "the load balancer of OpenStack (Octavia)",
		Schemes: []string{"openstack"},
		Address: yes(""),
		UDP: Ability{Support: Yes, Note: "OVHcloud needs the class `octavia` of annotation " +
			"`loadbalancer.ovhcloud.com/class`, which is the default since Kubernetes 1.31."},
		Mixed:    Ability{Support: Yes, Note: "Each port of the Service has a listener with its own protocol."},
		SamePort: Ability{Support: Unknown},
		Affinity: yes(""),
		Health:   Ability{Support: Yes, Note: "OVHcloud creates a health monitor for each pool of nodes by default."},
		Source: Ability{
			Support: Depends,
			Note:    "The documentation has the PROXY protocol for TCP, and nothing for UDP.",
		},
		Cautions: []Caution{proxyProtocol(openstackProxy, "true", "v1", "v2")},
		Reads: []Annotation{
			{"loadbalancer.ovhcloud.com/class", "`octavia` or the former `iolb`"},
			{"loadbalancer.ovhcloud.com/flavor", "the size"},
			{"loadbalancer.openstack.org/enable-health-monitor", "whether nodes are checked"},
			{"loadbalancer.openstack.org/keep-floatingip", "whether the address outlives the Service"},
			{openstackProxy, "the PROXY protocol for TCP; the Gateway needs annotation `" + readsProxy + "`"},
		},
		Sources: []Source{
			{
				"load balancers of OVHcloud",
				"https://github.com/ovh/docs/blob/develop/pages/public_cloud/containers_orchestration/managed_kubernetes/expose_your_applications_using_a_load_balancer/guide.en-gb.md",
			},
			{
				"annotations of the cloud controller",
				"https://github.com/kubernetes/cloud-provider-openstack/blob/master/docs/openstack-cloud-controller-manager/expose-applications-using-loadbalancer-type-service.md",
			},
			{
				"listeners of the cloud controller",
				"https://github.com/kubernetes/cloud-provider-openstack/blob/master/pkg/openstack/loadbalancer.go",
			},
		},
	},
	{
		Name: stunnerv1.LoadBalancerOCI, Title: "Oracle Cloud Infrastructure", Subject: "the load balancer of Oracle Cloud",
		Schemes: []string{"oci", "ocid1"},
		Address: yes(""),
		UDP: Ability{
			Support: With, With: []Setting{{Annotation: ociType, Values: []string{"nlb"}}},
			Note: "A network load balancer serves UDP, a load balancer does not. The default is a load balancer. " +
				"The security rules of a network load balancer have to be created by hand.",
		},
		Affinity: Ability{Support: No, Note: "The cloud controller refuses a Service with session affinity."},
		Health:   yes("The health check is that of the nodes and needs no port of the Service."),
		Source: Ability{
			Support: With, With: local.With,
			Note: "This applies to network load balancers. Annotation `" + ociPreserve + "` is an error without it.",
		},
		Cautions: []Caution{
			{
				If:      []Setting{{Annotation: ociSecurity, Values: []string{"All", "Frontend"}}},
				UDP:     true,
				Problem: "refuses UDP ports whose security lists the cloud controller manages",
				Remedy:  "set annotation " + ociSecurity + ": None",
			},
			{
				If:      []Setting{{Annotation: ociPreserve}},
				Unless:  local.With,
				Problem: "refuses to keep the addresses of clients with externalTrafficPolicy Cluster",
				Remedy:  "set " + Setting{Local: true}.String() + ", or remove annotation " + ociPreserve,
			},
		},
		Reads: []Annotation{
			{ociType, "`lb` (default) or `nlb`"},
			{ociPreserve, "whether a network load balancer keeps the addresses of clients"},
			{ociSecurity, "which security lists the cloud controller manages for a network load balancer"},
			{"service.beta.kubernetes.io/oci-load-balancer-shape", "the bandwidth of a load balancer"},
		},
		Sources: []Source{
			{
				"the two kinds of load balancers",
				"https://docs.oracle.com/en-us/iaas/Content/ContEng/Tasks/contengcreatingloadbalancer.htm",
			},
			{
				"network load balancers",
				"https://docs.oracle.com/en-us/iaas/Content/ContEng/Tasks/contengcreatingnetworkloadbalancers.htm",
			},
			{
				"annotations",
				"https://docs.oracle.com/en-us/iaas/Content/ContEng/Tasks/contengcreatingloadbalancer_topic-Summaryofannotations.htm",
			},
			{
				"checks of the cloud controller",
				"https://github.com/oracle/oci-cloud-controller-manager/blob/master/pkg/cloudprovider/providers/oci/load_balancer_spec.go",
			},
		},
	},
	{
		Name: stunnerv1.LoadBalancerMetalLB, Title: "MetalLB", Subject: "MetalLB",
		Classes: []string{"metallb.io/metallb", "metallb.universe.tf/metallb"},
		Marks:   []string{"metallb.io/", "metallb.universe.tf/"},
		Address: yes(""), UDP: yes("MetalLB announces an address, whatever the ports of the Service are."),
		Mixed: yes(""), SamePort: yes(""), Affinity: yes("The nodes implement it."),
		Health: yes("There is no health check."),
		IPv6:   Ability{Support: Depends, Note: "A pool needs addresses of both families."},
		Source: local,
		Reads: []Annotation{
			{"metallb.io/address-pool", "the pool; in earlier releases `metallb.universe.tf/address-pool`"},
			{"metallb.io/loadBalancerIPs", "addresses; in earlier releases `metallb.universe.tf/loadBalancerIPs`"},
			{"metallb.io/allow-shared-ip", "a key: the Services of a Gateway with the same key have one address"},
		},
		Notes: []string{
			"Services with `metallb.io/allow-shared-ip` share an address with `externalTrafficPolicy: Local` only if " +
				"they select the same pods, as those of one Gateway do.",
			"Flag `--lb-class` of MetalLB sets its class. Another class than those above needs `loadBalancerProvider`.",
		},
		Sources: []Source{
			{"usage", "https://metallb.universe.tf/usage/"},
			{"beside ServiceLB of K3s", "https://metallb.universe.tf/configuration/k3s/"},
		},
	},
	{
		Name: stunnerv1.LoadBalancerCilium, Title: "Cilium", Subject: "Cilium",
		Classes: []string{"io.cilium/bgp-control-plane", ciliumL2, "io.cilium/node"},
		Marks:   []string{"lbipam.cilium.io/", "io.cilium/lb-ipam-"},
		Address: yes(""), UDP: yes("Cilium announces an address, whatever the ports of the Service are."),
		Mixed: yes(""), SamePort: yes(""), Affinity: yes("The nodes implement it."),
		Health: yes("There is no health check."),
		IPv6:   Ability{Support: Depends, Note: "A pool needs addresses of both families."},
		Source: Ability{
			Support: Depends,
			Note:    "`externalTrafficPolicy: Local` keeps the addresses of clients, and so does the mode DSR of Cilium.",
		},
		Cautions: []Caution{{
			If: []Setting{{Classes: []string{ciliumL2}}}, Unless: []Setting{{Cluster: true}},
			Problem: "may announce the address of a Service with externalTrafficPolicy Local from a node without a pod",
			Remedy: "remove annotation stunner.l7mp.io/external-traffic-policy, or use class io.cilium/bgp-control-plane " +
				"in spec.service.loadBalancerClass of the Dataplane",
		}},
		Reads: []Annotation{
			{"lbipam.cilium.io/ips", "addresses; in earlier releases `io.cilium/lb-ipam-ips`"},
			{"lbipam.cilium.io/sharing-key", "a key: Services with the same key have one address"},
		},
		Sources: []Source{
			{"addresses and classes", "https://docs.cilium.io/en/stable/network/lb-ipam/"},
			{"L2 announcements", "https://docs.cilium.io/en/stable/network/l2-announcements/"},
			{"addresses of nodes", "https://docs.cilium.io/en/stable/network/node-ipam/"},
		},
	},
	{
		Name: stunnerv1.LoadBalancerKlipper, Title: "ServiceLB of K3s (Klipper)", Subject: "ServiceLB of K3s",
		Schemes: []string{"k3s"},
		Address: yes("The addresses are those of nodes. A port that another Service uses on all nodes stays pending."),
		UDP:     yes(""), Mixed: yes(""), SamePort: yes(""), Affinity: yes("The nodes implement it."),
		Health: yes("There is no health check."),
		IPv6:   Ability{Support: Depends, Note: "The nodes need addresses of both families."},
		Source: Ability{
			Support: With, With: local.With,
			Note: "It does not work for nodes with `node-external-ip` whose packets pass a NAT.",
		},
		Notes: []string{
			"K3s without ServiceLB (`--disable=servicelb`) has the same `spec.providerID`: set `loadBalancerProvider`.",
		},
		Sources: []Source{
			{"ServiceLB", "https://docs.k3s.io/networking/networking-services"},
			{"its image", "https://github.com/k3s-io/klipper-lb"},
		},
	},
	{
		Name: stunnerv1.LoadBalancerKubeVIP, Title: "kube-vip", Subject: "kube-vip",
		Classes: []string{"kube-vip.io/kube-vip-class"}, Marks: []string{"kube-vip.io/"},
		Address: yes(""), UDP: yes("kube-vip announces an address, whatever the ports of the Service are."),
		Mixed: yes(""), SamePort: yes(""), Affinity: yes("The nodes implement it."),
		Health: yes("There is no health check."),
		IPv6:   Ability{Support: Depends, Note: "A range needs addresses of both families. Both at once need the ARP mode."},
		Source: Ability{
			Support: With, With: local.With,
			Note: "kube-vip has to run on the nodes with pods of the Gateway, with an election for each Service.",
		},
		Reads: []Annotation{{"kube-vip.io/loadbalancerIPs", "addresses"}},
		Sources: []Source{
			{"features", "https://github.com/kube-vip/kube-vip"},
			{"addresses and classes", "https://github.com/kube-vip/kube-vip-cloud-provider"},
			{"both families", "https://github.com/kube-vip/kube-vip/pull/687"},
			{"addresses of clients", "https://github.com/kube-vip/kube-vip/issues/980"},
		},
	},
	{
		Name: stunnerv1.LoadBalancerNone, Title: "no load balancer", Subject: "a cluster without a load balancer controller",
		Address: Ability{
			Support: No,
			Note:    "A Service of type LoadBalancer stays pending. Its node ports are reachable.",
		},
		Sources: []Source{{
			"Services of type LoadBalancer",
			"https://kubernetes.io/docs/concepts/services-networking/service/#loadbalancer",
		}},
	},
}
