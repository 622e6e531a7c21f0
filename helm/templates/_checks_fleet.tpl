{{/* What contradicts itself among the chart's own engines and their store (_checks.tpl has the rest). */}}

{{- define "kvlb.checks.fleet" -}}
{{- $v := .Values }}
{{- if or $v.engines.matchLabels $v.engines.service }}
{{- fail "engines.matchLabels, engines.service: the chart's own engines are found by labels of their own; leave them out, or disable fleet" }}
{{- end }}
{{- if ne $v.engines.discovery "kubernetes" }}
{{- fail "engines.discovery: the chart's own engines are found by kubernetes" }}
{{- end }}
{{- if ne (include "kvlb.namespace.engines" .) .Release.Namespace }}
{{- fail "engines.namespace: the chart's own engines are in the release's namespace; leave it out, or disable fleet" }}
{{- end }}
{{- if ne $v.engines.scheme "http" }}
{{- fail "engines.scheme: the chart's own engines speak http" }}
{{- end }}
{{- if and $v.fleet.apiKey.secretName (not (include "kvlb.hasSecrets" .)) }}
{{- fail "fleet.apiKey: kvlb needs the engines' key, too; give it as upstream.api_key in secretSettings" }}
{{- end }}
{{- if and $v.stores.lmcache.enabled $v.stores.mooncake.enabled }}
{{- fail "stores.lmcache and stores.mooncake: engines have one store; enable one of them" }}
{{- end }}
{{- if and (include "kvlb.store" .) (gt (int $v.gateway.processes) 1) }}
{{- fail "gateway.processes: a store that is asked needs one process; set gateway.replicas higher instead" }}
{{- end }}
{{- if and (include "kvlb.store" .) (hasKey $v.settings "stores") }}
{{- fail "settings.stores: the store of the chart's own engines is set by stores; leave one of them out" }}
{{- end }}
{{- if and (include "kvlb.hasRoles" .) (hasKey (default dict $v.settings.disaggregation) "name") }}
{{- fail "settings.disaggregation.name: is what the value fleet.transfer.connector is for; set it there" }}
{{- end }}
{{- if and $v.stores.lmcache.enabled (contains "@" $v.stores.lmcache.redis.url) }}
{{- fail "stores.lmcache.redis.url: a password in it would be readable in a ConfigMap; use one without" }}
{{- end }}
{{- $pools := (include "kvlb.pools" . | fromYaml).pools }}
{{- if not $pools }}
{{- fail "fleet.pools: all of them are let go with null; name one, or disable fleet" }}
{{- end }}
{{- $roles := dict }}
{{- $sizes := dict }}
{{- range $pool := $pools }}
{{- if has .name (list "mooncake" "redis" "siblings") }}
{{- fail (printf "fleet.pools: %s is the name of another object of the chart; give the pool another one" .name) }}
{{- end }}
{{- $transfer := int $v.fleet.transfer.sideChannelPort }}
{{- if include "kvlb.hasRoles" $ }}
{{- range $name, $first := dict "engines.port" $v.engines.port "engines.eventsPort" $v.engines.eventsPort "engines.replayPort" $v.engines.replayPort }}
{{- $ranks := ternary 1 (int $pool.dataParallelSize) (eq $name "engines.port") }}
{{- if and (lt $transfer (add (int $first) $ranks | int)) (lt (int $first) (add $transfer (int $pool.dataParallelSize) | int)) }}
{{- fail (printf "fleet.transfer.sideChannelPort: %d and those after it, one for each rank, reach into those of %s; use another one" $transfer $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- $_ := set $roles .role true }}
{{- $_ := set $sizes (.tensorParallelSize | toString) true }}
{{- if not .model }}
{{- fail (printf "fleet.engine.model: pool %s has no model; name one, like meta-llama/Llama-3.1-8B-Instruct" .name) }}
{{- end }}
{{- if and .cache.existingClaim .cache.size }}
{{- fail (printf "fleet: pool %s has cache.existingClaim and cache.size; leave one of them empty" .name) }}
{{- end }}
{{- if and .cache.size (eq $v.fleet.kind "Deployment") }}
{{- fail (printf "fleet: pool %s has cache.size, a claim for each Pod, which a Deployment has not; use kind StatefulSet or cache.existingClaim" .name) }}
{{- end }}
{{- if and .lora.modules (not .lora.enabled) }}
{{- fail (printf "fleet: pool %s has lora.modules, which are used only with lora.enabled" .name) }}
{{- end }}
{{- range .extraArgs }}
{{- $flag := splitList "=" . | first }}
{{- if has $flag (list "--kv-events-config" "--kv-transfer-config" "--port" "--host" "--data-parallel-size" "--tensor-parallel-size" "--served-model-name" "--no-enable-prefix-caching" "--shutdown-timeout" "--enable-lora" "--max-model-len") }}
{{- fail (printf "fleet: extraArgs has %s, which the chart sets; use the value for it" $flag) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and (hasKey $roles "prefill") (not (hasKey $roles "decode")) (not (hasKey $roles "both")) }}
{{- fail "fleet.pools: there are pools that prefill, and none that decodes" }}
{{- end }}
{{- if and (hasKey $roles "decode") (not (hasKey $roles "prefill")) (not (hasKey $roles "both")) }}
{{- fail "fleet.pools: there are pools that decode, and none that prefills" }}
{{- end }}
{{- if and (include "kvlb.store" .) (gt (len $sizes) 1) }}
{{- fail "stores: pools differ in tensorParallelSize, so that they would not find each other's blocks; use one size" }}
{{- end }}
{{- end }}
