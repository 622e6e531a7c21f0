{{/* Names, labels and images: what every object of the chart has in common. */}}

{{- define "kvlb.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "kvlb.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trimSuffix "-" }}
{{- else if contains (include "kvlb.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "kvlb.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* What kvlb is here: the value of app.kubernetes.io/component. */}}
{{- define "kvlb.component" -}}
{{- ternary "picker" "gateway" (eq .Values.mode "epp") }}
{{- end }}

{{/* Labels by which things are found. They never change: no version is among them, and none of commonLabels. */}}
{{- define "kvlb.selector" -}}
app.kubernetes.io/name: {{ include "kvlb.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/*
Labels of Pods: {root, component, more}, of which the chart's own count first, then `more`. No version is among them, for another
chart is no reason to empty the caches of engines.
*/}}
{{- define "kvlb.labels.pod" -}}
{{- $own := include "kvlb.selector" . | fromYaml }}
{{- toYaml (mergeOverwrite (deepCopy (default dict .root.Values.commonLabels)) (deepCopy (default dict .more)) $own) }}
{{- end }}

{{- define "kvlb.labels" -}}
{{ include "kvlb.labels.pod" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "kvlb.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "kvlb.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* One image, of {image, tag}: the tag counts where the image names none. */}}
{{- define "kvlb.image" -}}
{{- if .image.digest }}
{{- printf "%s@%s" .image.repository .image.digest }}
{{- else }}
{{- printf "%s:%s" .image.repository (default .tag .image.tag) }}
{{- end }}
{{- end }}

{{- define "kvlb.pullSecrets" -}}
{{- with .Values.image.pullSecrets -}}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "kvlb.namespace.engines" -}}
{{- default .Release.Namespace .Values.engines.namespace }}
{{- end }}

{{/* Labels of the engines' Pods, as YAML. */}}
{{- define "kvlb.engines.labels" -}}
{{- if .Values.engines.matchLabels }}
{{- toYaml .Values.engines.matchLabels }}
{{- else }}
{{- if .Values.fleet.enabled }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{ end -}}
kvlb.io/engine: "true"
{{- end }}
{{- end }}

{{/* The same as a label selector: a=b,c=d. */}}
{{- define "kvlb.engines.selector" -}}
{{- $pairs := list }}
{{- range $key, $value := include "kvlb.engines.labels" . | fromYaml }}
{{- $pairs = append $pairs (printf "%s=%s" $key $value) }}
{{- end }}
{{- join "," $pairs }}
{{- end }}

{{/* Pods of kvlb itself, as a NetworkPolicyPeer. */}}
{{- define "kvlb.peer" -}}
{{- if ne (include "kvlb.namespace.engines" .) .Release.Namespace }}
namespaceSelector:
  matchLabels:
    kubernetes.io/metadata.name: {{ .Release.Namespace | quote }}
{{- end }}
podSelector:
  matchLabels: {{- include "kvlb.selector" (dict "root" . "component" (include "kvlb.component" .)) | nindent 4 }}
{{- end }}

{{/* How many Pods there are, where nothing else scales them. */}}
{{- define "kvlb.replicas" -}}
{{- default 2 .Values.gateway.replicas }}
{{- end }}

{{- define "kvlb.isScaled" -}}
{{- if or .Values.autoscaling.hpa.enabled .Values.autoscaling.keda.enabled }}true{{ end }}
{{- end }}

{{/*
Resources of kvlb, unless they are given. MiB: 64 for a process, and for each that serves the memory for hashes and for token ids
(hashing.memory_bytes, tokenizer.cache_bytes); 190 bytes for each block, and a fifth more while a snapshot is saved. A core for each
process. docs/kubernetes.md says where the figures are from.
*/}}
{{- define "kvlb.resources" -}}
{{- if .Values.gateway.resources }}
{{- toYaml .Values.gateway.resources }}
{{- else }}
{{- $settings := .Values.settings }}
{{- $hashes := get (default dict $settings.hashing) "memory_bytes" | default 67108864 | int64 }}
{{- $texts := get (default dict $settings.tokenizer) "cache_bytes" | default 67108864 | int64 }}
{{- $processes := int .Values.gateway.processes }}
{{- $all := ternary 1 (add $processes 1) (eq $processes 1) | int }}
{{- $bytes := add (mul $all 67108864) (mul $processes (add $hashes $texts)) (div (mul (int64 .Values.gateway.maxBlocks) 190 6) 5) }}
{{- $mebibytes := mul 64 (add1 (div $bytes 67108864)) -}}
requests:
  cpu: {{ $all | quote }}
  memory: {{ $mebibytes }}Mi
limits:
  memory: {{ div (mul $mebibytes 3) 2 }}Mi
{{- end }}
{{- end }}
