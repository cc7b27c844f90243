// Package sysdump collects the data for a bug report in one archive: the objects and events of STUNner and of the
// backends of its Gateways, logs, and the answers of operator and dataplanes. Secrets are never read, secrets in other
// objects and in logs are removed, and user names and addresses of clients are replaced by hashes.
//
// # Files
//
//	selection.go  the objects in the archive
//	redact.go     secrets, users and clients in objects and logs
package sysdump

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/connect"
)

// Bounds of the archive.
const (
	logLines = 5_000
	logBytes = 4 << 20 // for each container
	fileSize = 16 << 20
)

// kinds are the kinds of objects in the archive. Secrets are not among them, and neither are Revocations, which name users.
var kinds = []schema.GroupKind{
	connect.KindGateway, connect.KindGatewayClass, connect.KindGatewayConfig, connect.KindDataplane,
	connect.KindUDPRoute, connect.KindPod,
	{Group: "gateway.networking.k8s.io", Kind: "UDPRoute"},
	{Group: "gateway.networking.k8s.io", Kind: "ReferenceGrant"},
	{Group: "stunner.l7mp.io", Kind: "StaticService"},
	{Kind: "Service"}, {Kind: "Event"}, {Kind: "Node"}, {Kind: "Namespace"},
	{Group: "discovery.k8s.io", Kind: "EndpointSlice"},
	{Group: "apps", Kind: "Deployment"}, {Group: "apps", Kind: "DaemonSet"},
	{Group: "policy", Kind: "PodDisruptionBudget"},
	{Group: "networking.k8s.io", Kind: "NetworkPolicy"},
	{Group: "keda.sh", Kind: "ScaledObject"},
	{Group: "coordination.k8s.io", Kind: "Lease"},
	{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"},
}

// answers are the paths of the inspection API that are asked for each Gateway.
var answers = []string{"status", "sessions", "refusals", "config"}

// Options select the content of the archive.
type Options struct {
	// Namespace limits the archive to one namespace; empty means all.
	Namespace string
	// Logs includes the logs of the pods of operator, dataplanes and auth service.
	Logs bool
	// Now is the time of the files.
	Now time.Time
	// Version is the version of the program.
	Version string
	// Controls reports whether an operator of STUNner has a controller name.
	Controls func(controller string) bool
}

// archive is the tar file. The first error of writing it ends the dump.
type archive struct {
	privacy
	tar      *tar.Writer
	now      time.Time
	problems []string
	err      error
}

// Write writes the archive (tar, compressed with gzip) to w. Objects and answers that cannot be read are listed in its
// file problems.txt, and are not an error.
func Write(ctx context.Context, w io.Writer, s connect.Source, o Options) error {
	compressed := gzip.NewWriter(w)
	a := &archive{privacy: newPrivacy(), tar: tar.NewWriter(compressed), now: o.Now}
	a.add("version.txt", fmt.Appendf(nil, "%s\nsource: %s\ntime: %s\n", o.Version, s, o.Now.UTC().Format(time.RFC3339)))
	pods := a.objects(ctx, s, o)
	a.answers(ctx, s, o)
	if o.Logs {
		a.logs(ctx, s, pods)
	}
	slices.Sort(a.problems)
	a.add("problems.txt", []byte(strings.Join(append(slices.Compact(a.problems), ""), "\n")))
	return errors.Join(a.err, context.Cause(ctx), a.tar.Close(), compressed.Close())
}

func (a *archive) add(name string, data []byte) {
	if a.err != nil {
		return
	}
	a.err = a.tar.WriteHeader(&tar.Header{Name: "sysdump/" + name, Mode: 0o600, Size: int64(len(data)), ModTime: a.now})
	if a.err == nil {
		_, a.err = a.tar.Write(data)
	}
}

func (a *archive) problem(what string, err error) {
	a.problems = append(a.problems, what+": "+a.Log(err.Error()))
}

// objects adds a file for each object, and returns the pods.
func (a *archive) objects(ctx context.Context, s connect.Source, o Options) (pods []metav1.Object) {
	found, err := s.Objects(ctx, o.Namespace, kinds...)
	if err != nil {
		a.problem("objects", err)
	}
	for _, kind := range found.Unread {
		if !kind.Missing {
			a.problem(kind.Kind.String(), kind.Err)
		}
	}
	items := found.Items
	if !inFolder(s) {
		items = selected(items, o.Controls)
	}
	for _, item := range items {
		Object(&item)
		if item.GetKind() == connect.KindPod.Kind {
			pods = append(pods, &item)
		}
		data, err := yaml.Marshal(item.Object)
		if err != nil {
			a.problem("object", err)
			continue
		}
		kind := strings.ToLower(item.GroupVersionKind().GroupKind().String())
		a.add(path.Join("objects", local(item.GetNamespace(), "_cluster"), kind, local(item.GetName(), "_")+".yaml"), data)
	}
	return pods
}

// local returns a name as an element of a path.
func local(name, empty string) string {
	if name == "" {
		return empty
	}
	return strings.NewReplacer("/", "_", "\\", "_", "..", "__", "\x00", "_").Replace(name)
}

// answers adds the answers of the inspection API.
func (a *archive) answers(ctx context.Context, s connect.Source, o Options) {
	var operator json.RawMessage
	if err := s.Get(ctx, "/api/v1/operator", &operator); err != nil {
		a.problem("operator", err)
	}
	a.addJSON("operator.json", operator)
	gateways, err := s.Gateways(ctx, o.Namespace)
	if err != nil {
		a.problem("Gateways", err)
	}
	for _, gateway := range gateways {
		for _, name := range answers {
			var answer json.RawMessage
			at := connect.Request{Gateway: gateway, Path: name}
			if err := s.Get(ctx, at.URL(), &answer); err != nil {
				a.problem(gateway.String()+": "+name, err)
				continue
			}
			var list inspection.List
			if json.Unmarshal(answer, &list) == nil {
				for _, why := range list.Incomplete {
					a.problem(gateway.String()+": "+name, errors.New(why))
				}
			}
			a.addJSON(path.Join("gateways", local(gateway.Namespace, "_"), local(gateway.Name, "_"), name+".json"), answer)
		}
	}
}

// addJSON adds a JSON file in an indented form, without secrets.
func (a *archive) addJSON(name string, data json.RawMessage) {
	var value any
	if json.Unmarshal(data, &value) != nil {
		return
	}
	text, err := json.MarshalIndent(a.Answer(redactValue(value)), "", "  ")
	if err == nil {
		a.add(name, text)
	}
}

// logs adds the logs of operator, dataplanes and auth service: of their pods, or of the folder of a file provider.
func (a *archive) logs(ctx context.Context, s connect.Source, pods []metav1.Object) {
	switch s := s.(type) {
	case *connect.Cluster:
		for _, pod := range pods {
			a.podLogs(ctx, s, pod)
		}
	case *connect.Folder:
		for _, pattern := range []string{"logs/*.log", "status.txt", "problems.yaml"} {
			a.files(s.Path, pattern)
		}
	}
}

// podLogs adds the logs of the containers of a pod, and the logs of their previous runs.
func (a *archive) podLogs(ctx context.Context, c *connect.Cluster, pod metav1.Object) {
	live, err := c.Client.CoreV1().Pods(pod.GetNamespace()).Get(ctx, pod.GetName(), metav1.GetOptions{})
	if err != nil {
		a.problem("logs of pod "+pod.GetNamespace()+"/"+pod.GetName(), err)
		return
	}
	for _, status := range slices.Concat(live.Status.InitContainerStatuses, live.Status.ContainerStatuses) {
		runs := map[string]bool{".log": false}
		if status.RestartCount > 0 {
			runs[".previous.log"] = true
		}
		for suffix, previous := range runs {
			name := path.Join("logs", local(live.Namespace, "_"), local(live.Name, "_"), local(status.Name, "_")+suffix)
			data, err := c.Client.CoreV1().Pods(live.Namespace).GetLogs(live.Name, &corev1.PodLogOptions{
				Container: status.Name, Previous: previous, Timestamps: true,
				TailLines: new(int64(logLines)), LimitBytes: new(int64(logBytes)),
			}).DoRaw(ctx)
			if err != nil {
				a.problem(name, err)
				continue
			}
			a.add(name, []byte(a.Log(string(data))))
		}
	}
}

// files adds the files of a folder that match a pattern.
func (a *archive) files(folder, pattern string) {
	names, err := filepath.Glob(filepath.Join(folder, pattern))
	if err != nil {
		a.problem(pattern, err)
	}
	for _, name := range names {
		data, err := tail(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			a.problem(name, err)
			continue
		}
		relative, _ := filepath.Rel(folder, name)
		a.add(filepath.ToSlash(relative), []byte(a.Log(string(data))))
	}
}

// tail returns the end of a file, from the start of a line.
func tail(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = f.Seek(max(0, size-fileSize), io.SeekStart)
	}
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, fileSize))
	if size > fileSize {
		_, data, _ = bytes.Cut(data, []byte("\n"))
	}
	return data, err
}
