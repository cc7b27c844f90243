package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stunner-gateway/stunner/tools/bill"
)

// The documents about the other files of a release.
const (
	provenanceFile = "provenance.intoto.json"
	sumsFile       = "SHA256SUMS"
	imagesFile     = "images.txt" // NAME:TAG@DIGEST of each image
)

// source is where a release comes from.
type source struct{ version, commit, builder, invocation string }

// The statement of in-toto with a predicate of SLSA, version 1, with the fields that a release has. It has no times, so
// that the same sources give the same bytes.
type (
	statement struct {
		Type          string       `json:"_type"`
		Subject       []descriptor `json:"subject"`
		PredicateType string       `json:"predicateType"`
		Predicate     predicate    `json:"predicate"`
	}
	descriptor struct {
		Name   string            `json:"name,omitempty"`
		URI    string            `json:"uri,omitempty"`
		Digest map[string]string `json:"digest"`
	}
	predicate struct {
		BuildDefinition definition `json:"buildDefinition"`
		RunDetails      details    `json:"runDetails"`
	}
	definition struct {
		BuildType            string            `json:"buildType"`
		ExternalParameters   map[string]string `json:"externalParameters"`
		ResolvedDependencies []descriptor      `json:"resolvedDependencies"`
	}
	details struct {
		Builder  map[string]string `json:"builder"`
		Metadata map[string]string `json:"metadata,omitempty"`
	}
)

// buildType names how the files are built: by .ci/release, with the tag as its argument.
const buildType = "https://" + bill.Repository + "/blob/main/docs/releases.md#provenance"

// writeProvenance writes the provenance of the files of a folder and of the images in its list.
func writeProvenance(folder string, from source) error {
	for field, value := range map[string]string{
		"version": from.version, "commit": from.commit, "builder": from.builder,
	} {
		if value == "" {
			return fmt.Errorf("write provenance: -%s is missing", field)
		}
	}
	subjects, err := subjects(folder)
	if err != nil {
		return fmt.Errorf("write provenance: %w", err)
	}
	ref := "refs/tags/" + from.version
	s := statement{
		Type:          "https://in-toto.io/Statement/v1",
		Subject:       subjects,
		PredicateType: "https://slsa.dev/provenance/v1",
		Predicate: predicate{
			BuildDefinition: definition{
				BuildType:          buildType,
				ExternalParameters: map[string]string{"repository": "https://" + bill.Repository, "ref": ref},
				ResolvedDependencies: []descriptor{{
					URI:    "git+https://" + bill.Repository + "@" + ref,
					Digest: map[string]string{"gitCommit": from.commit},
				}},
			},
			RunDetails: details{Builder: map[string]string{"id": from.builder}},
		},
	}
	if from.invocation != "" {
		s.Predicate.RunDetails.Metadata = map[string]string{"invocationId": from.invocation}
	}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, provenanceFile), append(text, '\n'), 0o644)
}

// subjects returns the files of a folder, and the images in its list.
func subjects(folder string) (all []descriptor, err error) {
	digests, err := digests(folder, provenanceFile, sumsFile)
	if err != nil {
		return nil, err
	}
	for _, f := range digests {
		all = append(all, descriptor{Name: f.name, Digest: map[string]string{"sha256": f.sum}})
	}
	images, err := images(folder)
	if err != nil {
		return nil, err
	}
	for _, i := range images {
		all = append(all, descriptor{Name: i.ref, Digest: map[string]string{"sha256": i.digest}})
	}
	return all, nil
}

// file is a file with its SHA-256.
type file struct{ name, sum string }

// digests returns the files of a folder in order, without its subfolders and the files to omit.
func digests(folder string, omit ...string) (all []file, err error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() || slices.Contains(omit, e.Name()) {
			continue
		}
		content, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, file{e.Name(), fmt.Sprintf("%x", sha256.Sum256(content))})
	}
	return all, nil
}

// image is an image in the list of a release. The digest has no algorithm.
type image struct{ ref, digest string }

func images(folder string) (all []image, err error) {
	text, err := os.ReadFile(filepath.Join(folder, imagesFile))
	if err != nil {
		return nil, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		ref, digest, ok := strings.Cut(lines.Text(), "@sha256:")
		if !ok {
			return nil, fmt.Errorf("read %s: %q: write NAME:TAG@DIGEST", imagesFile, lines.Text())
		}
		all = append(all, image{ref, digest})
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("read %s: it names no image", imagesFile)
	}
	return all, nil
}

// writeSums writes the checksums of the files of a folder in the format of sha256sum.
func writeSums(folder string) error {
	all, err := digests(folder, sumsFile)
	if err != nil {
		return fmt.Errorf("write checksums: %w", err)
	}
	var out strings.Builder
	for _, f := range all {
		fmt.Fprintf(&out, "%s  %s\n", f.sum, f.name)
	}
	return os.WriteFile(filepath.Join(folder, sumsFile), []byte(out.String()), 0o644)
}
