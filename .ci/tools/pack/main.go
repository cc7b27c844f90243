// Command pack writes a container image of a program without a container engine: an OCI archive, and an SPDX bill of
// materials next to it.
//
//	pack -ref NAME:TAG -o ARCHIVE.tar PROGRAM...
//
// The programs are one Go program, built for one or several architectures. All metadata of the image are read from
// them, except for the version, which is the tag. So packing the same programs gives the same image, byte for byte.
//
// ko needs a base image from a registry, and packs only programs that it builds itself. Layouts of go-containerregistry
// are folders; they are archived here without times and owners.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/spdx/tools-golang/json"

	"github.com/stunner-gateway/stunner/tools/bill"
)

// root is the folder of the repository, seen from that of the tools.
const root = "../.."

func main() {
	ref := flag.String("ref", "", "name and tag of the image, such as ghcr.io/stunner-gateway/auth:v1.0.0")
	out := flag.String("o", "", "archive to write; NAME.spdx.json is written beside NAME.tar")
	flag.Parse()
	digest, err := pack(root, *ref, *out, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
	fmt.Printf("%s@%s\n", *ref, digest)
}

// pack writes the archive and the bill of materials, and returns the digest that the image is pulled by.
func pack(root, ref, out string, paths []string) (digest string, err error) {
	base, isTar := strings.CutSuffix(out, ".tar")
	colon := strings.LastIndex(ref, ":")
	switch {
	case !isTar:
		return "", fmt.Errorf("write archive %q: -o must end with .tar", out)
	case colon <= strings.LastIndex(ref, "/"):
		return "", fmt.Errorf("name image %q: -ref must be NAME:TAG", ref)
	case len(paths) == 0:
		return "", fmt.Errorf("pack %s: name the program, once for each architecture", ref)
	}
	name, tag := ref[:colon], ref[colon+1:]
	var programs []bill.Program
	for _, file := range paths {
		p, err := open(file, tag)
		if err != nil {
			return "", err
		}
		programs = append(programs, p)
	}
	content, digest, err := archived(ref, tag, programs)
	if err != nil {
		return "", fmt.Errorf("pack %s: %w", ref, err)
	}
	materials, err := materials(root, programs, bill.Image{Name: name, Tag: tag, Digest: digest})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(base+".spdx.json", materials, 0o644); err != nil {
		return "", err
	}
	return digest, os.WriteFile(out, content, 0o644)
}

func open(file, release string) (bill.Program, error) {
	p, err := bill.Open(file, release)
	if err != nil {
		return p, err
	}
	for _, d := range demands {
		if got := p.Setting(d.setting); got != d.value {
			return p, fmt.Errorf("pack %s: it was built with %s=%q: build with %s=%s, because %s",
				file, d.setting, got, d.setting, d.value, d.why)
		}
	}
	return p, nil
}

// archived returns the OCI image layout of programs in one file.
func archived(ref, tag string, programs []bill.Program) (content []byte, digest string, err error) {
	all, err := index(programs)
	if err != nil {
		return nil, "", err
	}
	hash, err := all.Digest()
	if err != nil {
		return nil, "", err
	}
	folder, err := os.MkdirTemp("", "layout")
	if err != nil {
		return nil, "", err
	}
	defer os.RemoveAll(folder)
	files, err := layout.Write(folder, empty.Index)
	if err != nil {
		return nil, "", err
	}
	if err := files.AppendIndex(all, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          ref, // the name that `ctr images import` uses
		"org.opencontainers.image.ref.name": tag,
	})); err != nil {
		return nil, "", err
	}
	var out bytes.Buffer
	err = archive(&out, os.DirFS(folder), 0o644)
	return out.Bytes(), hash.String(), err
}

// rootsModule provides the certificate authorities; this program packs the version that it is built with.
const rootsModule = "golang.org/x/crypto/x509roots/fallback"

// materials returns the bill of materials of an image.
func materials(root string, programs []bill.Program, image bill.Image) ([]byte, error) {
	self, ok := debug.ReadBuildInfo()
	if !ok {
		return nil, fmt.Errorf("list materials of %s: pack was built without modules: run it with `go run`", image.Name)
	}
	for _, m := range self.Deps {
		if m.Path == rootsModule {
			image.Files = append(image.Files, bill.Module{Path: m.Path, Version: m.Version, Sum: m.Sum})
		}
	}
	d, err := bill.Document(root, programs, &image)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = json.Write(d, &out, json.Indent("  "), json.EscapeHTML(false))
	return out.Bytes(), err
}
