package kube

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// intake is the ledger of the memory that the objects of each namespace take in this process. An object is counted when
// it arrives, before anything is built from it. If the object does not fit into the memory of its namespace, its
// content is not kept: nothing changes for other namespaces, and the version that was read before stays in force. The
// reason is logged and is in the status of the object, see resource.Unread.
//
// An object that does not fit is read as soon as it fits: retry returns it when other objects of the namespace shrink
// or are deleted.
type intake struct {
	// total is the number of bytes for all objects; 0 means unlimited.
	total int
	log   *slog.Logger
	// freed receives a value when an object that was not read may fit into the memory of its namespace.
	// freedForCertificates receives one when more certificates may fit.
	freed, freedForCertificates chan struct{}

	mu       sync.Mutex
	used     int
	accounts map[string]*account
}

// account are the objects of one namespace. A Namespace is in the account of its own name, other cluster-scoped objects
// are in the account "".
type account struct {
	used    int
	counted map[objectID]counted
	// unread are the objects that do not fit, with the number of bytes that they need.
	unread map[objectID]unread
}

// counted is the counted memory of an object that was read.
type counted struct {
	uid   types.UID
	price int
}

// unread is an object whose content was not kept.
type unread struct {
	object resource.Object
	price  int
}

func newIntake(total int, log *slog.Logger) *intake {
	return &intake{total: total, log: log, freed: make(chan struct{}, 1), freedForCertificates: make(chan struct{}, 1),
		accounts: map[string]*account{}}
}

// Shares of the total that one namespace may use. All cluster-scoped objects except Namespaces together have the share
// of one namespace.
const (
	// namespaceShare is the divisor for the largest part of a namespace.
	namespaceShare = 4
	// reservedShare is the divisor for the part that is reserved for namespaces that use little.
	reservedShare = 5
	// littleShare is the divisor below which a namespace uses little.
	littleShare = 64
)

// gatewayPrice is the memory in bytes that a Gateway takes in addition to its own size, without listeners: its config,
// frame and generated objects. gatewayFactor is the number of copies of its listeners, labels and annotations in
// config, frame and objects.
const (
	gatewayPrice  = 64 << 10
	gatewayFactor = 8
)

// priceOf returns how many bytes of memory the operator takes because of an object.
func priceOf(o resource.Object) int {
	size := sizeOf(o)
	if _, ok := o.(*gwapiv1.Gateway); ok {
		return gatewayPrice + gatewayFactor*size
	}
	return size
}

// transform returns a cache.TransformFunc that applies trim, which removes the fields that the operator does not need.
// It then removes the content of an object that does not fit into the memory of its namespace.
func (i *intake) transform(trim toolscache.TransformFunc) toolscache.TransformFunc {
	return func(payload any) (any, error) {
		if o, ok := payload.(resource.Object); ok && i.isStub(o) {
			return o, nil // informers transform some objects twice
		}
		payload, err := trim(payload)
		o, ok := payload.(resource.Object)
		if err != nil || !ok {
			return payload, err // cache.DeletedFinalStateUnknown
		}
		return i.admit(o), nil
	}
}

// isStub reports whether admit has removed the content of an object.
func (i *intake) isStub(o resource.Object) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	a := i.accounts[accountOf(o)]
	return a != nil && a.unread[idOf(o)].object == o
}

// admit counts an object. It returns the object. If the object does not fit into the memory of its namespace, it
// returns only its metadata.
func (i *intake) admit(o resource.Object) resource.Object {
	if annotations := o.GetAnnotations(); annotations != nil { // only the operator may set these
		delete(annotations, resource.UnreadAnnotation)
		delete(annotations, resource.EmptyAnnotation)
		o.SetAnnotations(annotations)
	}
	if _, metadataOnly := o.(*metav1.PartialObjectMetadata); i.total == 0 || metadataOnly {
		return o
	}
	name, id, price := accountOf(o), idOf(o), priceOf(o)
	i.mu.Lock()
	defer i.mu.Unlock()
	a := i.account(name)
	before := a.counted[id].price
	if reason := i.refusal(name, a, price-before, price); reason != "" {
		stub := withoutContent(o, reason)
		if _, known := a.unread[id]; !known {
			i.log.Warn("object not read, what was read before stays in force", "object", describe(o), "reason", reason)
		}
		a.unread[id] = unread{stub, price}
		return stub
	}
	delete(a.unread, id)
	a.counted[id] = counted{o.GetUID(), price}
	i.add(a, price-before)
	return o
}

