{{/* The chart's own engines: pools, and the command line of vLLM. */}}

{{/* The second of two maps over the first, as YAML. Sprig's merge takes 0 and false for nothing. */}}
{{- define "kvlb.overlaid" -}}
{{- $made := deepCopy (first .) }}
{{- range $name, $value := last . }}
{{- if and (kindIs "map" $value) (kindIs "map" (get $made $name)) }}
{{- $_ := set $made $name (include "kvlb.overlaid" (list (get $made $name) $value) | fromYaml) }}
{{- else }}
{{- $_ := set $made $name $value }}
{{- end }}
{{- end }}
{{- toYaml $made }}
{{- end }}

{{/* All pools, each with all its values and its name: {pools: [...]} as YAML. */}}
{{- define "kvlb.pools" -}}
{{- $pools := list }}
{{- range $name, $pool := default (dict "engine" dict) .Values.fleet.pools }}
{{- if not (kindIs "invalid" $pool) }}
{{- $made := include "kvlb.overlaid" (list $.Values.fleet.engine $pool) | fromYaml }}
{{- $pools = append $pools (set $made "name" $name) }}
{{- end }}
{{- end }}
{{- toYaml (dict "pools" $pools) }}
{{- end }}

{{- define "kvlb.hasRoles" -}}
{{- range (include "kvlb.pools" . | fromYaml).pools }}
{{- if ne .role "both" }}true{{ end }}
{{- end }}
{{- end }}

{{/* The store of the fleet; empty where there is none. */}}
{{- define "kvlb.store" -}}
{{- if .Values.stores.lmcache.enabled }}lmcache{{ else if .Values.stores.mooncake.enabled }}mooncake{{ end }}
{{- end }}

{{- define "kvlb.redis.url" -}}
{{- default (printf "redis://%s-redis:6379" (include "kvlb.fullname" .)) .Values.stores.lmcache.redis.url }}
{{- end }}

{{- define "kvlb.pool.fullname" -}}
{{ include "kvlb.fullname" .root }}-{{ .pool.name }}
{{- end }}

{{/* Labels by which a pool's Pods are found: {root, pool}. */}}
{{- define "kvlb.pool.selector" -}}
{{ include "kvlb.selector" (dict "root" .root "component" "engine") }}
kvlb.io/pool: {{ .pool.name | quote }}
{{- end }}

{{/* Accelerators of a Pod. */}}
{{- define "kvlb.pool.gpus" -}}
{{- if .gpus }}{{ int .gpus }}{{ else }}{{ mul (int .tensorParallelSize) (int .dataParallelSize) }}{{ end }}
{{- end }}

{{/* --kv-transfer-config of a pool as JSON; empty where nothing is transferred: {root, pool}. */}}
{{- define "kvlb.pool.transfer" -}}
{{- $parts := list }}
{{- $role := dict "both" "kv_both" "prefill" "kv_producer" "decode" "kv_consumer" }}
{{- if include "kvlb.hasRoles" .root }}
{{- $name := ternary "NixlPushConnector" "NixlConnector" (eq .root.Values.fleet.transfer.connector "nixl_push") }}
{{- $part := dict "kv_connector" $name "kv_role" (get $role .pool.role) }}
{{- with .root.Values.fleet.transfer.extraConfig }}
{{- $_ := set $part "kv_connector_extra_config" . }}
{{- end }}
{{- $parts = append $parts $part }}
{{- end }}
{{- $store := include "kvlb.store" .root }}
{{- if $store }}
{{- $name := ternary "LMCacheConnectorV1" "MooncakeStoreConnector" (eq $store "lmcache") }}
{{- $parts = append $parts (dict "kv_connector" $name "kv_role" "kv_both") }}
{{- end }}
{{- if gt (len $parts) 1 }}
{{- toRawJson (dict "kv_connector" "MultiConnector" "kv_role" "kv_both" "kv_connector_extra_config" (dict "connectors" $parts)) }}
{{- else if $parts }}
{{- toRawJson (first $parts) }}
{{- end }}
{{- end }}

{{/* The arguments of `vllm serve`, as a YAML list: {root, pool}. */}}
{{- define "kvlb.pool.args" -}}
{{- $engines := .root.Values.engines }}
{{- $events := dict "enable_kv_cache_events" true "publisher" "zmq"
  "endpoint" (printf "tcp://*:%d" (int $engines.eventsPort)) "replay_endpoint" (printf "tcp://*:%d" (int $engines.replayPort)) -}}
