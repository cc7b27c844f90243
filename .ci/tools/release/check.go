package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdxlib"
	"go.yaml.in/yaml/v3"
	"golang.org/x/mod/modfile"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/stunner-gateway/stunner/tools/bill"
)

// check checks the files of a release against each other. sha256sum and stunnerctl lint check what this does not.
func check(root, folder, version string) error {
	var errs []error
	for _, c := range []struct {
		what string
		err  error
	}{
		{"provenance", checkProvenance(folder, version)},
		{"images", checkImages(folder, version)},
		{"bills of materials", checkBills(root, folder)},
		{"plugin", checkPlugin(folder, version)},
		{"charts", checkCharts(folder, version)},
		{"TypeScript client", checkClient(folder, version)},
	} {
		if c.err != nil {
			errs = append(errs, fmt.Errorf("check %s: %w", c.what, c.err))
			continue
		}
		fmt.Printf("%s: valid\n", c.what)
	}
	return errors.Join(errs...)
}

// checkProvenance reads the provenance by the library of in-toto, and compares its subjects with the files.
func checkProvenance(folder, version string) error {
	text, err := os.ReadFile(filepath.Join(folder, provenanceFile))
	if err != nil {
		return err
	}
	var s intoto.Statement
	if err := protojson.Unmarshal(text, &s); err != nil {
		return err
	}
	if err := s.Validate(); err != nil {
		return err
	}
	predicate, err := protojson.Marshal(s.GetPredicate())
	if err != nil {
		return err
	}
	var p slsa.Provenance
	if err := protojson.Unmarshal(predicate, &p); err != nil {
		return err
	}
	if err := p.Validate(); err != nil {
		return err
	}
	ref := p.GetBuildDefinition().GetExternalParameters().GetFields()["ref"].GetStringValue()
	if want := "refs/tags/" + version; s.GetPredicateType() != "https://slsa.dev/provenance/v1" || ref != want {
		return fmt.Errorf("it is a %s of %s, want one of %s", s.GetPredicateType(), ref, want)
	}
	named := map[string]string{}
	for _, d := range s.GetSubject() {
		named[d.GetName()] = d.GetDigest()["sha256"]
	}
	want, err := subjects(folder)
	if err != nil {
		return err
	}
	for _, d := range want {
		if got := named[d.Name]; got != d.Digest["sha256"] {
			return fmt.Errorf("%s has the digest %q, and not %s", d.Name, got, d.Digest["sha256"])
		}
	}
	if len(named) != len(want) {
		return fmt.Errorf("it names %d files and images, and there are %d", len(named), len(want))
	}
	return nil
}

// checkImages reads the archives in the folder images as layouts, which must have the digests in the list.
func checkImages(folder, version string) error {
	all, err := images(folder)
	if err != nil {
		return err
	}
	for _, i := range all {
		name, tag, _ := strings.Cut(path.Base(i.ref), ":")
		if "v"+tag != version {
			return fmt.Errorf("%s: its tag is not that of %s", i.ref, version)
		}
		if err := checkImage(filepath.Join(folder, "images", name+".tar"), i.digest); err != nil {
			return fmt.Errorf("%s: %w", i.ref, err)
		}
	}
	return nil
}

func checkImage(archive, digest string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	unpacked, err := os.MkdirTemp("", "stunner-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(unpacked)
	if err := extract(f, unpacked); err != nil {
		return err
	}
	top, err := layout.ImageIndexFromPath(unpacked)
	if err != nil {
		return err
	}
	m, err := top.IndexManifest()
	if err != nil {
		return err
	}
	if len(m.Manifests) != 1 || m.Manifests[0].Digest.Hex != digest {
		return fmt.Errorf("its archive does not contain sha256:%s", digest)
	}
	index, err := top.ImageIndex(m.Manifests[0].Digest)
	if err != nil {
		return err
	}
	return validate.Index(index)
}

// extract writes the files of an archive into a folder. Names that lead out of the folder are an error.
func extract(in io.Reader, folder string) error {
	to, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer to.Close()
	for archive := tar.NewReader(in); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeDir {
			if err := to.MkdirAll(h.Name, 0o755); err != nil {
				return err
			}
			continue
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			return err
		}
		if err := to.MkdirAll(path.Dir(h.Name), 0o755); err != nil {
			return err
		}
		if err := to.WriteFile(h.Name, content, 0o644); err != nil {
			return err
		}
	}
}

// checkBills reads the bills of materials. Each module must be in the go.mod of its program, have a licence, and be in
// the notice.
func checkBills(root, folder string) error {
	files, err := filepath.Glob(filepath.Join(folder, "*.spdx.json"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("find *.spdx.json: %d files, %w", len(files), err)
	}
	notice, err := os.ReadFile(filepath.Join(folder, "NOTICE"))
	if err != nil {
		return err
	}
	for _, name := range files {
		if err := checkBill(root, name, string(notice)); err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(name), err)
		}
	}
	return nil
}

