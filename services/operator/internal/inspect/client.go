package inspect

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// replicaTimeout is how long another replica may take to begin its answer. A replica sends the header before it asks
// pods.
const replicaTimeout = 2 * time.Second

// Client sends requests to other replicas.
type Client struct {
	http      *http.Client
	tokenFile string
}

// NewClient returns a client that authenticates with the token in a file, which is read for each request. With an empty
// path it sends no token.
func NewClient(security *tls.Config, tokenFile string) Client {
	return Client{tokenFile: tokenFile, http: &http.Client{
		// Proxy is not set, because a proxy would receive the token.
		Transport:     &http.Transport{TLSClientConfig: security, MaxIdleConnsPerHost: maxRequests, IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

var errSilentReplica = fmt.Errorf("it has not answered within %v", replicaTimeout)

// ask sends a request to a replica, which asks only the pods that are connected to it.
func (c Client) ask(ctx context.Context, replica string, q discovery.Query) (list inspection.List, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	path, query, _ := strings.Cut(q.Target, "?")
	if query != "" {
		query += "&"
	}
	at := gatewaysPath + q.ID + path
	if q.ID == "" {
		at = authPath
	}
	url := replica + at + "?" + query + localParameter + "=true"
	r, err := http.NewRequestWithContext(ctx, q.Method, url, nil)
	if err != nil {
		return list, err
	}
	if c.tokenFile != "" {
		token, err := os.ReadFile(c.tokenFile)
		if err != nil {
			return list, fmt.Errorf("read token of this replica: %w", err)
		}
		r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	silent := time.AfterFunc(replicaTimeout, func() { cancel(errSilentReplica) })
	resp, err := c.http.Do(r)
	silent.Stop()
	switch {
	case errors.Is(context.Cause(ctx), errSilentReplica):
		err = errors.Join(err, errSilentReplica)
		if resp != nil {
			resp.Body.Close()
		}
		return list, errSilentReplica
	case err != nil:
		return list, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 2*maxAnswer))
	if err != nil {
		return list, fmt.Errorf("read answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return list, fmt.Errorf("it answered with status %d: %s", resp.StatusCode, messageOf(body))
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return inspection.List{}, errors.New("its answer has another form than this release expects")
	}
	return list, nil
}

// maxMessage is the maximum length of the text of another replica in an answer in bytes.
const maxMessage = 200

// messageOf returns the text of an error answer.
func messageOf(body []byte) string {
	var answer Error
	if json.Unmarshal(body, &answer) != nil || len(answer.Message) > maxMessage || !printable(answer.Message) {
		return "without a message"
	}
	return answer.Message
}
