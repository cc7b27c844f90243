package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"testing/fstest"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"

	"github.com/stunner-gateway/stunner/tools/bill"
)

const (
	// user is the conventional non-root user. It is a number, because the kubelet cannot verify runAsNonRoot for a
	// name.
	user   = "65532:65532"
	folder = "/usr/local/bin"
	roots  = "etc/ssl/certs/ca-certificates.crt"
)

// demands are the required build settings.
var demands = []struct{ setting, value, why string }{
	{"GOOS", "linux", "the image is for Linux"},
	{"CGO_ENABLED", "0", "there is no C library in the image"},
	{"-trimpath", "true", "the image must not depend on the folder that it was built in"},
}

// index returns the image of a program for each of its architectures, on a layer that all images share.
func index(programs []bill.Program) (v1.ImageIndex, error) {
	certificates, err := layer(roots, 0o444, trusted())
	if err != nil {
		return nil, err
	}
	all := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range programs {
		i, err := image(p, certificates)
		if err != nil {
			return nil, err
		}
		all = mutate.AppendManifests(all, mutate.IndexAddendum{
			Add: i,
			Descriptor: v1.Descriptor{
				Platform: &v1.Platform{OS: p.Setting("GOOS"), Architecture: p.Setting("GOARCH")},
			},
		})
	}
	return all, nil
}

func image(p bill.Program, below v1.Layer) (v1.Image, error) {
	place := path.Join(folder, p.Name())
	own, err := layer(strings.TrimPrefix(place, "/"), 0o555, p.Content)
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	layered, err := mutate.AppendLayers(base, below, own)
	if err != nil {
		return nil, err
	}
	file, err := layered.ConfigFile()
	if err != nil {
		return nil, err
	}
	file.OS, file.Architecture = p.Setting("GOOS"), p.Setting("GOARCH")
	file.Created = v1.Time{Time: p.Created()}
	file.Config = v1.Config{
		User: user, Env: []string{"PATH=" + folder}, Entrypoint: []string{place}, WorkingDir: "/", Labels: labels(p),
	}
	configured, err := mutate.ConfigFile(layered, file)
	if err != nil {
		return nil, err
	}
	return mutate.Annotations(configured, labels(p)).(v1.Image), nil
}

// labels returns the labels of the OCI Image Format Specification, annotations.md.
func labels(p bill.Program) map[string]string {
	all := map[string]string{
		"title":     p.Name(),
		"source":    "https://" + bill.Repository,
		"licenses":  "Apache-2.0",
		"created":   p.Created().Format("2006-01-02T15:04:05Z"),
		"version":   p.Version(),
		"revision":  p.Setting("vcs.revision"),
		"base.name": "scratch",
	}
	named := map[string]string{"dev.golang.version": p.Info.GoVersion}
	for name, value := range all {
		if value != "" {
			named["org.opencontainers.image."+name] = value
		}
	}
	return named
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

// layer returns a layer of one file and its folders.
func layer(name string, mode fs.FileMode, content []byte) (v1.Layer, error) {
	files := fstest.MapFS{name: {Data: content, Mode: mode}}
	var plain bytes.Buffer
	if err := archive(&plain, files, mode); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(plain.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}

// archive writes a tar archive of files and their folders, without times and owners.
func archive(out io.Writer, files fs.FS, mode fs.FileMode) error {
	w := tar.NewWriter(out)
	err := fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		if d.IsDir() {
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755})
		}
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(mode), Size: int64(len(content))}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	})
	if err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	return w.Close() // writes the end of the archive
}