func checkBill(root, name, notice string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	d, err := spdxjson.Read(f)
	if err != nil {
		return err
	}
	if err := spdxlib.ValidateDocument(d); err != nil {
		return err
	}
	required, err := requirements(root, d)
	if err != nil {
		return err
	}
	for _, p := range d.Packages {
		if p.PackageExternalReferences == nil {
			return fmt.Errorf("%s has no package URL", p.PackageName)
		}
		url := p.PackageExternalReferences[0].Locator
		if strings.HasPrefix(url, "pkg:oci/") || strings.HasPrefix(url, "pkg:golang/"+bill.Repository) {
			continue
		}
		if p.PackageLicenseDeclared == "NOASSERTION" || p.PackageVersion == "" {
			return fmt.Errorf("%s %s has no licence, or no version", p.PackageName, p.PackageVersion)
		}
		external := p.PackageName != "stdlib" && p.PackageName != "golang.org/x/crypto/x509roots/fallback"
		if external && required[p.PackageName] != p.PackageVersion {
			return fmt.Errorf("%s %s: go.mod requires %q", p.PackageName, p.PackageVersion, required[p.PackageName])
		}
		if line := fmt.Sprintf("\n%s %s: %s\n", p.PackageName, p.PackageVersion, p.PackageLicenseDeclared); external &&
			!strings.Contains(notice, line) {
			return fmt.Errorf("%s %s is not in NOTICE", p.PackageName, p.PackageVersion)
		}
	}
	return nil
}

// requirements returns the versions in the go.mod of the program that a bill describes.
func requirements(root string, d *spdx.Document) (map[string]string, error) {
	prefix := "pkg:golang/" + bill.Repository + "/"
	for _, p := range d.Packages {
		if p.PackageName != d.DocumentName {
			continue
		}
		module, _, _ := strings.Cut(strings.TrimPrefix(p.PackageExternalReferences[0].Locator, prefix), "@")
		name := filepath.Join(root, filepath.FromSlash(module), "go.mod")
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		parsed, err := modfile.Parse(name, text, nil)
		if err != nil {
			return nil, err
		}
		required := map[string]string{}
		for _, r := range parsed.Require {
			required[r.Mod.Path] = r.Mod.Version
		}
		for _, r := range parsed.Replace {
			if r.New.Version != "" {
				required[r.New.Path] = r.New.Version
			}
		}
		return required, nil
	}
	return nil, fmt.Errorf("the program %s is not listed", d.DocumentName)
}

// checkPlugin compares the manifest for krew with the archives.
func checkPlugin(folder, version string) error {
	text, err := os.ReadFile(filepath.Join(folder, "krew.yaml"))
	if err != nil {
		return err
	}
	var m struct {
		Spec struct {
			Version   string
			Platforms []struct{ URI, Sha256, Bin string }
		}
	}
	if err := yaml.Unmarshal(text, &m); err != nil {
		return err
	}
	if m.Spec.Version != version || len(m.Spec.Platforms) == 0 {
		return fmt.Errorf("krew.yaml has version %s and %d platforms", m.Spec.Version, len(m.Spec.Platforms))
	}
	all, err := digests(folder)
	if err != nil {
		return err
	}
	sums := map[string]string{}
	for _, f := range all {
		sums[f.name] = f.sum
	}
	for _, p := range m.Spec.Platforms {
		name := path.Base(p.URI)
		if sums[name] != p.Sha256 {
			return fmt.Errorf("%s has the checksum %q, and krew.yaml says %s", name, sums[name], p.Sha256)
		}
		files, err := unpack(filepath.Join(folder, name))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if files[p.Bin] == nil || files["LICENSE"] == nil {
			return fmt.Errorf("%s has no %s, or no LICENSE", name, p.Bin)
		}
	}
	return nil
}

// checkCharts reads the packages of both charts.
func checkCharts(folder, version string) error {
	for _, name := range []string{"stunner", "stunner-crds"} {
		archive := name + "-" + strings.TrimPrefix(version, "v") + ".tgz"
		files, err := unpack(filepath.Join(folder, archive))
		if err != nil {
			return fmt.Errorf("%s: %w", archive, err)
		}
		var chart struct {
			Name, Version string
			AppVersion    string `yaml:"appVersion"`
		}
		if err := yaml.Unmarshal(files[name+"/Chart.yaml"], &chart); err != nil {
			return fmt.Errorf("%s: %w", archive, err)
		}
		if chart.Name != name || "v"+chart.Version != version || "v"+chart.AppVersion != version {
			return fmt.Errorf("%s: its Chart.yaml has name %q, version %q, appVersion %q", archive, chart.Name,
				chart.Version, chart.AppVersion)
		}
		if !json.Valid(files[name+"/values.schema.json"]) {
			return fmt.Errorf("%s: values.schema.json is missing or invalid", archive)
		}
	}
	return nil
}

// checkClient reads the package of the TypeScript client. It has the files that its package.json exports, its licence,
// and no dependencies.
func checkClient(folder, version string) error {
	files, err := unpack(filepath.Join(folder, "stunner-gateway-ice-servers-"+strings.TrimPrefix(version, "v")+".tgz"))
	if err != nil {
		return err
	}
	var p struct {
		Version      string
		Dependencies map[string]string
		Exports      map[string]map[string]string
	}
	if err := json.Unmarshal(files["package/package.json"], &p); err != nil {
		return fmt.Errorf("package.json: %w", err)
	}
	if "v"+p.Version != version || len(p.Dependencies) > 0 || len(p.Exports["."]) == 0 {
		return fmt.Errorf("package.json has version %q, dependencies %v, exports %v", p.Version, p.Dependencies,
			p.Exports)
	}
	for _, name := range append(slices.Collect(maps.Values(p.Exports["."])), "dist/LICENSE") {
		if len(files[path.Join("package", name)]) == 0 {
			return fmt.Errorf("%s is missing or empty", name)
		}
	}
	return nil
}

// unpack returns the regular files of a compressed archive.
func unpack(name string) (map[string][]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	plain, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	all := map[string][]byte{}
	for archive := tar.NewReader(plain); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if all[h.Name], err = io.ReadAll(archive); err != nil {
			return nil, err
		}
	}
}
