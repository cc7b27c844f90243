package cluster

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/util/jsonpath"
)

// fields reads fields of objects in this process. A kubectl process for each poll would cost 0.2 s of CPU time.
type fields struct {
	once   sync.Once
	err    error
	client dynamic.Interface
	mapper meta.ResettableRESTMapper
}

func (f *fields) connect(a Access) error {
	f.once.Do(func() {
		kinds, err := kubernetes.NewForConfig(a.Config)
		if err != nil {
			f.err = err
			return
		}
		f.client, f.err = dynamic.NewForConfig(a.Config)
		f.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(kinds.Discovery()))
	})
	return f.err
}

// Field returns a field of an object in the form that kubectl prints with a JSONPath. The object is
// RESOURCE[.GROUP]/NAME with the resource names that kubectl accepts. The result is "" if the field or the object does
// not exist.
func (c *Cluster) Field(ctx context.Context, namespace, object, path string) (string, error) {
	if err := c.fields.connect(c.Admin); err != nil {
		return "", err
	}
	resource, name, _ := strings.Cut(object, "/")
	mapping, err := c.mapping(resource)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", object, err)
	}
	var reader dynamic.ResourceInterface = c.fields.client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		reader = c.fields.client.Resource(mapping.Resource).Namespace(namespace)
	}
	found, err := reader.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read %s: %w", object, err)
	}
	query := jsonpath.New(object).AllowMissingKeys(true)
	if err := query.Parse("{" + path + "}"); err != nil {
		return "", fmt.Errorf("read %s of %s: %w", path, object, err)
	}
	var out bytes.Buffer
	err = query.Execute(&out, found.Object)
	return out.String(), err
}

// mapping returns the kind of a resource name: singular or plural, with or without group. If the name is unknown,
// discovery is refreshed.
func (c *Cluster) mapping(resource string) (*meta.RESTMapping, error) {
	partial := schema.ParseGroupResource(resource).WithVersion("")
	kind, err := c.fields.mapper.KindFor(partial)
	if meta.IsNoMatchError(err) { // the in-memory discovery cache counts as fresh, so the mapper does not retry itself
		c.fields.mapper.Reset()
		kind, err = c.fields.mapper.KindFor(partial)
	}
	if err != nil {
		return nil, err
	}
	return c.fields.mapper.RESTMapping(kind.GroupKind(), kind.Version)
}
