package connect

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// Files of the output folder of a file provider, see docs/file-provider.md.
const (
	urlFile   = "discovery.url"
	tokenFile = "discovery.token"
)

// folderTimeout is how long a command waits for an answer of an operator on this host, which itself waits at most 6 s
// for processes.
const folderTimeout = 8 * time.Second

// Folder is the output folder of a file provider.
type Folder struct {
	// Path is the path of the folder.
	Path string

	connect func() (*api, error)
}

func openFolder(path string) (Source, error) {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		err = errors.New("not a folder")
	}
	if err != nil {
		return nil, fmt.Errorf("--folder: %w: use the folder that the operator has as --output", err)
	}
	f := &Folder{Path: path}
	f.connect = sync.OnceValues(f.open)
	return f, nil
}

func (f *Folder) String() string { return "folder " + f.Path }

// open reads the address of the operator. The operator listens on the loopback address without TLS.
func (f *Folder) open() (*api, error) {
	data, err := os.ReadFile(filepath.Join(f.Path, urlFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf(
			"no file %s in %s: start the operator with --output %s, in a release with the inspection API",
			urlFile,
			f.Path,
			f.Path,
		)
	}
	if err != nil {
		return nil, fmt.Errorf("read address of the operator: %w", err)
	}
	base, err := url.Parse(strings.TrimSpace(string(data)))
	if err != nil || base.Host == "" || !IsLoopback(base.Hostname()) {
		return nil, fmt.Errorf(
			"%s: the URL is not that of an operator on this host: restart the operator, which writes the "+
				"file",
			filepath.Join(f.Path, urlFile),
		)
	}
	token := func() (string, error) {
		token, err := readToken(filepath.Join(f.Path, tokenFile))
		switch {
		case errors.Is(err, fs.ErrNotExist): // the operator runs with --discovery-auth=off
			return "", nil
		case errors.Is(err, fs.ErrPermission):
			return "", fmt.Errorf("%w: run stunnerctl as the user of the operator", err)
		}
		return token, err
	}
	transport := newTransport(&tls.Config{})
	transport.Proxy = nil
	return &api{base: base, client: newClient(withToken{token, transport})}, nil
}

// Ask sends a request about a Gateway to the operator.
func (f *Folder) Ask(ctx context.Context, r Request) (inspection.List, error) {
	a, err := f.connect()
	if err != nil {
		return inspection.List{}, err
	}
	list, err := a.Ask(ctx, r)
	return list, f.explain(err)
}

// Get reads another path of the inspection API.
func (f *Folder) Get(ctx context.Context, path string, into any) error {
	a, err := f.connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, folderTimeout)
	defer cancel()
	return f.explain(a.do(ctx, http.MethodGet, path, into))
}

// explain says why the operator of the folder does not answer.
func (f *Folder) explain(err error) error {
	status := StatusOf(err)
	if err == nil || status != 0 && status != http.StatusUnauthorized {
		return err
	}
	start := "start the operator with --output " + f.Path + ", and see its log"
	pid, known := f.operator()
	switch {
	case !known:
		return err
	case pid == 0 && status == http.StatusUnauthorized:
		return &Unreached{Err: fmt.Errorf("no operator runs for this folder; the one at the address in %s is of another folder", urlFile), Remedy: start}
	case pid == 0:
		return &Unreached{Err: errors.New("no operator runs for this folder"), Remedy: start}
	case status == http.StatusUnauthorized:
		return &Unreached{Err: fmt.Errorf("process %d is the operator of this folder, and the one at the address in %s does not accept %s",
			pid, urlFile, tokenFile), Remedy: "restart the operator, which writes both files"}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded), os.IsTimeout(err):
		remedy := fmt.Sprintf("kill -CONT %d if a signal has stopped it; else see its log and the load of the host, and restart it", pid)
		return &Unreached{Err: fmt.Errorf("it runs as process %d and hangs: it has not answered in time", pid), Remedy: remedy}
	case errors.Is(err, syscall.ECONNREFUSED):
		return &Unreached{Err: fmt.Errorf("it runs as process %d and does not listen at the address in %s: %w", pid, urlFile, err),
			Remedy: "try again if it has just started; else see its log"}
	}
	return err
}

