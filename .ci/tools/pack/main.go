// Command pack writes a container image of a program without a container engine: an OCI archive, and an SPDX bill of
// materials next to it.
//
//	pack -ref NAME:TAG -o ARCHIVE.tar PROGRAM...
//
// The programs are one Go program, built for one or several architectures. All metadata of the image are read from
// them, so packing the same programs gives the same image, byte for byte.
//
// ko needs a base image from a registry, and packs only programs that it builds itself. go-containerregistry would
// replace the OCI types and the blobs of image.go, some 100 lines. Its layouts are folders, which would still have to
// be archived here without times and owners.
//
// # Files
//
//	image.go      content of an image
//	materials.go  content of a bill of materials
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
)

func main() {
	ref := flag.String("ref", "", "name and tag of the image, such as ghcr.io/stunner-gateway/auth:v1.0.0")
	out := flag.String("o", "", "archive to write; NAME.spdx.json is written beside NAME.tar")
	flag.Parse()
	digest, err := pack(*ref, *out, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
	fmt.Printf("%s@%s\n", *ref, digest)
}

// pack writes the archive and the bill of materials, and returns the digest that the image is pulled by.
func pack(ref, out string, paths []string) (digest string, err error) {
	name, isTar := strings.CutSuffix(out, ".tar")
	switch {
	case !isTar:
		return "", fmt.Errorf("write archive %q: -o must end with .tar", out)
	case !strings.Contains(ref[strings.LastIndex(ref, "/")+1:], ":"):
		return "", fmt.Errorf("name image %q: -ref must be NAME:TAG", ref)
	case len(paths) == 0:
		return "", fmt.Errorf("pack %s: name the program, once for each architecture", ref)
	}
	var programs []program
	for _, path := range paths {
		p, err := open(path)
		if err != nil {
			return "", err
		}
		programs = append(programs, p)
	}
	image, err := layout(ref, programs)
	if err != nil {
		return "", err
	}
	bill, err := materials(programs)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(name+".spdx.json", bill, 0o644); err != nil {
		return "", err
	}
	return image.digest, os.WriteFile(out, image.archive, 0o644)
}
