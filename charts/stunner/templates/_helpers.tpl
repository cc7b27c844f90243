{{/* The namespace of the objects. */}}
{{- define "stunner.namespace" -}}
{{ .Values.namespaceOverride | default .Release.Namespace }}
{{- end }}

{{/* Labels of every object. Users cannot override them: some versions of Helm reject a duplicate key. */}}
{{- define "stunner.labels" -}}
{{- toYaml (merge (dict
  "app.kubernetes.io/part-of" "stunner"
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_")) .Values.commonLabels) }}
{{- end }}

{{/* The same with labels of the object itself, which come first: dict "root" $ "own" LABELS. */}}
{{- define "stunner.labelsWith" -}}
{{- toYaml (merge (dict) (.own | default dict) (include "stunner.labels" .root | fromYaml)) }}
{{- end }}

{{/* The name of the objects of one of the two services: dict "root" $ "part" "auth". It is also the label app of the pods. */}}
{{- define "stunner.name" -}}
{{ include "stunner.prefix" .root }}-{{ .part }}
{{- end }}

{{- define "stunner.prefix" -}}
{{- $named := not (empty .Values.nameOverride) | ternary (printf "%s-%s" .Release.Name .Values.nameOverride) "stunner" -}}
{{ .Values.fullnameOverride | default $named }}
{{- end }}

{{/* The ServiceAccount of the operator, and that of the auth service: dict "root" $ "part" "auth". */}}
{{- define "stunner.account" -}}
{{- $values := eq .part "auth" | ternary .root.Values.stunnerAuthService .root.Values.stunnerGatewayOperator -}}
{{ $values.serviceAccount.name | default (include "stunner.name" .) }}
{{- end }}

{{/* An image with its digest, otherwise its tag, otherwise the appVersion. The first part of a name is a registry if it contains a dot or a colon. */}}
{{- define "stunner.image" -}}
{{- $image := .image -}}
{{- $name := $image.name -}}
{{- with .root.Values.global.imageRegistry -}}
{{- $parts := splitList "/" $name -}}
{{- $registry := first $parts -}}
{{- $rest := or (contains "." $registry) (contains ":" $registry) (eq $registry "localhost") | ternary (rest $parts) $parts -}}
{{- $name = printf "%s/%s" (trimSuffix "/" .) (join "/" $rest) -}}
{{- end -}}
{{- if $image.digest -}}
{{ printf "%s@%s" $name $image.digest }}
{{- else -}}
{{ printf "%s:%s" $name ($image.tag | default .root.Chart.AppVersion) }}
{{- end -}}
{{- end }}

{{/* The image in the spec of the Dataplane as an object: missing fields are taken from dataplane.image, whose digest belongs to its own tag. The schema
does not check the type of the tag: a number is written as it is. */}}
{{- define "stunner.dataplaneImage" -}}
{{- $o := .Values.stunnerGatewayOperator.dataplane -}}
{{- $image := pick $o.spec.image "name" "tag" "digest" -}}
{{- with $image.tag -}}
{{- $_ := kindIs "string" . | ternary . (toJson .) | set $image "tag" -}}
{{- end -}}
{{- $digest := empty $image.tag | ternary $o.image.digest "" -}}
{{- include "stunner.image" (dict "root" . "image" (dict
  "name" ($image.name | default $o.image.name) "tag" ($image.tag | default $o.image.tag) "digest" ($image.digest | default $digest))) -}}
{{- end }}

{{/* Common fields of the pods of both Deployments: dict "root" $ "app" NAME "deployment" VALUES. */}}
{{- define "stunner.rollout" -}}
{{- $pods := .root.Values.pods -}}
{{- if ne (int $pods.revisionHistoryLimit) 10 }}
revisionHistoryLimit: {{ $pods.revisionHistoryLimit }}
{{- end }}
selector:
  matchLabels:
    app: {{ .app | quote }}
strategy:
  {{- toYaml $pods.updateStrategy | nindent 2 }}
{{- end }}

{{/* Labels and annotations of the pods. The labels of the selector come last, so that users cannot override them. */}}
{{- define "stunner.podMetadata" -}}
labels:
  {{- toYaml (merge (dict "app" .app) (.labels | default dict) (.deployment.podLabels | default dict)) | nindent 2 }}
{{- with .deployment.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "stunner.pod" -}}
{{- $pods := .root.Values.pods -}}
securityContext:
  {{- toYaml .deployment.securityContext | nindent 2 }}
{{- with concat (.deployment.imagePullSecrets | default list) .root.Values.global.imagePullSecrets | uniq }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .deployment.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $pods.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with $pods.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pods.dnsPolicy }}
dnsPolicy: {{ . | quote }}
{{- end }}
{{- with $pods.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if not $pods.enableServiceLinks }}
enableServiceLinks: false
{{- end }}
{{- with .deployment.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .deployment.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .deployment.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  {{- if .deployment.topologySpreadConstraints }}
  {{- toYaml .deployment.topologySpreadConstraints | nindent 2 }}
  {{- else }}
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - topologyKey: {{ . | quote }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        app: {{ $.app | quote }}
  {{- end }}
  {{- end }}
{{- end }}

{{/* A probe: the chart sets the handler, the values set the times. */}}
{{- define "stunner.probes" -}}
{{- range $probe, $path := dict "livenessProbe" "/live" "readinessProbe" "/ready" }}
{{ $probe }}:
  {{- toYaml (merge (dict "httpGet" (dict "path" $path "port" "health")) (get $.Values.pods $probe)) | nindent 2 }}
{{- end }}
{{- end }}

{{/* The budget of evictions of one of the Deployments: dict "root" $ "app" NAME. */}}
{{- define "stunner.disruptionBudget" -}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .app | quote }}
  namespace: {{ include "stunner.namespace" .root | quote }}
  labels:
    {{- include "stunner.labels" .root | nindent 4 }}
spec:
  {{- with .root.Values.podDisruptionBudget }}
  {{- if .minAvailable | toString }}
  minAvailable: {{ .minAvailable }}
  {{- else }}
  maxUnavailable: {{ .maxUnavailable }}
  {{- end }}
  {{- end }}
  unhealthyPodEvictionPolicy: {{ .root.Values.podDisruptionBudget.unhealthyPodEvictionPolicy | quote }}
  selector:
    matchLabels:
      app: {{ .app | quote }}
{{- end }}

{{/* Labels and annotations of a Service: dict "root" $ "own" LABELS "service" VALUES. */}}
{{- define "stunner.serviceMetadata" -}}
labels:
  {{- include "stunner.labelsWith" (dict "root" .root "own" (merge (dict) .own .service.labels)) | nindent 2 }}
{{- with .service.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "stunner.serviceFamilies" -}}
{{- with .ipFamilyPolicy }}
ipFamilyPolicy: {{ . | quote }}
{{- end }}
{{- with .ipFamilies }}
ipFamilies:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* URL of config discovery. Kubernetes expands the namespace. */}}
{{- define "stunner.discoveryURL" -}}
{{- $o := .Values.stunnerGatewayOperator -}}
{{ eq $o.discovery.auth "off" | ternary "http" "https" }}://stunner-config-discovery.$(POD_NAMESPACE).svc.{{ $o.clusterDomain }}:13478
{{- end }}

{{- define "stunner.podNamespace" -}}
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- end }}

{{/* An incomplete authentication of callers is an error, so that a service is not open by mistake. */}}
{{- define "stunner.checkJWT" -}}
{{- if or .issuer .audience .jwksURL .existingSecret .jwksFile -}}
{{- if not .issuer -}}
{{- fail "stunnerAuthService.jwt.issuer: is missing: name the issuer of the tokens, or set no other value of stunnerAuthService.jwt" -}}
{{- else if not .audience -}}
{{- fail "stunnerAuthService.jwt.audience: is missing: name the audience of the tokens" -}}
{{- else if not (or .jwksURL .existingSecret .jwksFile) -}}
{{- fail "stunnerAuthService.jwt.jwksURL: is missing: set the URL of the keys of the issuer, or name a Secret in stunnerAuthService.jwt.existingSecret" -}}
{{- else if and .jwksURL .existingSecret -}}
{{- fail "stunnerAuthService.jwt.existingSecret: is one key, stunnerAuthService.jwt.jwksURL another: set one of them" -}}
{{- else if and .jwksFile (or .jwksURL .existingSecret) -}}
{{- fail "stunnerAuthService.jwt.jwksFile: is one key, stunnerAuthService.jwt.jwksURL or existingSecret another: set one of them" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* One source of the policy of callers. */}}
{{- define "stunner.checkPolicy" -}}
{{- if and .policy.existingConfigMap .policy.existingSecret -}}
{{- fail "stunnerAuthService.policy.existingSecret: is one policy, stunnerAuthService.policy.existingConfigMap another: set one of them" -}}
{{- else if and (include "stunner.policy" .) .jwt.issuer -}}
{{- fail "stunnerAuthService.policy: excludes stunnerAuthService.jwt: write the issuer into the policy" -}}
{{- else if and .revocations.enabled (not (include "stunner.policy" .)) -}}
{{- fail "stunnerAuthService.revocations.enabled: has no effect without a policy, which says who may revoke: set stunnerAuthService.policy.existingConfigMap or existingSecret" -}}
{{- else if and .revocations.enabled .clusters.existingSecret -}}
{{- fail "stunnerAuthService.revocations.enabled: excludes stunnerAuthService.clusters: create Revocation objects in each cluster" -}}
{{- else if and .policy.clusterKeys (not (include "stunner.policy" .)) -}}
{{- fail "stunnerAuthService.policy.clusterKeys: has no effect without a policy: set stunnerAuthService.policy.existingConfigMap or existingSecret" -}}
{{- end -}}
{{- end }}

{{/* The ConfigMap or Secret with the policy of callers; empty without a policy. */}}
{{- define "stunner.policy" -}}
{{- .policy.existingConfigMap | default .policy.existingSecret -}}
{{- end }}

{{/* An auth service without authentication is not exposed outside the cluster. */}}
{{- define "stunner.checkOpen" -}}
{{- $open := not (or .jwt.issuer (include "stunner.policy" .)) -}}
{{- if and $open (ne .service.type "ClusterIP") -}}
{{- fail (printf "stunnerAuthService.service.type: %s gives credentials to every client outside the cluster: configure stunnerAuthService.jwt or stunnerAuthService.policy, or use ClusterIP" .service.type) -}}
{{- end -}}
{{- range list "ingress" "httpRoute" -}}
{{- if and $open (index $ .).enabled -}}
{{- fail (printf "stunnerAuthService.%s.enabled: true gives credentials to every client outside the cluster: configure stunnerAuthService.jwt or stunnerAuthService.policy" .) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The operator tells KEDA the number of allocations, unless a Prometheus does. */}}
{{- define "stunner.checkScaler" -}}
{{- if and .dataplane.spec.autoscaling (not .scaler.enabled) (ne (.dataplane.spec.autoscaling.trigger | default "external") "prometheus") -}}
{{- fail "stunnerGatewayOperator.scaler.enabled: false takes from KEDA the number of allocations, so that stunnerGatewayOperator.dataplane.spec.autoscaling has no effect: set it to true, or dataplane.spec.autoscaling.trigger to prometheus" -}}
{{- end -}}
{{- end }}

{{/* Two operators with one controller name would write the same objects: the younger one is paused. Only a cluster shows the other release. A ClusterRole with
the name of this release's is left to Helm, which rejects that of others. */}}
{{- define "stunner.checkController" -}}
{{- $controller := .Values.stunnerGatewayOperator.controllerName -}}
{{- $own := include "stunner.clusterName" (dict "root" . "name" "stunner-operator") -}}
{{- range (lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "").items -}}
{{- $annotations := .metadata.annotations | default dict -}}
{{- if and (eq (get $annotations "stunner.l7mp.io/controller-name") $controller) (ne .metadata.name $own) -}}
{{- fail (printf "stunnerGatewayOperator.controllerName: %s is that of the operator of ClusterRole %s already (release %s, namespace %s): set another controllerName and another defaults.gatewayClass.name, or uninstall that operator" $controller .metadata.name (get $annotations "meta.helm.sh/release-name" | default "none") (get $annotations "meta.helm.sh/release-namespace" | default "unknown")) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The namespace of the GatewayConfig, which the operator must watch. */}}
{{- define "stunner.configNamespace" -}}
{{- $namespace := .Values.defaults.gatewayConfig.namespace | default (include "stunner.namespace" .) -}}
{{- if and .Values.watchNamespaces (not (has $namespace .Values.watchNamespaces)) -}}
{{- fail (printf "defaults.gatewayConfig.namespace: namespace %s is not watched: add it to watchNamespaces, or name one of these" $namespace) -}}
{{- end -}}
{{- $namespace -}}
{{- end }}

{{/* Whether the GatewayConfig has credentials of its own. */}}
{{- define "stunner.ownCredentials" -}}
{{- with .Values.defaults.gatewayConfig.spec }}{{ if or .authRef .authType .password .sharedSecret }}true{{ end }}{{ end -}}
{{- end }}

{{/* The Secret that the operator creates for the GatewayConfig; empty if the user provides it. */}}
{{- define "stunner.credentials" -}}
{{- $d := .Values.defaults -}}
{{- if and $d.create $d.gatewayConfig.create $d.credentials.create (not (include "stunner.ownCredentials" .)) -}}
{{- if ne (include "stunner.configNamespace" .) (include "stunner.namespace" .) -}}
{{- fail (printf "defaults.credentials.create: the operator makes Secrets in its own namespace only: make Secret %s in namespace %s, and set this to false" $d.credentials.name (include "stunner.configNamespace" .)) -}}
{{- end -}}
{{- $d.credentials.name -}}
{{- end -}}
{{- end }}

{{/* Names of cluster-scoped objects and of objects in other namespaces contain the namespace of the release, because there can be other releases. */}}
{{- define "stunner.clusterName" -}}
{{- $namespace := include "stunner.namespace" .root -}}
{{- .name }}{{ if ne $namespace "stunner-system" }}-{{ $namespace }}{{ end -}}
{{- end }}
