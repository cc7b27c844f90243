package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// checkTime is how long a server may take to answer a check.
const checkTime = 30 * time.Second

// check asks a URL, and returns the exit code: 0 where somebody answers who can serve, whether or not we may have what we asked for. `helm test` runs it
// in a pod, to try the way to the auth service.
func check(ctx context.Context, url string, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	status, err := ask(ctx, url)
	if err != nil {
		fmt.Fprintf(stderr, "auth: check %s: %v\n", url, err)
		return exitFailure
	}
	fmt.Fprintf(stdout, "%s answers: %s\n", url, status)
	return 0
}

// ask returns the status of the answer. One that says that the server cannot serve is an error.
func ask(ctx context.Context, url string) (status string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
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