// IsOf returns an error if the operator that has answered has another output folder. output is "" for a release that
// does not report its folder. This is no error. Nor is it an error if the folder cannot be resolved, for example
// because it is in another mount namespace.
func (f *Folder) IsOf(output string) error {
	own, err := os.Stat(f.Path)
	other, otherErr := os.Stat(output)
	if output == "" || err != nil || otherErr != nil || os.SameFile(own, other) {
		return nil
	}
	return &Unreached{Err: fmt.Errorf("the operator at the address in %s is of another folder, %s", urlFile, output),
		Remedy: "start the operator with --output " + f.Path + ", at a --discovery-address of its own"}
}

// operator returns the process that uses the folder as its output, or 0. Such a process holds the lock file of the
// folder open. known is false if that cannot be determined, for example for processes of another user.
func (f *Folder) operator() (pid int, known bool) {
	own, err := os.Stat(filepath.Join(f.Path, "state", "lock"))
	if err != nil {
		return 0, false
	}
	hidden := false
	processes, _ := filepath.Glob("/proc/[0-9]*") // cannot fail: the pattern is valid
	for _, process := range processes {
		descriptors, err := os.ReadDir(filepath.Join(process, "fd"))
		hidden = hidden || errors.Is(err, fs.ErrPermission)
		for _, d := range descriptors {
			info, err := os.Stat(filepath.Join(process, "fd", d.Name()))
			if err == nil && os.SameFile(own, info) {
				pid, _ = strconv.Atoi(filepath.Base(process)) // the pattern has digits only
				return pid, true
			}
		}
	}
	return 0, !hidden
}

// Config reads the config of a Gateway, with its secrets. The operator of a folder sends it only to its own user.
func (f *Folder) Config(ctx context.Context, gateway types.NamespacedName) (c config.Config, err error) {
	path := "/api/v1/configs/" + url.PathEscape(gateway.Namespace) + "/" + url.PathEscape(gateway.Name)
	if err := f.Get(ctx, path, &c); err != nil {
		return c, fmt.Errorf("read config of Gateway %s: %w", gateway, err)
	}
	return c, nil
}

// Close ends the connections.
func (f *Folder) Close() error {
	if a, err := f.connect(); err == nil {
		return a.Close()
	}
	return nil
}

// Gateways returns the Gateways that have a status in the folder.
func (f *Folder) Gateways(ctx context.Context, namespace string) ([]types.NamespacedName, error) {
	objects, err := f.Objects(ctx, namespace, KindGateway)
	return namesOf(objects.Items), err
}

// Objects returns the statuses and the generated objects of the folder. Objects that are read from statuses have no
// spec.
func (f *Folder) Objects(_ context.Context, namespace string, kinds ...schema.GroupKind) (Objects, error) {
	var found Objects
	for _, sub := range []string{"status", "objects"} {
		err := filepath.WalkDir(filepath.Join(f.Path, sub), func(path string, entry fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist): // the file may have been removed meanwhile
				return nil
			case err != nil:
				return err
			case entry.IsDir() || filepath.Ext(path) != ".yaml":
				return nil
			}
			o, err := readObject(path)
			kind := o.GroupVersionKind().GroupKind()
			if err != nil || kind == KindSecret || !slices.Contains(kinds, kind) ||
				namespace != "" && o.GetNamespace() != "" && o.GetNamespace() != namespace {
				return err
			}
			found.Items = append(found.Items, o)
			return nil
		})
		if err != nil {
			return found, fmt.Errorf("read %s: %w", f, err)
		}
	}
	return found, nil
}

func readObject(path string) (o unstructured.Unstructured, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return o, nil
	}
	if err == nil {
		err = yaml.Unmarshal(data, &o.Object)
	}
	if err != nil {
		return o, fmt.Errorf("%s: %w", path, err)
	}
	return o, nil
}

// namesOf returns the names of objects, sorted.
func namesOf(objects []unstructured.Unstructured) []types.NamespacedName {
	names := make([]types.NamespacedName, 0, len(objects))
	for _, o := range objects {
		names = append(names, types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()})
	}
	slices.SortFunc(names, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	return names
}
