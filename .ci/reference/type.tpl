{{- define "type" -}}
{{- if and (markdownShouldRenderType .) (ne .Name "SecretValue") -}}
## {{ .Name }}

{{ .Doc }}
{{ if .GVK }}
`apiVersion: {{ .GVK.Group }}/{{ .GVK.Version }}`
{{ end }}
{{- if .Members }}
| field | meaning | default | bounds |
| --- | --- | --- | --- |
{{ range .Members -}}
{{- if not (has .Name (list "metadata" "status" "useDefaultGateways")) -}}
| `{{ .Name }}` {{ markdownRenderType .Type }} | {{ template "type_members" . }} | {{ markdownRenderDefault .Default }} | {{ template "bounds" .Validation }} |
{{ end -}}
{{ end -}}
{{ end -}}
{{- if .EnumValues }}
One of {{ range $i, $v := .EnumValues }}{{ if $i }}, {{ end }}`{{ $v.Name }}`{{ end }}.
{{ end -}}
{{- end -}}
{{- end -}}

{{- define "bounds" -}}
{{- $said := list -}}
{{- range . -}}
{{- if hasPrefix "Required" . }}{{ $said = append $said "required" -}}
{{- else if not (or (hasPrefix "Optional" .) (hasPrefix "Schemaless" .)) }}{{ $said = append $said (markdownRenderFieldDoc . | replace "1e+06" "1000000") -}}
{{- end -}}
{{- end -}}
{{ join ", " $said }}
{{- end -}}
