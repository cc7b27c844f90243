package diagnose

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// keysTolerance is the maximum age of token keys that is not reported. A JWK set is fetched every ten minutes.
const keysTolerance = time.Hour

// configTolerance is the time after the last change of a config in which its revision may differ from the operator's,
// because the two requests are not made at the same time.
const configTolerance = 30 * time.Second

// authService is a pod of the auth service that has answered.
type authService struct {
	pod string
	app authApp
	inspection.AuthStatus
}

// refusalCauses are the reasons for which the auth service refuses tokens, or all requests.
var refusalCauses = map[string]cause{
	"token_missing":   {"Authorization", "let the app send the header Authorization: Bearer TOKEN"},
	"token_repeated":  {"Authorization", "send one header Authorization: a proxy may have added another one"},
	"token_malformed": {"Authorization", "send the token as its issuer returned it: opaque and encrypted tokens are not accepted"},
	"token_header":    {"token", "let the issuer leave out crit, b64, jwk and x5c in the header of tokens"},
	"token_type":      {"token typ", "send an access token: its header typ must be JWT or at+jwt"},
	"token_algorithm": {"--jwt-algorithms", "compare the header alg of tokens with the flag and with alg of the keys"},
	"token_claims":    {"token", "let the issuer write each claim once, and times as numbers"},
	"token_issuer": {
		"--jwt-issuer", "compare the claim iss of tokens with the flag: a slash at the end matters",
	},
	"token_audience":       {"--jwt-audience", "compare the claim aud of tokens with the flag"},
	"token_expiry_missing": {"token exp", "let the issuer set the claim exp"},
	"token_expired":        {"token exp", "let the app request a new token; if it is new, correct the clock of the issuer or the node (NTP)"},
	"token_not_yet_valid":  {"token nbf", "correct the clock of the issuer or the node (NTP)"},
	"token_too_old":        {"--jwt-max-age", "let the app request a new token, or raise the flag"},
	"key_id_missing":       {"token kid", "let the issuer set the header kid"},
	"key_unknown":          {"--jwt-jwks-url", "compare the header kid of tokens with the JWK set: they may be of different issuers"},
	"keys_unavailable":     {"--jwt-jwks-url", "permit egress to the identity provider, and see the log for the error"},
	"key_lookups_limited": {
		"--jwt-jwks-url", "wait until the key set has been fetched; if it lasts, find the callers whose tokens have unknown key ids",
	},
	"token_signature":      {"--jwt-secret-file", "sign tokens with the secret or the key that the service has"},
	"token_subject":        {"token sub", "let the issuer set the claim sub"},
	"token_gateways":       {"token stunner", `write the claim stunner as a list of NAMESPACE/NAME, such as ["media/*"]`},
	"token_scope":          {"token stunner", `correct the field scope of the claim stunner: each field must be a limit, such as {"scope": {"allocations": 2}}`},
	"token_claim_required": {"--policy", "compare the claims of tokens with requiredClaims and user of the policy"},
	"api_key_unknown":      {"--policy", "compare the SHA-256 hash of the key with the policy: stunnerctl auth key new makes both"},
	"api_key_expired":      {"--policy", "let the app use the key that replaces it"},
	"no_gateway":           {"Gateway", "create a Gateway, or see the findings of the operator"},
	"no_gateway_served":    {"--gateways", "add the namespace of the Gateways to the flag (chart value stunnerAuthService.gateways)"},
	"no_config":            {"--config", "see /ready of the pods and their log"},
	"clocks_differ":        {"clock", "correct the time synchronization (NTP) of the nodes"},
	"internal_error":       {"log", "see the log for the error"},
}

// ofInstallation are the reasons that only the installation causes, and not a client.
var ofInstallation = []string{
	"keys_unavailable", "no_gateway", "no_gateway_served", "no_config", "clocks_differ", "internal_error",
}

// fewRefusals is the maximum number of refused requests in ten minutes that is not reported, because any host can send
// them.
const fewRefusals = 3

