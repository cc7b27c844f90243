{{- define "type_members" -}}
{{- if eq .Name "parentRefs" -}}
The Gateways, in any namespace that they admit; with `sectionName` one listener of them.
{{- else -}}
{{ markdownRenderFieldDoc .Doc | replace "<br />" " " }}
{{- end -}}
{{- end -}}
