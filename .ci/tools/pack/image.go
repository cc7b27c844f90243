package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const (
	// user is the conventional non-root user. It is a number, because the kubelet cannot verify runAsNonRoot for a
	// name.
	user   = "65532:65532"
	folder = "/usr/local/bin"
	roots  = "etc/ssl/certs/ca-certificates.crt"

	mediaIndex    = "application/vnd.oci.image.index.v1+json"
	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaConfig   = "application/vnd.oci.image.config.v1+json"
	mediaLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// The used part of the OCI Image Format Specification.
type (
	descriptor struct {
		MediaType   string            `json:"mediaType"`
		Digest      string            `json:"digest"`
		Size        int               `json:"size"`
		Annotations map[string]string `json:"annotations,omitempty"`
		Platform    *platform         `json:"platform,omitempty"`
	}
	platform struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
	}
	index struct {
		SchemaVersion int          `json:"schemaVersion"`
		MediaType     string       `json:"mediaType"`
		Manifests     []descriptor `json:"manifests"`
	}
	manifest struct {
		SchemaVersion int               `json:"schemaVersion"`
		MediaType     string            `json:"mediaType"`
		Config        descriptor        `json:"config"`
		Layers        []descriptor      `json:"layers"`
		Annotations   map[string]string `json:"annotations,omitempty"`
	}
	imageConfig struct {
		platform
		Created string   `json:"created"`
		Config  settings `json:"config"`
		RootFS  rootFS   `json:"rootfs"`
	}
	settings struct {
		User       string            `json:"User"`
		Env        []string          `json:"Env"`
		Entrypoint []string          `json:"Entrypoint"`
		WorkingDir string            `json:"WorkingDir"`
		Labels     map[string]string `json:"Labels"`
	}
	rootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	}
)

// file of an archive.
type file struct {
	name    string
	mode    int64
	content []byte
}

// image is an OCI image layout in one file.
type image struct {
	digest  string
	archive []byte
}

func layout(ref string, programs []program) (image, error) {
	b := blobs{}
	certificates, err := b.layer(file{roots, 0o444, trusted()})
	if err != nil {
		return image{}, err
	}
	platforms := index{SchemaVersion: 2, MediaType: mediaIndex}
	for _, p := range programs {
		d, err := b.program(p, certificates)
		if err != nil {
			return image{}, err
		}
		platforms.Manifests = append(platforms.Manifests, d)
	}
	top, err := b.document(mediaIndex, platforms)
	if err != nil {
		return image{}, err
	}
	digest := top.Digest
	top.Annotations = map[string]string{
		"io.containerd.image.name":          ref, // the name that `ctr images import` uses
		"org.opencontainers.image.ref.name": ref[strings.LastIndex(ref, ":")+1:],
	}
	entry, err := json.Marshal(index{SchemaVersion: 2, MediaType: mediaIndex, Manifests: []descriptor{top}})
	if err != nil {
		return image{}, err
	}
	files := []file{{"oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)}, {"index.json", 0o644, entry}}
	for _, d := range slices.Sorted(maps.Keys(b)) {
		files = append(files, file{"blobs/sha256/" + strings.TrimPrefix(d, "sha256:"), 0o644, b[d]})
	}
	archive, err := archived(files...)
	return image{digest: digest, archive: archive}, err
}

// blobs are the blobs of a layout by digest.
type blobs map[string][]byte

func (b blobs) put(mediaType string, content []byte) descriptor {
	d := sum(content)
	b[d] = content
	return descriptor{MediaType: mediaType, Digest: d, Size: len(content)}
}

func (b blobs) document(mediaType string, v any) (descriptor, error) {
	content, err := json.Marshal(v)
	return b.put(mediaType, content), err
}

// layer is a layer of a file system; diff is the digest of the uncompressed layer.
type layer struct {
	descriptor
	diff string
}

func (b blobs) layer(files ...file) (layer, error) {
	plain, err := archived(files...)
	if err != nil {
		return layer{}, err
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed) // its header has no time
	if _, err := w.Write(plain); err != nil {
		return layer{}, err
	}
	if err := w.Close(); err != nil {
		return layer{}, err
	}
	return layer{b.put(mediaLayer, packed.Bytes()), sum(plain)}, nil
}

// program adds the image of a program for its architecture, on a layer that all images share.
func (b blobs) program(p program, below layer) (descriptor, error) {
	place := path.Join(folder, p.name())
	own, err := b.layer(file{strings.TrimPrefix(place, "/"), 0o555, p.content})
	if err != nil {
		return descriptor{}, err
	}
	on := platform{Architecture: p.setting("GOARCH"), OS: p.setting("GOOS")}
	config, err := b.document(mediaConfig, imageConfig{
		platform: on,
		Created:  p.created().Format("2006-01-02T15:04:05Z"),
		Config: settings{
			User: user, Env: []string{"PATH=" + folder}, Entrypoint: []string{place}, WorkingDir: "/",
			Labels: p.labels(),
		},
		RootFS: rootFS{Type: "layers", DiffIDs: []string{below.diff, own.diff}},
	})
	if err != nil {
		return descriptor{}, err
	}
	d, err := b.document(mediaManifest, manifest{
		SchemaVersion: 2, MediaType: mediaManifest, Config: config,
		Layers: []descriptor{below.descriptor, own.descriptor}, Annotations: p.labels(),
	})
	d.Platform = &on
	return d, err
}

// labels returns the labels of the OCI Image Format Specification, annotations.md.
func (p program) labels() map[string]string {
	l := map[string]string{
		"org.opencontainers.image.title":    p.name(),
		"org.opencontainers.image.source":   "https://" + repository,
		"org.opencontainers.image.licenses": "Apache-2.0",
		"org.opencontainers.image.created":  p.created().Format("2006-01-02T15:04:05Z"),
	}
	for label, value := range map[string]string{"version": p.version(), "revision": p.setting("vcs.revision")} {
		if value != "" {
			l["org.opencontainers.image."+label] = value
		}
	}
	return l
}

// trusted returns the certificate authorities of Mozilla's list in PEM. Authorities with a constraint are omitted,
// because a file cannot express it.
func trusted() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	return out.Bytes()
}

// archived returns a tar archive of files and their folders, without times and owners.
func archived(files ...file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	made := map[string]bool{".": true}
	for _, f := range files {
		for _, dir := range parents(f.name) {
			if made[dir] {
				continue
			}
			made[dir] = true
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}); err != nil {
				return nil, err
			}
		}
		if err := w.WriteHeader(
			&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.content))},
		); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil { // writes the end of the archive
		return nil, err
	}
	return out.Bytes(), nil
}

// parents returns the parent folders of a path, outermost first.
func parents(name string) (dirs []string) {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		dirs = append([]string{dir}, dirs...)
	}
	return dirs
}

func sum(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }
