{{/*
kvlb.toml, of the values that mean a setting and of `settings` beside them. Never a secret: those are in a file of their own, which
this one includes.
*/}}

{{- define "kvlb.folder" -}}/etc/kvlb{{- end }}

{{- define "kvlb.hasSecrets" -}}
{{- if or .Values.secretSettings.values .Values.secretSettings.existingSecret }}true{{ end }}
{{- end }}

{{/* What the chart sets itself, as YAML. */}}
{{- define "kvlb.settings.own" -}}
{{- $folder := include "kvlb.folder" . -}}
{{- if include "kvlb.hasSecrets" . }}
include: [{{ $folder }}/secret/kvlb.toml]
{{- end }}
server:
  host: 0.0.0.0
  port: 8080
  processes: {{ .Values.gateway.processes }}
  drain_grace_seconds: {{ .Values.gateway.drain.graceSeconds }}
  drain_timeout_seconds: {{ .Values.gateway.drain.timeoutSeconds }}
index:
  max_blocks: {{ int64 .Values.gateway.maxBlocks }}
{{- if .Values.gateway.snapshotSize }}
snapshot:
  path: /var/lib/kvlb/index.snapshot
{{- end }}
{{- with .Values.engines }}
{{- if eq .discovery "kubernetes" }}
discovery:
  name: kubernetes
  namespace: {{ include "kvlb.namespace.engines" $ | quote }}
  {{- if or .matchLabels (not .service) }}
  selector: {{ include "kvlb.engines.selector" $ | quote }}
  {{- end }}
  {{- with .service }}
  service: {{ . | quote }}
  {{- end }}
  port: {{ .port }}
  scheme: {{ .scheme }}
  {{- with .replica }}
  replica: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- else if eq .discovery "dns" }}
discovery:
  name: dns
  host: {{ .host | quote }}
  port: {{ .port }}
  scheme: {{ .scheme }}
  {{- with .replica }}
  replica: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- with .replicas }}
replicas: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- if .Values.siblings.enabled }}
siblings:
  host: {{ include "kvlb.fullname" . }}-siblings
  port: 8080
  scheme: http
  interval_seconds: {{ .Values.siblings.intervalSeconds }}
  prewarm: {{ .Values.siblings.prewarm }}
{{- end }}
{{- if eq .Values.mode "epp" }}
epp:
  host: 0.0.0.0
  port: {{ .Values.epp.port }}
  response: {{ .Values.epp.response }}
  {{- if .Values.epp.tls.enabled }}
  cert_file: {{ $folder }}/epp-tls/tls.crt
  key_file: {{ $folder }}/epp-tls/tls.key
  {{- end }}
{{- end }}
{{- if .Values.auth.enabled }}
auth:
  keys_file: {{ $folder }}/keys/keys.toml
{{- end }}
{{- if .Values.tls.enabled }}
tls:
  cert_file: {{ $folder }}/tls/tls.crt
  key_file: {{ $folder }}/tls/tls.key
{{- end }}
{{- if .Values.tenants.isolation }}
tenants:
  isolation: true
  secret_file: {{ $folder }}/tenants/salt-secret
{{- end }}
{{- if .Values.fleet.enabled }}
{{- include "kvlb.settings.fleet" . }}
{{- end }}
{{- end }}

{{/* What the chart's own engines and stores mean for kvlb. */}}
{{- define "kvlb.settings.fleet" -}}
{{- $store := include "kvlb.store" . }}
{{- $size := (include "kvlb.pools" . | fromYaml).pools | default (list dict) | first | dig "tensorParallelSize" 1 }}
{{- if include "kvlb.hasRoles" . }}
disaggregation:
  {{- if $store }}
  name: multi
  settings:
    of: [{{ .Values.fleet.transfer.connector }}, shared]
  {{- else }}
  name: {{ .Values.fleet.transfer.connector }}
  {{- end }}
{{- end }}
{{- if eq $store "lmcache" }}
stores:
  - name: lmcache
    connector: redis
    url: {{ include "kvlb.redis.url" . }}
    chunk_size: {{ .Values.stores.lmcache.chunkSize }}
    world_size: {{ $size }}
    dtype: {{ .Values.stores.lmcache.dtype }}
    hash_seed: {{ .Values.stores.lmcache.hashSeed | quote }}
{{- else if eq $store "mooncake" }}
stores:
  - name: mooncake
    connector: mooncake
    url: http://{{ include "kvlb.fullname" . }}-mooncake:9003
    tiers: [cpu]
    tensor_parallel_size: {{ $size }}
{{- end }}
{{- end }}

{{/* The whole file. A setting that the chart sets is refused in `settings` (_checks.tpl), so nothing is overruled here. */}}
{{- define "kvlb.settings" -}}
{{- $own := include "kvlb.settings.own" . | fromYaml }}
{{- include "kvlb.toml" (dict "table" (merge $own (deepCopy .Values.settings)) "path" "") | trim }}
{{- end }}