// authRules check the auth service.
var authRules = []Rule{
	{"auth service runs", func(s *Snapshot, _ *Gateway) (found []Finding) {
		for _, app := range s.authApps() {
			pods := s.podsOfAuth(app)
			if s.Folder || !s.readable("Pod", app.namespace) || s.authEndpoint(app) == nil && len(pods) == 0 ||
				slices.ContainsFunc(pods, ready) {
				continue // it runs, or it is not installed
			}
			f := Finding{
				Severity: Error, Object: "auth service", Field: "status.readyReplicas",
				Problem: "no pod of the auth service is ready: clients get no credentials, running calls continue",
				Remedy:  "see its pods and their log", Command: "kubectl get pods " + app.selector(),
			}
			for _, pod := range pods {
				if p := s.podProblem(pod); p.problem != "" {
					f.Object, f.Field, f.Command = ref("Pod", pod), p.field, describe("pod", pod)
					f.Problem = "the auth service does not run: " + p.problem
				}
			}
			found = append(found, f)
		}
		return found
	}},
	{"auth service has endpoints", func(s *Snapshot, _ *Gateway) (found []Finding) {
		for _, app := range s.authApps() {
			svc := s.authEndpoint(app)
			if svc == nil || !s.readable("EndpointSlice", app.namespace) || !slices.ContainsFunc(s.podsOfAuth(app), ready) {
				continue
			}
			if n, _ := s.endpointsOf(svc); n > 0 {
				continue
			}
			found = append(found, Finding{
				Severity: Error, Object: ref("Service", svc), Field: "spec.selector",
				Problem: "has no endpoints although the auth service is ready: clients cannot connect to it",
				Remedy:  "correct its selector: app: " + app.name,
				Command: fmt.Sprintf("kubectl get endpointslices -n %s -l kubernetes.io/service-name=%s", svc.Namespace, svc.Name),
			})
		}
		return found
	}},
	{"auth service is connected", func(s *Snapshot, _ *Gateway) (found []Finding) {
		if s.Auth == nil {
			return nil
		}
		answered, others := map[string]string{}, 0
		for _, item := range s.Auth.Items {
			answered[item.Pod] = cmp.Or(item.Error, statusText(item.Status))
			if !slices.ContainsFunc(s.authPods(), func(pod *corev1.Pod) bool { return pod.Name == item.Pod }) {
				others++ // with hostNetwork, the announced host name of a service is not the name of its pod
			}
		}
		for _, pod := range slices.Sorted(maps.Keys(answered)) {
			if problem := answered[pod]; s.Folder && problem != "" {
				found = append(found, s.aboutAuth(s.authOf(pod), Error, "--config", "does not answer the operator: "+problem,
					"the process may hang: see its log; if it does not recover, start it again"))
			}
		}
		for _, pod := range s.authPods() {
			problem, connected := answered[pod.Name]
			switch {
			case !ready(pod) || connected && problem == "" || !connected && others > 0:
				continue
			case connected:
				problem = "the operator has no answer of it: " + problem
			default:
				problem = "is not connected to the operator: it issues credentials from the configs that it had, and does not learn of changes"
			}
			found = append(found, Finding{
				Severity: Warning, Object: ref("Pod", pod), Field: "--config", Problem: problem,
				Remedy:  "see its log: config discovery needs DNS, port 13478, a token and the CA",
				Command: fmt.Sprintf("kubectl logs -n %s %s --tail=20", pod.Namespace, pod.Name),
			})
		}
		return found
	}},
	{"auth service is ready", func(s *Snapshot, _ *Gateway) (found []Finding) {
		for _, a := range s.authServices() {
			if a.Problem != "" {
				found = append(found, s.aboutAuth(a, Error, "/ready", "is not ready: "+a.Problem,
					"correct what the problem names: the service answers 503 until then"))
			}
		}
		return found
	}},
	{"keys of tokens are current", func(s *Snapshot, _ *Gateway) (found []Finding) {
		for _, a := range s.authServices() {
			age, problem := a.Now.Sub(a.KeysRead), ""
			if a.KeysProblem != "" {
				problem = ": " + a.KeysProblem
			}
			const remedy = "permit egress to the identity provider, or correct --jwt-jwks-url, the file of the keys or --policy"
			switch {
			case a.Open:
			case a.KeysRead.IsZero():
				found = append(found, s.aboutAuth(a, Error, "--jwt-jwks-url",
					"has not read the keys of tokens since its start, so that no token is accepted"+problem, remedy))
			case age > keysTolerance || a.KeysProblem != "":
				found = append(found, s.aboutAuth(a, Warning, "--jwt-jwks-url",
					fmt.Sprintf("has last read the keys of tokens %s ago, and refuses tokens with newer keys%s", span(age), problem),
					remedy))
			}
		}
		return found
	}},
	{"gateways are fresh", func(s *Snapshot, _ *Gateway) (found []Finding) {
		for _, a := range s.authServices() {
			if a.Now.Sub(a.Changed) < configTolerance {
				continue
			}
			for _, id := range slices.Sorted(maps.Keys(s.Live)) {
				if f := s.authConfig(a, id); f != nil {
					found = append(found, *f)
				}
			}
		}
		return found
	}},
	{"tokens are accepted", func(s *Snapshot, _ *Gateway) (found []Finding) {
		services := s.authServices()
		for _, app := range s.authApps() {
			refused, granted := authCounts(services, func(a authService) bool { return a.app == app })
			for _, reason := range slices.Sorted(maps.Keys(refused)) {
				c, known := refusalCauses[reason]
				n := refused[reason]
				if !known || !slices.Contains(ofInstallation, reason) && (n <= fewRefusals || n <= granted) {
					continue
				}
				found = append(found, Finding{
					Severity: Warning, Object: "auth service", Field: c.field,
					Problem: fmt.Sprintf("%s: in ten minutes %s, and %d got credentials", reason, isRefused(n), granted),
					Remedy:  c.remedy, Command: "kubectl logs " + app.selector() + " --tail=100",
				})
			}
		}
		return found
	}},
}

