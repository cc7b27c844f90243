package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// issue writes a self-signed certificate for 127.0.0.1 and its key to two files.
func issue(t *testing.T, certFile, keyFile string, serial int64) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: raw}, keyFile: {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// A changed certificate is used within seconds. An invalid certificate is ignored and logged once.
func TestCertificateIsReadAgain(t *testing.T) {
	folder := t.TempDir()
	cert, key := filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key")
	synctest.Test(t, func(t *testing.T) {
		first := issue(t, cert, key, 1)
		var logs bytes.Buffer
		c, err := openCertificate(cert, key, slog.New(slog.NewTextHandler(&logs, nil)))
		if err != nil {
			t.Fatal(err)
		}
		wants := func(step string, want *x509.Certificate) {
			t.Helper()
			if got, err := c.current(nil); err != nil || !got.Leaf.Equal(want) {
				t.Errorf("%s: %v", step, err)
			}
		}
		second := issue(t, cert, key, 2)
		wants("too early", first)
		time.Sleep(certificateInterval)
		wants("changed", second)
		issue(t, filepath.Join(folder, "other.crt"), key, 3) // the key of another certificate
		for range 3 {
			time.Sleep(certificateInterval)
			wants("a key that does not fit", second)
		}
		if err := os.Remove(cert); err != nil {
			t.Fatal(err)
		}
		time.Sleep(certificateInterval)
		wants("no file", second)
		fourth := issue(t, cert, key, 4)
		time.Sleep(certificateInterval)
		wants("valid again", fourth)
		if text := logs.String(); strings.Count(text, "keep last valid certificate") != 2 ||
			strings.Count(text, "certificate has changed") != 2 || strings.Contains(text, "PRIVATE") {
			t.Errorf("log:\n%s", text)
		}
	})
}

// With --tls-cert the API requires HTTPS with TLS 1.2 or later. A request over plain HTTP gets no credential.
func TestAPIOverTLS(t *testing.T) {
	folder := t.TempDir()
	cert, key := filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key")
	trusted := x509.NewCertPool()
	trusted.AddCert(issue(t, cert, key, 1))
	s := start(t, "--config", configFile(t), "--tls-cert", cert, "--tls-key", key)
	defer s.stop()
	get := func(scheme string, config *tls.Config) (int, error) {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
		defer client.CloseIdleConnections()
		answer, err := client.Get(strings.Replace(s.public, "http:", scheme+":", 1) + "/openapi.json")
		if err != nil {
			return 0, err
		}
		return answer.StatusCode, answer.Body.Close()
	}
	if status, err := get("https", &tls.Config{RootCAs: trusted}); err != nil || status != http.StatusOK {
		t.Errorf("status %d, %v", status, err)
	}
	if status, err := get("https", &tls.Config{RootCAs: trusted, MaxVersion: tls.VersionTLS11}); err == nil {
		t.Errorf("TLS 1.1: status %d", status)
	}
	if status, err := get("http", nil); err != nil || status != http.StatusBadRequest {
		t.Errorf("plain HTTP: status %d, %v", status, err)
	}
}

// A policy file configures the running service. An invalid policy file is an error with file, line and field.
func TestPolicyFlag(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("version: v1\nkeys:\n- name: shop\n  hashes: [sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b]\n")
	s := start(t, "--config", configFile(t), "--policy", path)
	defer s.stop()
	await(t, s.health+"/ready", http.StatusOK)
	for target, status := range map[string]int{"/?service=turn&key=secret": http.StatusOK, "/?service=turn": http.StatusUnauthorized} {
		answer, err := http.Get(s.public + target)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != status {
			t.Errorf("%s: status %d, want %d", target, answer.StatusCode, status)
		}
	}
	write("version: v1\nkeys:\n- nam: shop\n")
	var errs bytes.Buffer
	args := []string{"--config", configFile(t), "--policy", path, "--address", "127.0.0.1", "--port", "0", "--health-address", "127.0.0.1:0"}
	if code := command(t.Context(), args, none, &errs, &errs); code != exitFailure ||
		!strings.Contains(errs.String(), "policy.yaml:3: keys[0].nam: is unknown") {
		t.Errorf("exit code %d: %s", code, &errs)
	}
	http.DefaultClient.CloseIdleConnections()
}
