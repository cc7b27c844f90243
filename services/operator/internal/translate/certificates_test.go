package translate_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// largeCertificate returns a Secret in the namespace of the only Gateway of the view, with a chain of about this many
// bytes.
func largeCertificate(t *testing.T, name string, size int) *corev1.Secret {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	one := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "media", Name: name},
		Data: map[string][]byte{
			"tls.crt": bytes.Repeat(one, max(1, size/len(one))),
			"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
		},
	}
}

// liveListeners are this many TLS listeners with references to each of these Secrets.
func liveListeners(listeners int, secrets ...string) (all []gwapiv1.Listener) {
	tls := &gwapiv1.ListenerTLSConfig{}
	for _, name := range secrets {
		tls.CertificateRefs = append(tls.CertificateRefs, gwapiv1.SecretObjectReference{Name: gwapiv1.ObjectName(name)})
	}
	for i := range listeners {
		all = append(all, gwapiv1.Listener{
			Name: gwapiv1.SectionName(fmt.Sprint("tls-", i)), Protocol: "TURN-TLS", Port: gwapiv1.PortNumber(5000 + i), TLS: tls,
		})
	}
	return all
}

// A translation takes little memory for any number of certificates of a Gateway. Listeners whose certificates do not
// fit have a condition about that, and the listeners before them are served.
func TestCertificatesAreCountedBeforeAConfigIsBuilt(t *testing.T) {
	w := newLiveView(1)
	var names []string
	for i := range 64 {
		names = append(names, fmt.Sprint("secret-", i))
		w.view.Put(largeCertificate(t, names[i], resource.MaxCertificateChain-1000))
	}
	gw := liveGateway(0, 0).DeepCopyObject().(*gwapiv1.Gateway)
	gw.Spec.Listeners = append([]gwapiv1.Listener{gw.Spec.Listeners[0]}, liveListeners(1, names[:4]...)...)
	all := liveListeners(16, names...)
	gw.Spec.Listeners = append(gw.Spec.Listeners, all[1:]...)
	gw.Generation++
	w.view.Put(gw)
	w.gateway() // the first translation parses the certificates
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r := w.gateway()
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 4*config.MaxDocument {
		t.Errorf("a translation takes %d bytes", took)
	}
	if r.Decision != translate.Served || len(r.Config.Listeners) != 2 || len(r.Config.Listeners[1].Certificates) != 3 {
		t.Fatalf("%s, %d listeners: want the first two served", r.Decision, len(r.Config.Listeners))
	}
	last := r.Status.Listeners[len(r.Status.Listeners)-1]
	if text := fmt.Sprint(last.Conditions); !strings.Contains(text, "there is room for") {
		t.Errorf("the last listener says %s", text)
	}
}

// A listener has a certificate once, however often it names the Secret.
func TestRepeatedReferenceIsOneCertificate(t *testing.T) {
	w := newLiveView(1)
	w.view.Put(largeCertificate(t, "one", 1000))
	gw := liveGateway(0, 0).DeepCopyObject().(*gwapiv1.Gateway)
	gw.Spec.Listeners = liveListeners(1, strings.Fields(strings.Repeat("one ", 64))...)
	gw.Generation++
	w.view.Put(gw)
	r := w.gateway()
	if r.Decision != translate.Served || len(r.Config.Listeners[0].Certificates) != 0 {
		t.Errorf("%s: %d more certificates", r.Decision, len(r.Config.Listeners[0].Certificates))
	}
}

// A Secret that contains more than a certificate has a message that names the limit. The limit of the size of the
// private key bounds the time that reading the private key takes.
func TestOversizedCertificateIsRefused(t *testing.T) {
	for key, limit := range map[string]int{"tls.crt": resource.MaxCertificateChain, "tls.key": resource.MaxCertificateKey} {
		s := largeCertificate(t, "large", 1000)
		s.Data[key] = append(s.Data[key], make([]byte, limit)...)
		if found := resource.ParseCertificate(s); !strings.Contains(found.Problem, fmt.Sprint(key, " has more than ", limit)) {
			t.Errorf("%s: %q", key, found.Problem)
		}
	}
}