- serve
- {{ .pool.model | quote }}
- --host=0.0.0.0
- --port={{ $engines.port }}
{{- with .pool.servedModelName }}
- {{ printf "--served-model-name=%s" . | quote }}
{{- end }}
- --tensor-parallel-size={{ .pool.tensorParallelSize }}
{{- if gt (int .pool.dataParallelSize) 1 }}
- --data-parallel-size={{ .pool.dataParallelSize }}
{{- end }}
{{- if .pool.maxModelLen }}
- --max-model-len={{ int64 .pool.maxModelLen }}
{{- end }}
- --enable-prefix-caching
- --enable-prompt-tokens-details
- --enable-scale-out
- --shutdown-timeout={{ int64 .pool.drainSeconds }}
- --kv-events-config
- {{ toRawJson $events | quote }}
{{- with include "kvlb.pool.transfer" . }}
- --kv-transfer-config
- {{ quote . }}
{{- end }}
{{- with .pool.lora }}
{{- if .enabled }}
- --enable-lora
- --max-loras={{ .maxLoras }}
- --max-lora-rank={{ .maxRank }}
{{- with .modules }}
- --lora-modules
{{- range . }}
- {{ printf "%s=%s" .name .path | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- range .pool.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* The environment of an engine, as a YAML list: {root, pool}. */}}
{{- define "kvlb.pool.env" -}}
{{- $fleet := .root.Values.fleet -}}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: VLLM_HOST_IP
  value: $(POD_IP)
- name: HOME
  value: /cache/home
- name: USER
  value: vllm
- name: HF_HOME
  value: /cache/huggingface
- name: VLLM_CACHE_ROOT
  value: /cache/vllm
- name: VLLM_NO_USAGE_STATS
  value: "1"
{{- with $fleet.apiKey }}
{{- if .secretName }}
- name: VLLM_API_KEY
  valueFrom:
    secretKeyRef:
      name: {{ .secretName }}
      key: {{ .secretKey }}
{{- end }}
{{- end }}
{{- with $fleet.hfToken }}
{{- if .secretName }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ .secretName }}
      key: {{ .secretKey }}
{{- end }}
{{- end }}
{{- if and .pool.lora.enabled .pool.lora.runtimeUpdating }}
- name: VLLM_ALLOW_RUNTIME_LORA_UPDATING
  value: "True"
{{- end }}
{{- if include "kvlb.hasRoles" .root }}
- name: VLLM_NIXL_SIDE_CHANNEL_HOST
  value: $(POD_IP)
- name: VLLM_NIXL_SIDE_CHANNEL_PORT
  value: {{ $fleet.transfer.sideChannelPort | quote }}
{{- end }}
{{- $store := include "kvlb.store" .root }}
{{- if eq $store "lmcache" }}
{{- with .root.Values.stores.lmcache }}
- name: PYTHONHASHSEED
  value: {{ .hashSeed | quote }}
- name: LMCACHE_CHUNK_SIZE
  value: {{ .chunkSize | quote }}
- name: LMCACHE_LOCAL_CPU
  value: "True"
- name: LMCACHE_MAX_LOCAL_CPU_SIZE
  value: {{ .cpuGigabytes | quote }}
- name: LMCACHE_REMOTE_SERDE
  value: naive
- name: LMCACHE_PRE_CACHING_HASH_ALGORITHM
  value: sha256_cbor
{{- end }}
- name: LMCACHE_REMOTE_URL
  value: {{ include "kvlb.redis.url" .root }}
{{- else if eq $store "mooncake" }}
- name: MOONCAKE_CONFIG_PATH
  value: /etc/mooncake/mooncake.json
{{- end }}
{{- with .pool.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
What an engine does before it is told to end: wait until kvlb has taken it out of use, which its end in the API server's lists tells,
then until nothing is under way any more. vLLM answers requests that come after SIGTERM with 200 and nothing.
*/}}
{{- define "kvlb.pool.drain" -}}
import re, time, urllib.request
until = time.monotonic() + {{ .pool.drainSeconds }}
time.sleep(min(5, {{ .pool.drainSeconds }}))
while time.monotonic() < until:
    try:
        page = urllib.request.urlopen("http://127.0.0.1:{{ .root.Values.engines.port }}/metrics", timeout=5).read().decode()
    except OSError:
        break
    left = re.findall(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", page, re.M)
    if not any(float(each) for each in left):
        break
    time.sleep(1)
{{- end }}
