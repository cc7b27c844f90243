package tenant

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const audience = "stunner-discovery"

// account makes a ServiceAccount of the tenant.
func (n *tenant) account(name string) *corev1.ServiceAccount {
	n.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: name}}
	if err := n.Create(n.Context(), account); !apierrors.IsAlreadyExists(err) {
		n.must(err)
	}
	return account
}

// podToken makes a pod of the tenant, unless there is one of the name, and a token that is bound to it, for config discovery.
func (n *tenant) podToken(name string, labels map[string]string) string {
	n.Helper()
	account := n.account("spy")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: name, Labels: labels}, Spec: corev1.PodSpec{
		ServiceAccountName: account.Name, NodeName: "worker-1", Containers: []corev1.Container{{Name: "spy", Image: "example.net/spy"}},
	}}
	if err := n.Create(n.Context(), pod); !apierrors.IsAlreadyExists(err) {
		n.must(err)
	}
	return n.tokenOf(account, &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: name}, audience)
}

// tokenOf asks for a token as the tenant.
func (n *tenant) tokenOf(account *corev1.ServiceAccount, bound *authenticationv1.BoundObjectReference, audiences ...string) string {
	n.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences, BoundObjectRef: bound}}
	n.must(n.SubResource("token").Create(n.Context(), account, request))
	return request.Status.Token
}

// secure is a client of config discovery that knows its CA.
var secure = sync.OnceValues(func() (*http.Client, error) {
	pem, err := os.ReadFile(house.ca)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	return &http.Client{
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, MaxIdleConnsPerHost: 64},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
})

// ask sends a request to config discovery.
func (n *tenant) ask(token, path string) (code int, body []byte) {
	n.Helper()
	client, err := secure()
	n.must(err)
	request, err := http.NewRequestWithContext(n.Context(), http.MethodGet, "https://localhost:"+portOf(house.discovery)+path, nil)
	n.must(err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	n.must(err)
	defer response.Body.Close()
	body, err = io.ReadAll(io.LimitReader(response.Body, 32<<20))
	n.must(err)
	return response.StatusCode, body
}
