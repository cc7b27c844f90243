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

// clients access the API server in this process as Admin. A kubectl process costs 0.2 s of CPU time.
type clients struct {
	once    sync.Once
	err     error
	kinds   kubernetes.Interface
	objects dynamic.Interface
	mapper  meta.ResettableRESTMapper
}

func (c *clients) connect(a Access) error {
	c.once.Do(func() {
		kinds, err := kubernetes.NewForConfig(a.Config)
		if err != nil {
			c.err = err
			return
		}
		c.kinds, c.mapper = kinds, restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(kinds.Discovery()))
		c.objects, c.err = dynamic.NewForConfig(a.Config)
	})
	return c.err
}

// Field returns a field of an object in the form that kubectl prints with a JSONPath. The object is
// RESOURCE[.GROUP]/NAME with the resource names that kubectl accepts. The result is "" if the field or the object does
// not exist.
func (c *Cluster) Field(ctx context.Context, namespace, object, path string) (string, error) {
	resource, name, _ := strings.Cut(object, "/")
	mapping, err := c.mapping(resource)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", object, err)
	}
	found, err := c.at(mapping, namespace).Get(ctx, name, metav1.GetOptions{})
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

// at returns the objects of a kind, in the namespace if the kind is namespaced.
func (c *Cluster) at(kind *meta.RESTMapping, namespace string) dynamic.ResourceInterface {
	return c.of(c.clients.objects, kind, namespace)
}

// of returns the objects of a kind for a given client, in the namespace if the kind is namespaced.
func (*Cluster) of(by dynamic.Interface, kind *meta.RESTMapping, namespace string) dynamic.ResourceInterface {
	all := by.Resource(kind.Resource)
	if kind.Scope.Name() == meta.RESTScopeNameNamespace {
		return all.Namespace(namespace)
	}
	return all
}

// mappingOf returns the REST mapping of a kind.
func (c *Cluster) mappingOf(kind schema.GroupVersionKind) (*meta.RESTMapping, error) {
	return c.find(func(m meta.RESTMapper) (*meta.RESTMapping, error) {
		return m.RESTMapping(kind.GroupKind(), kind.Version)
	})
}

// mapping returns the kind of a resource name: singular or plural, with or without group.
func (c *Cluster) mapping(resource string) (*meta.RESTMapping, error) {
	partial := schema.ParseGroupResource(resource).WithVersion("")
	return c.find(func(m meta.RESTMapper) (*meta.RESTMapping, error) {
		kind, err := m.KindFor(partial)
		if err != nil {
			return nil, err
		}
		return m.RESTMapping(kind.GroupKind(), kind.Version)
	})
}

// find looks up a kind. If the kind is unknown, discovery is refreshed: the in-memory discovery cache counts as fresh,
// so the mapper does not refresh it itself.
func (c *Cluster) find(look func(meta.RESTMapper) (*meta.RESTMapping, error)) (*meta.RESTMapping, error) {
	if err := c.clients.connect(c.Admin); err != nil {
		return nil, err
	}
	kind, err := look(c.clients.mapper)
	if meta.IsNoMatchError(err) {
		c.clients.mapper.Reset()
		kind, err = look(c.clients.mapper)
	}
	return kind, err
}