func isRefused(n uint64) string {
	if n == 1 {
		return "1 request was refused"
	}
	return fmt.Sprintf("%d requests were refused", n)
}

// statusText says why an answer contains no state. It returns "" if it contains one.
func statusText(status int) string {
	if status == http.StatusOK {
		return ""
	}
	return fmt.Sprintf("status %d; a service of an older release reports no state", status)
}

// authConfig returns the finding if an auth service has another config of a Gateway than the operator publishes. Both
// have the secret, so equal revisions mean that the dataplanes of this config accept its credentials.
func (s *Snapshot) authConfig(a authService, id string) *Finding {
	live := s.Live[id]
	if live == nil || live.Config == nil || live.Config.AuthRevision == "" {
		return nil
	}
	revision, there := a.Configs[id]
	switch {
	case revision == live.Config.AuthRevision, there && revision == live.Config.Revision, !there && a.Omitted > 0:
		return nil
	case !there:
		f := s.aboutAuth(a, Warning, "--config", "has no config of Gateway "+id+" and issues no credentials for it",
			"see its log for a rejected config, and check that its account may read the config of this Gateway")
		return &f
	}
	f := s.aboutAuth(a, Warning, "--config", fmt.Sprintf(
		"has revision %s of the config of Gateway %s, and the operator publishes %s: the dataplanes may not accept its credentials",
		revision, id, live.Config.AuthRevision), "see its log for a rejected config, or restart it: it reads all configs again")
	namespace, name, _ := strings.Cut(id, "/")
	if g := s.gateway(namespace, name); g != nil && s.recentRefusals(g, "wrong_password").last != nil {
		f.Severity = Error
		f.Problem += ", and some were refused with wrong_password"
	}
	return &f
}

// aboutAuth returns a finding about a pod of the auth service.
func (s *Snapshot) aboutAuth(a authService, severity Severity, field, problem, remedy string) Finding {
	f := Finding{Severity: severity, Object: "auth service " + a.pod, Field: field, Problem: problem, Remedy: remedy}
	if !s.Folder && !s.Remote {
		f.Object = objectName("Pod", a.app.namespace, a.pod)
		f.Command = fmt.Sprintf("kubectl logs -n %s %s --tail=20", a.app.namespace, a.pod)
	}
	return f
}

// authApp is an auth service: pods and a Service with the same label app in a namespace.
type authApp struct{ namespace, name string }

// selector returns the flags that select the pods in a command of kubectl.
func (a authApp) selector() string { return "-n " + a.namespace + " -l app=" + a.name }

// authApps returns the auth services of the installation, that of the operator's release first.
func (s *Snapshot) authApps() []authApp {
	apps := []authApp{{s.operatorNamespace(), cmp.Or(s.AuthApp, "stunner-auth")}}
	for _, pod := range list[corev1.Pod](s, "Pod") {
		if app := (authApp{pod.Namespace, pod.Labels["app"]}); s.readsConfigs(pod) && !slices.Contains(apps, app) {
			apps = append(apps, app)
		}
	}
	return apps
}

// readsConfigs reports whether a pod is that of an auth service that the operator accepts. The account decides, because
// tenants label their pods as they like. The name of the chart excludes other programs with an account that is accepted.
func (s *Snapshot) readsConfigs(pod *corev1.Pod) bool {
	account := pod.Namespace + "/" + cmp.Or(pod.Spec.ServiceAccountName, "default")
	return slices.Contains(s.Readers, account) && strings.HasSuffix(pod.Labels["app"], "-auth")
}

