package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// check repeats its request after checkInterval until the server answers with a status below 500 or checkTimeout has
// passed. It repeats the request because a node routes connections of a Service to a pod only some time after the pod
// has become ready.
const (
	checkTimeout  = 30 * time.Second
	checkInterval = 250 * time.Millisecond
)

// check requests a URL, repeatedly until checkTimeout has passed, and returns the exit code: 0 once the server answers
// with a status below 500. `helm test` runs it in a pod to test the connection to the auth service.
func check(ctx context.Context, url string, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		fmt.Fprintf(stderr, "auth: check %s: %v\n", url, err)
		return exitFailure
	}
	for {
		status, err := get(request)
		if err == nil {
			fmt.Fprintf(stdout, "%s answers: %s\n", url, status)
			return 0
		}
		fmt.Fprintf(stderr, "auth: check %s: %v\n", url, err)
		select {
		case <-time.After(checkInterval):
		case <-ctx.Done():
			return exitFailure
		}
	}
}

// get makes a request and returns the HTTP status of its answer. A status of 500 or above is an error.
func get(request *http.Request) (status string, err error) {
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	if answer.StatusCode >= http.StatusInternalServerError {
		return "", fmt.Errorf("answer %s: see the log of the service", answer.Status)
	}
	return answer.Status, nil
}
