package bill

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// unknown is the value of SPDX for what nobody has stated.
const unknown = "NOASSERTION"

// Image is a container image of a program. It has no base image.
type Image struct {
	// Name is the repository, such as ghcr.io/stunner-gateway/auth.
	Name, Tag string
	// Digest is the digest of the index, with its algorithm.
	Digest string
	// Files are the modules whose data the image contains in addition to the programs.
	Files []Module
}

// Document returns the SPDX document of one program, built for one or several platforms, and of its image if there is
// one. The document depends on these only.
func Document(root string, programs []Program, image *Image) (*spdx.Document, error) {
	first, parts := programs[0], Linked(programs...)
	if image != nil {
		parts = append(parts, image.Files...)
		slices.SortFunc(parts, Module.compare)
	}
	licences, err := Licences(root, parts)
	if err != nil {
		return nil, fmt.Errorf("list materials of %s: %w", first.Name(), err)
	}
	d := &spdx.Document{
		SPDXVersion:       v2_3.Version,
		DataLicense:       v2_3.DataLicense,
		SPDXIdentifier:    "DOCUMENT",
		DocumentName:      first.Name(),
		DocumentNamespace: "https://" + Repository + "/spdx/" + first.Name() + "/" + first.Sum(),
		CreationInfo: &v2_3.CreationInfo{
			Created:  first.Created().Format("2006-01-02T15:04:05Z"),
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "stunner-bill"}},
		},
	}
	relate := func(from, kind string, to common.ElementID) {
		d.Relationships = append(d.Relationships, &v2_3.Relationship{
			RefA: common.MakeDocElementID("", from), RefB: common.MakeDocElementID("", string(to)), Relationship: kind,
		})
	}
	owner, kind := "DOCUMENT", common.TypeRelationshipDescribe
	if image != nil {
		p := image.element()
		d.Packages = append(d.Packages, p)
		relate(owner, kind, p.PackageSPDXIdentifier)
		owner, kind = string(p.PackageSPDXIdentifier), common.TypeRelationshipContains
		for _, m := range image.Files {
			relate(owner, kind, m.id())
		}
	}
	for _, p := range programs {
		e := p.element()
		d.Packages = append(d.Packages, e)
		relate(owner, kind, e.PackageSPDXIdentifier)
		for _, m := range Linked(p) {
			relate(string(e.PackageSPDXIdentifier), common.TypeRelationshipContains, m.id())
		}
	}
	for _, m := range parts {
		d.Packages = append(d.Packages, m.element(licences[m].Expression))
	}
	return d, nil
}

func (i Image) element() *v2_3.Package {
	name := i.Name[strings.LastIndex(i.Name, "/")+1:]
	return &v2_3.Package{
		PackageName: i.Name, PackageSPDXIdentifier: identifier("image", name), PackageVersion: i.Tag,
		PackageDownloadLocation: unknown, PackageLicenseConcluded: unknown, PackageLicenseDeclared: unknown,
		PackageCopyrightText: unknown, PrimaryPackagePurpose: "CONTAINER",
		PackageComment: "The image has no base image: its base is scratch.",
		PackageExternalReferences: locators(fmt.Sprintf("pkg:oci/%s@%s?repository_url=%s&tag=%s",
			strings.ToLower(name), url.QueryEscape(i.Digest), i.Name, i.Tag)),
	}
}

func (p Program) element() *v2_3.Package {
	m := Module{Path: p.Info.Main.Path, Version: p.Version()}
	e := m.element(unknown)
	if m.ours() {
		e.PackageLicenseDeclared = "Apache-2.0"
	}
	e.PackageName, e.PrimaryPackagePurpose = p.Name(), "APPLICATION"
	e.PackageSPDXIdentifier = identifier(p.Name(), p.Setting("GOOS"), p.Setting("GOARCH"))
	e.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: p.Sum()}}
	return e
}

func (m Module) id() common.ElementID { return identifier(m.Path, m.Version) }

// element returns the SPDX package of a module. Declared is what its files say; nobody has concluded anything else.
func (m Module) element(licence string) *v2_3.Package {
	e := &v2_3.Package{
		PackageName: m.Path, PackageSPDXIdentifier: m.id(), PackageVersion: m.Version,
		PackageDownloadLocation: unknown, PackageLicenseConcluded: unknown,
		PackageLicenseDeclared: cmp.Or(licence, unknown), PackageCopyrightText: unknown,
		PackageExternalReferences: locators(m.locator()),
	}
	if m.Sum != "" {
		e.PackageSourceInfo = "checksum of the module in go.sum: " + m.Sum
	}
	return e
}

// locator returns a package URL. The version is optional.
func (m Module) locator() string {
	url := "pkg:golang/" + strings.ToLower(m.Path)
	if m.Version != "" {
		url += "@" + strings.ReplaceAll(m.Version, "+", "%2B")
	}
	return url
}

func locators(purl string) []*v2_3.PackageExternalReference {
	return []*v2_3.PackageExternalReference{
		{Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: purl},
	}
}

// foreign matches characters that are not allowed in SPDX identifiers.
var foreign = regexp.MustCompile(`[^A-Za-z0-9.]+`)

func identifier(parts ...string) common.ElementID {
	return common.ElementID(foreign.ReplaceAllString(strings.Join(parts, "-"), "-"))
}
