package kubelet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// mount writes the files of all volumes. A file that has not changed is not written.
func (p *Pod) mount(ctx context.Context) error {
	p.mounts.Lock()
	defer p.mounts.Unlock()
	for _, v := range p.spec.Spec.Volumes {
		if err := p.write(ctx, v); err != nil && ctx.Err() == nil {
			return fmt.Errorf("volume %s: %w", v.Name, err)
		}
	}
	return nil
}

func (p *Pod) write(ctx context.Context, v corev1.Volume) error {
	folder := p.volume(v)
	if err := p.makeFolder(folder); err != nil {
		return err
	}
	switch {
	case v.Secret != nil:
		return p.secret(ctx, folder, v.Secret.SecretName, optional(v.Secret.Optional))
	case v.ConfigMap != nil:
		return p.configMap(ctx, folder, v.ConfigMap.Name, v.ConfigMap.Items, optional(v.ConfigMap.Optional))
	case v.Projected != nil:
		for _, source := range v.Projected.Sources {
			if err := p.project(ctx, folder, source); err != nil {
				return err
			}
		}
	}
	return nil // an emptyDir or hostPath volume has no files
}

// makeFolder makes a folder that belongs to the user of the container. Every user may pass through its parents.
func (p *Pod) makeFolder(folder string) error {
	if err := os.MkdirAll(folder, 0o711); err != nil {
		return err
	}
	return os.Chown(folder, int(p.user()), int(p.user()))
}

func optional(o *bool) bool { return o != nil && *o }

// volume returns the folder of a volume. The folder of a hostPath is shared by the pods of a node.
func (p *Pod) volume(v corev1.Volume) string {
	if v.HostPath != nil {
		return filepath.Join(p.kubelet.Dir, p.node, v.HostPath.Path)
	}
	return filepath.Join(p.dir, "volumes", v.Name)
}

func (p *Pod) project(ctx context.Context, folder string, source corev1.VolumeProjection) error {
	switch {
	case source.ServiceAccountToken != nil:
		return p.token(ctx, folder, source.ServiceAccountToken)
	case source.ConfigMap != nil:
		return p.configMap(ctx, folder, source.ConfigMap.Name, source.ConfigMap.Items, optional(source.ConfigMap.Optional))
	case source.Secret != nil:
		return p.secret(ctx, folder, source.Secret.Name, optional(source.Secret.Optional))
	}
	return nil
}

// token writes a token of the ServiceAccount that is bound to the pod. It is requested once: tests are shorter than its
// lifetime.
func (p *Pod) token(ctx context.Context, folder string, t *corev1.ServiceAccountTokenProjection) error {
	path := filepath.Join(folder, t.Path)
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	account := p.spec.Spec.ServiceAccountName
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{t.Audience}, ExpirationSeconds: t.ExpirationSeconds,
		BoundObjectRef: &authenticationv1.BoundObjectReference{
			APIVersion: "v1", Kind: "Pod", Name: p.spec.Name, UID: p.spec.UID,
		},
	}}
	answer, err := p.kubelet.Client.CoreV1().ServiceAccounts(p.spec.Namespace).CreateToken(
		ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("token of %s: %w", account, err)
	}
	return p.replace(path, []byte(answer.Status.Token))
}

func (p *Pod) configMap(ctx context.Context, folder, name string, items []corev1.KeyToPath, optional bool) error {
	c, err := p.kubelet.Client.CoreV1().ConfigMaps(p.spec.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && optional {
		return nil
	}
	if err != nil {
		return err
	}
	if items == nil {
		for key := range c.Data {
			items = append(items, corev1.KeyToPath{Key: key, Path: key})
		}
	}
	for _, item := range items {
		text, ok := c.Data[item.Key]
		if !ok {
			continue // an optional item appears later
		}
		if err := p.replace(filepath.Join(folder, item.Path), []byte(text)); err != nil {
			return err
		}
	}
	return nil
}

func (p *Pod) secret(ctx context.Context, folder, name string, optional bool) error {
	s, err := p.kubelet.Client.CoreV1().Secrets(p.spec.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && optional {
		return nil
	}
	if err != nil {
		return err
	}
	for key, data := range s.Data {
		if err := p.replace(filepath.Join(folder, key), data); err != nil {
			return err
		}
	}
	return nil
}

// replace replaces a file of the user of the container in one step, unless it has the content.
func (p *Pod) replace(path string, data []byte) error {
	if old, err := os.ReadFile(path); err == nil && string(old) == string(data) {
		return nil
	}
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	if err := os.Chown(path+".new", int(p.user()), int(p.user())); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// environment returns the variables of a container. In their values, local paths replace the paths in the container.
func (p *Pod) environment(c corev1.Container) (env []string) {
	for _, e := range c.Env {
		value := e.Value
		if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
			value = p.field(e.ValueFrom.FieldRef.FieldPath)
		}
		env = append(env, e.Name+"="+p.local(c, value))
	}
	return env
}

// args returns the arguments of a container. Local paths replace the paths in the container. The entry point is the
// program of the image.
func (p *Pod) args(c corev1.Container) (args []string) {
	for i, a := range append(slices.Clone(c.Command), c.Args...) {
		if i == 0 && len(c.Command) > 0 {
			continue
		}
		if name, value, found := strings.Cut(a, "="); found && strings.HasPrefix(a, "-") {
			args = append(args, name+"="+p.local(c, value))
		} else {
			args = append(args, p.local(c, a))
		}
	}
	return args
}

// local replaces the path of a mount by the path of its volume.
func (p *Pod) local(c corev1.Container, value string) string {
	for _, m := range c.VolumeMounts {
		rest, found := strings.CutPrefix(value, m.MountPath)
		if !found || rest != "" && rest[0] != '/' {
			continue
		}
		for _, v := range p.spec.Spec.Volumes {
			if v.Name == m.Name {
				folder := filepath.Join(p.volume(v), m.SubPath)
				_ = p.makeFolder(folder) // if this fails, the program reports an error
				return folder + rest
			}
		}
	}
	return value
}

// field returns a field of the downward API.
func (p *Pod) field(path string) string {
	var list []string
	for _, a := range p.sandbox.Addrs {
		list = append(list, a.String())
	}
	switch path {
	case "metadata.name":
		return p.spec.Name
	case "metadata.namespace":
		return p.spec.Namespace
	case "spec.nodeName":
		return p.node
	case "status.hostIP":
		return p.sandbox.Host.String()
	case "status.podIP":
		return list[0]
	case "status.podIPs":
		return strings.Join(list, ",")
	}
	return ""
}
