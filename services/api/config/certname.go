package config

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"net/netip"
	"slices"
	"strings"
)

// maxCertificateNames is the maximum number of DNS names of a certificate that are used, and of its IP addresses.
// Public authorities issue certificates with fewer.
const maxCertificateNames = 1_000

// localDomains are top-level domains whose names clients outside of the host, its network or the cluster cannot
// resolve: RFC 6761 §6.3, RFC 6762 §3, and Kubernetes Services without the domain of the cluster.
var localDomains = []string{"localhost", "local", "svc"}

// CertificateNames returns the DNS names and the IP addresses for which clients accept a certificate. The subject is
// not one of them (RFC 9525 §2), and neither is an IP address in the form of a DNS name.
func CertificateNames(leaf *x509.Certificate) (names []string) {
	for _, name := range leaf.DNSNames[:min(len(leaf.DNSNames), maxCertificateNames)] {
		if _, err := netip.ParseAddr(name); err != nil {
			names = append(names, name)
		}
	}
	for _, ip := range leaf.IPAddresses[:min(len(leaf.IPAddresses), maxCertificateNames)] {
		names = append(names, ip.String())
	}
	return names
}

// Names returns the CertificateNames of the certificate; none if it cannot be read. It does not read the key.
func (c Certificate) Names() []string {
	text, err := base64.StdEncoding.DecodeString(c.Cert)
	if err != nil {
		return nil
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		leaf, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil
		}
		return CertificateNames(leaf)
	}
	return nil
}

// CertificatesCover reports whether a listener that has certificates with these names, in this order, serves a
// certificate that is valid for an IP address or a host name (RFC 9525 §6). Clients of an IP address send no server
// name (RFC 6066 §3) and receive the first certificate.
func CertificatesCover(certificates [][]string, host string) bool {
	if a, err := netip.ParseAddr(host); err == nil {
		return len(certificates) > 0 && slices.Contains(certificates[0], a.Unmap().String())
	}
	host = strings.TrimSuffix(host, ".")
	label, parent, _ := strings.Cut(host, ".")
	wildcard := "*." + parent
	if label == host || label == "" {
		wildcard = host
	}
	covers := func(name string) bool { return strings.EqualFold(name, host) || strings.EqualFold(name, wildcard) }
	return slices.ContainsFunc(certificates, func(names []string) bool { return slices.ContainsFunc(names, covers) })
}

// CertificateHost returns the first of the names of a certificate that can be the host of URIs for all clients: a DNS
// name of several labels without a wildcard, outside of localDomains. It returns "" if there is none.
func CertificateHost(names []string) string {
	for _, name := range names {
		top := name[strings.LastIndexByte(name, '.')+1:]
		isLocal := func(domain string) bool { return strings.EqualFold(domain, top) }
		if isHost(name) && !isAddress(name) && top != "" && top != name && !slices.ContainsFunc(localDomains, isLocal) {
			return strings.ToLower(name)
		}
	}
	return ""
}