// authEndpoint returns the Service of an auth service, or nil.
func (s *Snapshot) authEndpoint(app authApp) *corev1.Service {
	for _, svc := range list[corev1.Service](s, "Service") {
		if svc.Namespace == app.namespace && svc.Labels["app"] == app.name {
			return svc
		}
	}
	return nil
}

// podsOfAuth returns the pods of an auth service. In the namespace of the operator, the label is enough.
func (s *Snapshot) podsOfAuth(app authApp) (pods []*corev1.Pod) {
	for _, pod := range list[corev1.Pod](s, "Pod") {
		if (authApp{pod.Namespace, pod.Labels["app"]}) == app && pod.DeletionTimestamp == nil &&
			(app.namespace == s.operatorNamespace() || s.readsConfigs(pod)) {
			pods = append(pods, pod)
		}
	}
	return pods
}

// authPods returns the pods of all auth services.
func (s *Snapshot) authPods() (pods []*corev1.Pod) {
	for _, app := range s.authApps() {
		pods = append(pods, s.podsOfAuth(app)...)
	}
	return pods
}

// authServices returns the auth services that have answered.
func (s *Snapshot) authServices() (all []authService) {
	if s.Auth == nil {
		return nil
	}
	for _, item := range s.Auth.Items {
		a := s.authOf(item.Pod)
		if item.Status == http.StatusOK && json.Unmarshal(item.Body, &a.AuthStatus) == nil {
			all = append(all, a)
		}
	}
	return all
}

// authOf returns the auth service of a pod: that of the operator's release for a process whose pod is not known, such as
// one with hostNetwork.
func (s *Snapshot) authOf(name string) authService {
	apps := s.authApps()
	for _, app := range apps {
		if slices.ContainsFunc(s.podsOfAuth(app), func(pod *corev1.Pod) bool { return pod.Name == name }) {
			return authService{pod: name, app: app}
		}
	}
	return authService{pod: name, app: apps[0]}
}

// authCounts returns the requests of the last ten minutes to some auth services: the number of refused requests by
// reason, and the number of requests that got credentials.
func authCounts(services []authService, of func(authService) bool) (refused map[string]uint64, granted uint64) {
	refused = map[string]uint64{}
	for _, a := range services {
		if !of(a) {
			continue
		}
		granted += a.Granted
		for reason, n := range a.Refused {
			refused[reason] += n
		}
	}
	return refused, granted
}

// keysFact describes the age of the oldest token keys.
func keysFact(services []authService) string {
	fact, oldest := "no tokens needed", time.Duration(-1)
	for _, a := range services {
		switch age := a.Now.Sub(a.KeysRead); {
		case a.Open:
		case a.KeysRead.IsZero():
			return "keys never read"
		case age > oldest:
			fact, oldest = "keys read "+span(age)+" ago", age
		}
	}
	return fact
}

func authFact(s *Snapshot, _ *Gateway) string {
	var facts []string
	pods := s.authPods()
	if len(pods) > 0 {
		n := 0
		for _, pod := range pods {
			if ready(pod) {
				n++
			}
		}
		facts = append(facts, fmt.Sprintf("%d/%d ready", n, len(pods)))
	}
	services := s.authServices()
	switch {
	case s.Auth == nil && len(pods) == 0:
		return notChecked + ": " + cmp.Or(s.AuthError, "its pods are not readable, and the operator was not asked about it")
	case s.Auth == nil:
		return strings.Join(append(facts, "not asked: "+cmp.Or(s.AuthError, "the operator was not asked")), ", ")
	case len(services) == 0:
		return strings.Join(append(facts, "none is connected to the operator"), ", ")
	}
	facts = append(facts, keysFact(services))
	refused, granted := authCounts(services, func(authService) bool { return true })
	facts = append(facts, fmt.Sprintf("in ten minutes %d requests got credentials", granted))
	var reasons []string
	for _, reason := range slices.SortedFunc(maps.Keys(refused), func(a, b string) int {
		return cmp.Or(cmp.Compare(refused[b], refused[a]), cmp.Compare(a, b))
	}) {
		reasons = append(reasons, fmt.Sprintf("%s %d", reason, refused[reason]))
	}
	if len(reasons) > 0 {
		facts = append(facts, "refused: "+few(reasons))
	}
	return strings.Join(facts, ", ")
}