// refusal returns why a namespace must not grow by some bytes because of an object. It returns "" if the namespace may
// grow.
func (i *intake) refusal(name string, a *account, growth, price int) string {
	most, others := i.total/namespaceShare, "other objects of its namespace"
	if name == "" {
		others = "other cluster-scoped objects"
	}
	rest := i.total - i.total/reservedShare - i.used
	if a.used+growth <= i.total/littleShare {
		rest = i.total - i.used
	}
	if growth <= 0 || a.used+growth <= most && growth <= rest {
		return ""
	}
	return fmt.Sprintf("it takes %d bytes of the operator's memory, and the %s take %d of %d",
		price, others, a.used+growth-price, min(most, a.used+rest))
}

// add changes the number of bytes of an account, and wakes the reader of unread objects if the account shrinks.
func (i *intake) add(a *account, growth int) {
	a.used += growth
	i.used += growth
	if growth < 0 {
		notify(i.freed)
		notify(i.freedForCertificates)
	}
}

// remove subtracts a deleted object from the account of its namespace.
func (i *intake) remove(o resource.Object) {
	i.mu.Lock()
	defer i.mu.Unlock()
	name, id := accountOf(o), idOf(o)
	a := i.accounts[name]
	if a == nil {
		return
	}
	if u, ok := a.unread[id]; ok && u.object.GetUID() == o.GetUID() {
		delete(a.unread, id)
	}
	if c, ok := a.counted[id]; ok && c.uid == o.GetUID() { // another object of the same name may have been counted already
		delete(a.counted, id)
		i.add(a, -c.price)
	}
	i.prune(name, a)
}

// certificateCopies is how often the operator has the certificates of a Gateway in memory: encoded in the config, in
// the frame for readers, and while the standby Secret is written.
const certificateCopies = 3

// certificatesOf identifies the certificates in the config of a Gateway in an account.
func certificatesOf(gateway types.NamespacedName) objectID {
	return objectID{kind: schema.GroupKind{Kind: "certificates"}, name: gateway}
}

// certificateRoom returns the maximum size in bytes of the certificates of a Gateway; 0 means unlimited.
func (i *intake) certificateRoom(gateway types.NamespacedName) int {
	if i.total == 0 {
		return 0
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	a := cmp.Or(i.accounts[gateway.Namespace], &account{})
	room := min(i.total/namespaceShare-a.used, i.total-i.total/reservedShare-i.used)
	room = max(room, i.total/littleShare-a.used)
	return max(1, (room+a.counted[certificatesOf(gateway)].price)/certificateCopies)
}

// countCertificates counts the certificates of a Gateway, whose size is at most certificateRoom.
func (i *intake) countCertificates(gateway types.NamespacedName, size int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	a, id := i.account(gateway.Namespace), certificatesOf(gateway)
	now := counted{price: size * certificateCopies}
	i.add(a, now.price-a.counted[id].price)
	if a.counted[id] = now; size == 0 {
		delete(a.counted, id)
	}
	i.prune(gateway.Namespace, a)
}

// prune removes an account without objects.
func (i *intake) prune(name string, a *account) {
	if len(a.counted)+len(a.unread) == 0 {
		delete(i.accounts, name)
	}
}

func (i *intake) account(name string) *account {
	a := i.accounts[name]
	if a == nil {
		a = &account{counted: map[objectID]counted{}, unread: map[objectID]unread{}}
		i.accounts[name] = a
	}
	return a
}

// retry returns the unread objects that now fit: of each namespace, as many as fit together.
func (i *intake) retry() (objects []resource.Object) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for name, a := range i.accounts {
		room := 0
		for id, u := range a.unread {
			growth := u.price - a.counted[id].price
			if i.refusal(name, a, room+growth, u.price) == "" {
				room += growth
				objects = append(objects, u.object)
			}
		}
	}
	return objects
}

// unreadObjects returns the number of objects whose content was not kept.
func (i *intake) unreadObjects() (n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, a := range i.accounts {
		n += len(a.unread)
	}
	return n
}

// accountOf returns the name of the account of an object.
func accountOf(o resource.Object) string {
	if _, ok := o.(*corev1.Namespace); ok {
		return o.GetName()
	}
	return o.GetNamespace()
}

// maxStubStatus is the maximum size in bytes of a status that an unread object keeps. A larger one was not written by
// this operator, which replaces it.
const maxStubStatus = 64 << 10

