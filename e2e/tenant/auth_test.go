package tenant

import (
	"io"
	"net/http"
	"strings"
)

// iceServers asks the auth service as a pod of the cluster does, without a token.
func (n *tenant) iceServers(body string) []byte {
	n.Helper()
	_, answer := n.post(nil, body)
	return answer
}

// post sends a request to the auth service.
func (n *tenant) post(header http.Header, body string) (code int, answer []byte) {
	n.Helper()
	request, err := http.NewRequestWithContext(n.Context(), http.MethodPost, "http://"+house.service+"/v1/ice-servers", strings.NewReader(body))
	n.must(err)
	for key, values := range header {
		request.Header[key] = values
	}
	request.Header.Set("Content-Type", "application/json")
	return n.answer(request)
}

func (n *tenant) answer(request *http.Request) (code int, answer []byte) {
	n.Helper()
	response, err := http.DefaultClient.Do(request)
	n.must(err)
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	n.must(err)
	return response.StatusCode, answer
}
