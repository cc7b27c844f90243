package kube

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stunner-gateway/stunner/services/api/snapshot"
)

// For random valid and invalid objects, a second operator does not change the results of the first operator, although
// the API server sets defaults and normalizes values. The test does not run in parallel, because every operator
// processes all StaticServices.
func TestRestartOverRandomObjectsWritesNothing(t *testing.T) {
	const snapshots, seed = 25, 20
	s := prepare(t, t.TempDir(), nameOf(t)) // standby Secrets follow endpoints late, so the operator starts last
	p := s.proxied()
	admin := s.tenant(t)
	var err error
	quick := rest.CopyConfig(control.Admin.Config)
	quick.QPS = -1
	admin.Client, err = client.New(quick, client.Options{Scheme: admin.Scheme()})
	s.must(err)
	begun := time.Now()
	made, refused := 0, 0
	for n := range uint64(snapshots) {
		namespace := fmt.Sprintf("%s-%d", s.name, n)
		objects := []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}}
		for _, o := range snapshot.Make(rand.New(rand.NewPCG(seed, n)), namespace, s.controller()) {
			objects = append(objects, o)
		}
		for _, o := range objects {
			err := admin.Create(t.Context(), o)
			if apierrors.IsInvalid(err) { // the API server rejects the object
				refused++
				continue
			}
			s.must(err)
			made++
			if o.GetNamespace() == "" {
				s.Cleanup(func() { s.must(admin.Delete(context.Background(), o)) })
			}
		}
	}
	s.startWatching("")
	s.Cleanup(func() { s.must(s.process.Kill()) }) // the operator must not react to the clean-up
	// The answer to a write may cause other writes, and events of different kinds arrive in any order. Only two rounds
	// without a write show that the operator has finished.
	for rounds := 0; rounds < 2; rounds++ {
		since, busy := time.Now(), p.busy()
		s.processed()
		if busy || len(s.outside(p, since)) > 0 {
			rounds = -1
		}
	}
	wrote := len(s.outside(p, begun))
	t.Logf(
		"%d objects, %d rejected by the API server; %d writes in %s", made, refused, wrote,
		time.Since(begun).Round(time.Second),
	)
	if made < 10*snapshots || wrote < 5*snapshots {
		t.Error("too few writes for a meaningful test")
	}

	s.stop()
	restarted := time.Now()
	s.startWatching("")
	s.leads()
	for range 2 {
		s.processed()
	}
	for _, w := range s.outside(p, restarted) {
		t.Errorf("unneeded write: %s", w.what)
	}
}

// outside returns the writes since a time to objects outside the namespace of the test.
func (s *installation) outside(p *proxy, since time.Time) (list []write) {
	for _, w := range p.since(since) {
		if !strings.Contains(w.what, "/namespaces/"+s.name+"/") {
			list = append(list, w)
		}
	}
	return list
}