// withoutContent returns an object with only the metadata that identifies it, its generation, and the reason why it was
// not read. An object whose status the operator writes keeps its status, and the fields that show whether the object
// belongs to this operator.
func withoutContent(o resource.Object, reason string) resource.Object {
	stub := reflect.New(reflect.TypeOf(o).Elem()).Interface().(resource.Object)
	stub.GetObjectKind().SetGroupVersionKind(o.GetObjectKind().GroupVersionKind())
	stub.SetNamespace(o.GetNamespace())
	stub.SetName(o.GetName())
	stub.SetUID(o.GetUID())
	stub.SetResourceVersion(o.GetResourceVersion())
	stub.SetGeneration(o.GetGeneration())
	stub.SetCreationTimestamp(o.GetCreationTimestamp())
	stub.SetDeletionTimestamp(o.GetDeletionTimestamp())
	stub.SetAnnotations(map[string]string{resource.UnreadAnnotation: reason, resource.EmptyAnnotation: "true"})
	if _, translated := translate.RefOf(o); !translated {
		return stub
	}
	from, to := reflect.ValueOf(o).Elem(), reflect.ValueOf(stub).Elem()
	for _, name := range []string{"GatewayClassName", "ControllerName", "ParentRefs"} {
		if field := from.FieldByName("Spec").FieldByName(name); field.IsValid() {
			to.FieldByName("Spec").FieldByName(name).Set(field)
		}
	}
	if status := from.FieldByName("Status"); sizeOf(status.Interface()) <= maxStubStatus {
		to.FieldByName("Status").Set(status)
	}
	return stub
}

// lastRead returns an object for the view in place of an object that was not read: the version that was read last, with
// the metadata and status of the current version. before is the object in the view, or nil.
func lastRead(before, stub resource.Object) resource.Object {
	if before == nil || resource.Empty(before) != "" {
		return stub
	}
	o := before.DeepCopyObject().(resource.Object)
	o.SetResourceVersion(stub.GetResourceVersion())
	o.SetGeneration(stub.GetGeneration())
	annotations := maps.Clone(o.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[resource.UnreadAnnotation] = resource.Unread(stub)
	o.SetAnnotations(annotations)
	if from := reflect.ValueOf(stub).Elem().FieldByName("Status"); from.IsValid() {
		reflect.ValueOf(o).Elem().FieldByName("Status").Set(from)
	}
	return o
}

// releasing returns an event handler that ends the count of deleted objects before it calls next.
func (i *intake) releasing(next toolscache.ResourceEventHandler) toolscache.ResourceEventHandler {
	return releasingHandler{next, i}
}

type releasingHandler struct {
	toolscache.ResourceEventHandler
	intake *intake
}

// OnDelete implements toolscache.ResourceEventHandler.
func (h releasingHandler) OnDelete(payload any) {
	if o, ok := objectOf(payload); ok {
		h.intake.remove(o)
	}
	h.ResourceEventHandler.OnDelete(payload)
}

// run reads unread objects again when they fit, until ctx ends. refetch fetches the content of a Secret. Gateways whose
// certificates did not fit are translated again.
func (i *intake) run(
	ctx context.Context, t *task, c client.Reader, in *inbox, refetch func(types.NamespacedName),
) {
	read := i.transform(trimForCache)
	for {
		select {
		case <-ctx.Done():
			return
		case <-i.freed:
		}
		t.begin()
		for _, stub := range i.retry() {
			if _, secret := stub.(*corev1.Secret); secret {
				refetch(resource.KeyOf(stub))
				continue
			}
			i.readAgain(ctx, c, in, stub, read)
		}
		t.end()
	}
}

// readAgain reads an object from the API server, and passes it to the loop if it fits.
func (i *intake) readAgain(
	ctx context.Context, c client.Reader, in *inbox, stub resource.Object, transform toolscache.TransformFunc,
) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	o := reflect.New(reflect.TypeOf(stub).Elem()).Interface().(client.Object)
	o.GetObjectKind().SetGroupVersionKind(stub.GetObjectKind().GroupVersionKind())
	switch err := c.Get(ctx, resource.KeyOf(stub), o); {
	case apierrors.IsNotFound(err):
		i.remove(stub)
		return
	case err != nil:
		i.log.Warn("cannot read an object for which there is room now", "object", describe(stub), "error", err)
		return
	}
	if read, err := transform(o); err == nil {
		in.putNewer(read.(resource.Object))
	}
}
