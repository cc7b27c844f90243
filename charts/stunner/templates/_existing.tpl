{{/* The values of the existing chart, as YAML: log, the settings of the logs; problems, the values that stop the installation; ignored, the values without an
effect. An own value of this chart takes precedence. */}}
{{- define "stunner.existing" -}}
{{- $o := .Values.stunnerGatewayOperator -}}
{{- $a := .Values.stunnerAuthService -}}
{{- $logging := .Values.logging | default dict -}}
{{- $log := dict -}}
{{- $problems := list -}}
{{- $ignored := list -}}

{{- /* Images of the existing system, also from a mirror. The names of the dataplane images are the same in both systems. */ -}}
{{- range $key, $image := dict
  "stunnerGatewayOperator.deployment.container.manager.image" (and $o.enabled $o.deployment.container.manager.image | default dict)
  "stunnerAuthService.deployment.container.authService.image" (and $a.enabled $a.deployment.container.authService.image | default dict) -}}
{{- if regexMatch "(^|/)(l7mp/|stunner-(gateway-operator|auth-server)[^/]*$)" ($image.name | default "") -}}
{{- $problems = printf "%s: %s does not have the flags of this chart: delete name, tag and digest" $key $image.name | append $problems -}}
{{- end -}}
{{- end -}}
{{- $spec := and .Values.defaults.create $o.dataplane.spec | default dict -}}
{{- range $key, $image := dict "stunnerGatewayOperator.dataplane.image" $o.dataplane.image
  "stunnerGatewayOperator.dataplane.spec.image" (kindIs "map" $spec.image | ternary $spec.image (dict "name" $spec.image)) -}}
{{- if and (regexMatch "(^|/)l7mp/" ($image.name | default "")) (has $o.discovery.auth (list "strict" "permissive")) -}}
{{- $problems = printf "%s: %s supports neither TLS nor tokens, so it would get no config: delete name, tag and digest, or set stunnerGatewayOperator.discovery.auth=pod-address" $key $image.name | append $problems -}}
{{- end -}}
{{- end -}}

{{- $mode := $o.dataplane.mode | default "managed" -}}
{{- if ne $mode "managed" -}}
{{- $problems = printf "stunnerGatewayOperator.dataplane.mode: %s is not supported, because the operator creates the dataplanes: set managed" $mode | append $problems -}}
{{- end -}}

{{- /* Logs. Levels are those of zap, where a number is a verbosity. */ -}}
{{- $given := dig "operator" "level" "" $logging | toString | lower -}}
{{- $level := get (dict "debug" "all:DEBUG" "1" "all:DEBUG" "info" "all:INFO" "warn" "all:WARN" "error" "all:ERROR" "panic" "all:ERROR") $given -}}
{{- if and (not $level) (regexMatch "^[1-9][0-9]*$" $given) -}}
{{- $level = "all:TRACE" -}}
{{- end -}}
{{- if and $given (not $level) -}}
{{- $problems = printf "logging.operator.level: %s is unknown: use debug, info, warn or error, or set stunnerGatewayOperator.log.level instead" $given | append $problems -}}
{{- end -}}
{{- $formats := dict -}}
{{- range $part := list "operator" "dataplane" "authService" -}}
{{- $format := dig $part "format" "" $logging | lower -}}
{{- $_ := set $formats $part $format -}}
{{- if not (has $format (list "" "text" "json")) -}}
{{- $problems = printf "logging.%s.format: %s is unknown: use text or json" $part $format | append $problems -}}
{{- end -}}
{{- end -}}
{{- range $key, $v := dict
  "operator.level" (list $level "all:INFO" $o.log.level "stunnerGatewayOperator.log.level")
  "operator.format" (list $formats.operator "text" $o.log.format "stunnerGatewayOperator.log.format")
  "authService.format" (list $formats.authService "text" $a.log.format "stunnerAuthService.log.format") -}}
{{- $value := index $v 0 -}}
{{- $own := index $v 2 -}}
{{- if eq $own (index $v 1) -}}
{{- $_ := $value | default $own | set $log $key -}}
{{- else -}}
{{- $_ := set $log $key $own -}}
{{- if and $value (ne $value $own) -}}
{{- $ignored = printf "logging.%s: %s is set" $key (index $v 3) | append $ignored -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $_ := set $log "dataplane.format" $formats.dataplane -}}
{{- if and (eq $formats.dataplane "json") (not .Values.defaults.create) -}}
{{- $ignored = append $ignored "logging.dataplane.format: without defaults.create there is no Dataplane, add --log-format=json to args of your own" -}}
{{- end -}}

{{- if $o.customerKey -}}
{{- $ignored = append $ignored "stunnerGatewayOperator.customerKey: all features are enabled without a key" -}}
{{- end -}}
{{- if (.Values.standardCrds | default dict).enabled -}}
{{- $ignored = append $ignored "standardCrds.enabled: crds.gatewayAPI.enabled installs the CRDs of the Gateway API" -}}
{{- end -}}
{{- if (.Values.experimentalCrds | default dict).enabled -}}
{{- $ignored = append $ignored "experimentalCrds.enabled: this chart has the standard channel only, CRDs in the cluster stay as they are" -}}
{{- end -}}
{{- toYaml (dict "log" $log "problems" $problems "ignored" $ignored) -}}
{{- end }}
