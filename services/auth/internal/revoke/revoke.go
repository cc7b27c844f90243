// Package revoke stores revocations where the operator reads them: as Revocation objects in a cluster, or as manifests
// in its folder. The operator brings them to the dataplanes, and to this service, in the configs of the Gateways.
//
// # Files
//
//	revoke.go    revocations and their manifests
//	registry.go  revocations that this service has written, for credentials that are made before the configs arrive
//	folder.go    a store in a folder
//	cluster.go   a store in an API server
package revoke

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// Revocation is a revocation for Gateways of one namespace.
type Revocation struct {
	Namespace string
	// ID is the name of the object.
	ID string
	// Gateways are names of Gateways in the namespace; an empty list means all.
	Gateways []string
	// By is the hash of the caller that has made the revocation.
	By string
	// Version differs if the content differs. It is empty for a revocation that does not come from Store.List.
	Version string
	credential.Revocation
}

// Store keeps revocations. Its methods may be called from several goroutines.
type Store interface {
	// List returns the revocations that this service has written, including revocations of other replicas and expired
	// ones.
	List(ctx context.Context) ([]Revocation, error)
	// Put writes a revocation, in place of the one with its namespace and ID.
	Put(ctx context.Context, r Revocation) error
	// Delete removes a revocation with the given version, or with any version if version is empty. A missing revocation
	// is not an error.
	Delete(ctx context.Context, namespace, id, version string) error
}

// ErrForbidden is the error of a Store that the service is not allowed to use.
var ErrForbidden = errors.New("access to the store of revocations is denied")

// IDOf returns the ID of a revocation: the same for the same user or credential and the same targets, which are
// NAMESPACE/NAME of Gateways, or NAMESPACE/* for all of a namespace.
func IDOf(r credential.Revocation, targets []string) string {
	prefix, subject := "user-", r.User
	if r.Credential != "" {
		prefix, subject = "credential-", r.Credential
	}
	sorted := slices.Sorted(slices.Values(targets))
	sum := sha256.Sum256([]byte(prefix + "\n" + strings.Join(sorted, "\n") + "\n" + subject))
	return prefix + hex.EncodeToString(sum[:10])
}

// The parts of the manifest of a Revocation object. Package services/api/v1 has its Go type, which needs Kubernetes
// packages.
const (
	apiVersion = "stunner.l7mp.io/v1"
	kind       = "Revocation"
	// managedBy is the label of objects that this service has written. The service lists and deletes no others.
	managedBy, manager = "app.kubernetes.io/managed-by", "stunner-auth"
	revokedBy          = "stunner.l7mp.io/revoked-by"
)

type manifest struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Metadata   manifestMeta `json:"metadata"`
	Spec       manifestSpec `json:"spec"`
}

type manifestMeta struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace"`
	Labels          map[string]string `json:"labels"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
}

type manifestSpec struct {
	User         string     `json:"user,omitempty"`
	Credential   string     `json:"credential,omitempty"`
	IssuedBefore *time.Time `json:"issuedBefore,omitempty"`
	Until        *time.Time `json:"until,omitempty"`
	Gateways     []string   `json:"gateways,omitempty"`
}

func (r Revocation) manifest() manifest {
	m := manifest{
		APIVersion: apiVersion, Kind: kind,
		Metadata: manifestMeta{Name: r.ID, Namespace: r.Namespace, Labels: map[string]string{managedBy: manager}},
		Spec: manifestSpec{
			User: r.User, Credential: r.Credential, Gateways: r.Gateways, Until: new(time.Unix(r.Until, 0).UTC()),
		},
	}
	if r.By != "" {
		m.Metadata.Labels[revokedBy] = r.By
	}
	if r.IssuedBefore != 0 {
		m.Spec.IssuedBefore = new(time.Unix(r.IssuedBefore, 0).UTC())
	}
	return m
}

// revocation returns the revocation that a manifest describes. It returns false for objects that this service has not
// written.
func (m manifest) revocation() (r Revocation, ours bool) {
	if m.Metadata.Labels[managedBy] != manager || m.Kind != kind || m.Spec.Until == nil {
		return r, false
	}
	r = Revocation{Namespace: m.Metadata.Namespace, ID: m.Metadata.Name, Gateways: m.Spec.Gateways,
		By: m.Metadata.Labels[revokedBy], Version: m.Metadata.ResourceVersion}
	r.User, r.Credential, r.Until = m.Spec.User, m.Spec.Credential, m.Spec.Until.Unix()
	if m.Spec.IssuedBefore != nil {
		r.IssuedBefore = m.Spec.IssuedBefore.Unix()
	}
	return r, true
}
