package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// fromServer are the fields that the API server sets. An object that was read from it is applied without them.
var fromServer = []string{"creationTimestamp", "generation", "managedFields", "resourceVersion", "uid"}

// Apply applies YAML documents like `kubectl apply --server-side --force-conflicts --validate=strict`. Namespaced
// objects without a namespace get the given one.
func (c *Cluster) Apply(ctx context.Context, namespace, text string) error {
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		o := &unstructured.Unstructured{}
		switch err := decoder.Decode(o); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read YAML: %w", err)
		case len(o.Object) == 0:
			continue
		}
		if err := c.apply(ctx, namespace, o); err != nil {
			return fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
}

func (c *Cluster) apply(ctx context.Context, namespace string, o *unstructured.Unstructured) error {
	for _, field := range fromServer {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(o.Object, "status")
	kind := o.GroupVersionKind()
	mapping, err := c.mappingOf(kind)
	if err != nil {
		return err
	}
	if o.GetNamespace() != "" {
		namespace = o.GetNamespace()
	}
	body, err := o.MarshalJSON()
	if err != nil {
		return err
	}
	_, err = c.at(mapping, namespace).Patch(ctx, o.GetName(), types.ApplyPatchType, body, metav1.PatchOptions{
		FieldManager: "test", Force: new(true), FieldValidation: metav1.FieldValidationStrict,
	})
	return err
}

// Patch patches an object, or a subresource of it. The object is named as for Field.
func (c *Cluster) Patch(
	ctx context.Context, namespace, object string, kind types.PatchType, patch string, subresource ...string,
) error {
	resource, name, _ := strings.Cut(object, "/")
	mapping, err := c.mapping(resource)
	if err == nil {
		_, err = c.at(mapping, namespace).Patch(ctx, name, kind, []byte(patch), metav1.PatchOptions{}, subresource...)
	}
	if err != nil {
		return fmt.Errorf("patch %s: %w", object, err)
	}
	return nil
}

// Delete deletes an object, named as for Field. An object that does not exist is no error.
func (c *Cluster) Delete(ctx context.Context, namespace, object string) error {
	resource, name, _ := strings.Cut(object, "/")
	mapping, err := c.mapping(resource)
	if err == nil {
		err = c.at(mapping, namespace).Delete(ctx, name, metav1.DeleteOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %s: %w", object, err)
	}
	return nil
}

// May reports whether a user has a right in a namespace, or in all namespaces if the name is empty. A subresource is
// RESOURCE/SUBRESOURCE.
func (c *Cluster) May(ctx context.Context, user, verb, resource, namespace string) (bool, error) {
	name, subresource, _ := strings.Cut(resource, "/")
	mapping, err := c.mapping(name)
	if err != nil {
		return false, fmt.Errorf("review %s %s: %w", verb, resource, err)
	}
	review, err := c.clients.kinds.AuthorizationV1().SubjectAccessReviews().Create(
		ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user, Groups: []string{"system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: verb, Group: mapping.Resource.Group, Resource: mapping.Resource.Resource,
				Subresource: subresource, Namespace: namespace,
			},
		}}, metav1.CreateOptions{},
	)
	if err != nil {
		return false, fmt.Errorf("review %s %s: %w", verb, resource, err)
	}
	return review.Status.Allowed, nil
}

// DryRun sends a request of a user to change objects in a namespace. The change is not stored. A command is one of
//
//	patch KIND NAME [--type=json] [--subresource=NAME]    input is a strategic merge patch, or the JSON patch
//	delete KIND NAME
//	create                                                input is a YAML object
//	create PATH                                           input is the body of a POST request
func (c *Cluster) DryRun(ctx context.Context, user, namespace, command, input string) error {
	words, form, subresources := []string{}, types.StrategicMergePatchType, []string{}
	for word := range strings.FieldsSeq(command) {
		name, isSub := strings.CutPrefix(word, "--subresource=")
		switch {
		case isSub:
			subresources = append(subresources, name)
		case word == "--type=json":
			form = types.JSONPatchType
		default:
			words = append(words, word)
		}
	}
	config := rest.CopyConfig(c.Admin.Config)
	config.Impersonate.UserName = user
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	in := func(kind *meta.RESTMapping) dynamic.ResourceInterface { return c.of(objects, kind, namespace) }
	all := []string{metav1.DryRunAll}
	switch {
	case len(words) == 2:
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		post := client.CoreV1().RESTClient().Post().AbsPath(words[1]).Param("dryRun", metav1.DryRunAll)
		return post.SetHeader("Content-Type", "application/json").Body([]byte(input)).Do(ctx).Error()
	case words[0] == "create":
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(input), &o.Object); err != nil {
			return fmt.Errorf("read YAML: %w", err)
		}
		kind, err := c.mappingOf(o.GroupVersionKind())
		if err != nil {
			return err
		}
		_, err = in(kind).Create(ctx, o, metav1.CreateOptions{DryRun: all})
		return err
	}
	kind, err := c.mapping(words[1])
	if err != nil {
		return err
	}
	if words[0] == "delete" {
		return in(kind).Delete(ctx, words[2], metav1.DeleteOptions{DryRun: all})
	}
	_, err = in(kind).Patch(ctx, words[2], form, []byte(input), metav1.PatchOptions{DryRun: all}, subresources...)
	return err
}
