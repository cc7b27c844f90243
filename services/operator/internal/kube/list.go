package kube

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// eachItem calls visit with every object of a list.
func eachItem(list client.ObjectList, visit func(client.Object)) error {
	return meta.EachListItem(list, func(o runtime.Object) error {
		object, ok := o.(client.Object)
		if !ok {
			return fmt.Errorf("read list: %T is no object", o)
		}
		visit(object)
		return nil
	})
}
