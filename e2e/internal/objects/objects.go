// Package objects reads YAML and applies it to the API server of a test.
package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	gwapiv1a2 "sigs.k8s.io/gateway-api/apis/v1alpha2"
	gwapiv1b1 "sigs.k8s.io/gateway-api/apis/v1beta1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// Scheme returns a scheme with the kinds of Kubernetes, of the Gateway API and of the product.
func Scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(
		clientgoscheme.AddToScheme(s), gwapiv1.Install(s), gwapiv1a2.Install(s), gwapiv1b1.Install(s),
		stunnerv1.AddToScheme(s),
	)
}

// Read decodes YAML documents. Namespaced objects without a namespace get the given one.
func Read(c client.Client, namespace, text string) (list []*unstructured.Unstructured, err error) {
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(o)
		switch {
		case errors.Is(err, io.EOF):
			return list, nil
		case err != nil:
			return nil, fmt.Errorf("read YAML: %w", err)
		case len(o.Object) == 0:
			continue
		}
		namespaced, err := c.IsObjectNamespaced(o)
		if err != nil {
			return nil, fmt.Errorf("read %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		if namespaced && o.GetNamespace() == "" {
			o.SetNamespace(namespace)
		}
		list = append(list, o)
	}
}

// Apply applies an object with server-side apply. The field manager is "tenant", and conflicts are forced.
func Apply(ctx context.Context, c client.Client, o *unstructured.Unstructured) error {
	err := c.Apply(
		ctx, client.ApplyConfigurationFromUnstructured(o.DeepCopy()), client.FieldOwner("tenant"),
		client.ForceOwnership,
	)
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}
