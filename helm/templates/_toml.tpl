{{/*
TOML of plain values. Helm's own toToml writes 8080 as 8080.0, for YAML numbers are floats to it; JSON's numbers, strings and
lists are TOML's, too (but for DEL, which JSON does not escape). {table, path} -> text: plain values first, then tables, then lists of tables.
*/}}

{{- define "kvlb.toml.key" -}}
{{- if regexMatch "^[A-Za-z0-9_-]+$" . }}{{ . }}{{ else }}{{ toRawJson . }}{{ end }}
{{- end }}

{{- define "kvlb.toml.kind" -}}
{{- if kindIs "map" . }}table
{{- else if and (kindIs "slice" .) . }}
{{- if kindIs "map" (first .) }}tables{{ else }}plain{{ end }}
{{- else if kindIs "invalid" . }}nothing
{{- else }}plain{{ end }}
{{- end }}

{{- define "kvlb.toml" -}}
{{- $path := .path }}
{{- range $name, $value := .table }}
{{- if eq (include "kvlb.toml.kind" $value) "plain" }}
{{ include "kvlb.toml.key" $name }} = {{ toRawJson $value | replace "\u007f" "\\u007f" }}
{{- end }}
{{- end }}
{{- range $name, $value := .table }}
{{- $here := include "kvlb.toml.key" $name }}
{{- if $path }}{{ $here = printf "%s.%s" $path $here }}{{ end }}
{{- $kind := include "kvlb.toml.kind" $value }}
{{- if eq $kind "table" }}

[{{ $here }}]
{{- include "kvlb.toml" (dict "table" $value "path" $here) }}
{{- else if eq $kind "tables" }}
{{- range $value }}

[[{{ $here }}]]
{{- include "kvlb.toml" (dict "table" . "path" $here) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
