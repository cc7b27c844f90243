package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// certificateInterval is the minimum time between two reads of the certificate, which may be a mounted Secret.
const certificateInterval = 10 * time.Second

// certificate is the certificate of the API, in two files. The files are read again at handshakes. If a file becomes
// invalid, or the two files do not match, for example in the middle of a change, the last valid certificate stays in
// use.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu      sync.Mutex
	readAt  time.Time
	pair    *tls.Certificate
	problem string // of the last read, which is logged once
}

func openCertificate(certFile, keyFile string, log *slog.Logger) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log}
	if err := c.read(); err != nil {
		return nil, err
	}
	return c, nil
}

// read reads both files.
func (c *certificate) read() error {
	c.readAt = time.Now()
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("read --tls-cert and --tls-key: %w", err)
	}
	if c.pair != nil && !pair.Leaf.Equal(c.pair.Leaf) {
		c.log.Info("certificate has changed", "file", c.certFile, "expires", pair.Leaf.NotAfter)
	}
	c.pair = &pair
	return nil
}

func (c *certificate) current(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.readAt) >= certificateInterval {
		problem := ""
		if err := c.read(); err != nil {
			if problem = err.Error(); problem != c.problem {
				c.log.Error("keep last valid certificate", "error", err)
			}
		}
		c.problem = problem
	}
	return c.pair, nil
}

// config returns the TLS configuration of the API.
func (c *certificate) config() *tls.Config {
	return &tls.Config{GetCertificate: c.current, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
}
