{{/* Values that contradict each other end the installation, with a sentence that says what to do. */}}

{{/* Settings that other values of the chart set: dotted name -> the value to use. */}}
{{- define "kvlb.checks.owned" -}}
include: secretSettings
replicas: engines.replicas
discovery.name: engines.discovery
discovery.namespace: engines.namespace
discovery.selector: engines.matchLabels
discovery.service: engines.service
discovery.host: engines.host
discovery.port: engines.port
discovery.scheme: engines.scheme
discovery.replica: engines.replica
siblings.urls: siblings
siblings.host: siblings
siblings.port: siblings
siblings.scheme: siblings
siblings.interval_seconds: siblings.intervalSeconds
siblings.prewarm: siblings.prewarm
epp.host: epp
epp.port: epp.port
epp.response: epp.response
epp.cert_file: epp.tls
epp.key_file: epp.tls
server.host: gateway.service
server.port: gateway.service.port
server.processes: gateway.processes
server.drain_grace_seconds: gateway.drain.graceSeconds
server.drain_timeout_seconds: gateway.drain.timeoutSeconds
index.max_blocks: gateway.maxBlocks
snapshot.path: gateway.snapshotSize
snapshot.siblings: siblings.prewarm
auth.keys_file: auth
auth.keys_variable: auth
tls.cert_file: tls.secretName
tls.key_file: tls.secretName
tenants.isolation: tenants.isolation
tenants.secret_file: tenants.existingSecret
{{- end }}

{{/* Settings that are secrets, and so nothing for a ConfigMap. */}}
{{- define "kvlb.checks.secret" -}}
upstream.api_key: true
siblings.api_key: true
snapshot.sibling_api_key: true
{{- end }}

{{/* {named, own}: a sentence if one of those names is the chart's own: an object with one name twice is none. */}}
{{- define "kvlb.checks.names" -}}
{{- range $name, $_ := .named }}
{{- if has $name $.own }}
{{- fail (printf "%s: %s is set by the chart; leave it out%s" $.path $name (default "" $.remedy)) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "kvlb.checks.labels" -}}
{{- $v := .Values }}
{{- $own := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" }}
{{- $all := concat $own (list "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart" "kvlb.io/pool" "kvlb.io/engine" "kvlb.io/role" "kvlb.io/metrics") }}
{{- include "kvlb.checks.names" (dict "path" "commonLabels" "named" $v.commonLabels "own" $all) }}
{{- include "kvlb.checks.names" (dict "path" "gateway.podLabels" "named" $v.gateway.podLabels "own" $own) }}
{{- include "kvlb.checks.names" (dict "path" "gateway.podAnnotations" "named" $v.gateway.podAnnotations "own" (list "checksum/settings" "checksum/secret-settings")) }}
{{- if $v.fleet.enabled }}
{{- range (include "kvlb.pools" . | fromYaml).pools }}
{{- include "kvlb.checks.names" (dict "path" (printf "fleet: podLabels of pool %s" .name) "named" .podLabels "own" (concat $own (list "kvlb.io/pool" "kvlb.io/engine" "kvlb.io/role")) "remedy" ", or use role") }}
{{- include "kvlb.checks.names" (dict "path" (printf "fleet: podAnnotations of pool %s" .name) "named" .podAnnotations "own" (list "kvlb.io/port" "kvlb.io/data-parallel-size" "kvlb.io/events" "kvlb.io/replay" "checksum/mooncake")) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "kvlb.checks" -}}
{{- $v := .Values }}
{{- if and $v.image.tag $v.image.digest }}
{{- fail "image.tag and image.digest: both name an image; leave one of them empty" }}
{{- end }}
{{- range $name, $_ := include "kvlb.checks.secret" . | fromYaml }}
{{- $at := splitList "." $name }}
{{- if get (default dict (get $v.settings (first $at))) (last $at) }}
{{- fail (printf "settings.%s: would be readable in a ConfigMap; put it into secretSettings" $name) }}
{{- end }}
{{- end }}
{{- range $name, $value := dict "settings" $v.settings "engines.replicas" $v.engines.replicas "engines.replica" $v.engines.replica }}
{{- if regexMatch "://[^/?#\\s\"]*@" (toRawJson $value) }}
{{- fail (printf "%s: a URL there has a name or password before its @, which would be readable in a ConfigMap; use one without, or put that setting into secretSettings" $name) }}
{{- end }}
{{- if regexMatch "\"(password|passwd|secret|token|api_key)\":\"[^\"]" (toRawJson $value) }}
{{- fail (printf "%s: something there is called like a secret, and would be readable in a ConfigMap; put that setting into secretSettings" $name) }}
{{- end }}
{{- end }}
{{- range $name, $instead := include "kvlb.checks.owned" . | fromYaml }}
{{- $at := splitList "." $name }}
{{- $section := get $v.settings (first $at) }}
{{- if or (and (eq (len $at) 1) (hasKey $v.settings $name)) (and (eq (len $at) 2) (kindIs "map" $section) (hasKey (default dict $section) (last $at))) }}
{{- fail (printf "settings.%s: is what the value %s is for; set it there" $name $instead) }}
{{- end }}
{{- end }}
{{- if get (default dict $v.settings.tls) "client_ca_file" }}
{{- fail "settings.tls.client_ca_file: the kubelet has no certificate to show, so that no Pod would ever be ready; ask for clients' certificates at the Ingress or Gateway" }}
{{- end }}
{{- if and $v.secretSettings.values $v.secretSettings.existingSecret }}
{{- fail "secretSettings.values and secretSettings.existingSecret: both say what is secret; leave one of them empty" }}
{{- end }}
{{- if and (get $v.settings "siblings") (not $v.siblings.enabled) }}
{{- fail "settings.siblings: there are none unless siblings.enabled is true" }}
{{- end }}
{{- if and (get $v.settings "discovery") (eq $v.engines.discovery "static") }}
{{- fail "settings.discovery: with engines.discovery static nobody is asked; leave it out" }}
{{- end }}
{{- include "kvlb.checks.labels" . }}
{{- include "kvlb.checks.scaling" . }}
{{- include "kvlb.checks.engines" . }}
{{- include "kvlb.checks.access" . }}
{{- include "kvlb.checks.mode" . }}
{{- if $v.fleet.enabled }}
{{- include "kvlb.checks.fleet" . }}
{{- else if include "kvlb.store" . }}
{{- fail "stores: they are for the chart's own engines; set fleet.enabled, or name stores of other engines in settings.stores" }}
{{- end }}
{{- end }}

{{- define "kvlb.checks.scaling" -}}
{{- $v := .Values }}
{{- $a := $v.autoscaling }}
{{- if and $a.hpa.enabled $a.keda.enabled }}
{{- fail "autoscaling.hpa and autoscaling.keda: both would scale the same Pods; enable one of them" }}
{{- end }}
{{- if and (include "kvlb.isScaled" .) $v.gateway.replicas }}
{{- fail "gateway.replicas: autoscaling says how many Pods there are; leave it out, and set minReplicas there" }}
{{- end }}
{{- if and $a.hpa.enabled (gt (int $a.hpa.minReplicas) (int $a.hpa.maxReplicas)) }}
{{- fail "autoscaling.hpa.minReplicas: is more than maxReplicas" }}
{{- end }}
{{- if and $a.hpa.enabled (not $a.hpa.targetCPU) (not $a.hpa.targetRequestsPerSecond) }}
{{- fail "autoscaling.hpa: has nothing to scale by; set targetCPU or targetRequestsPerSecond" }}
{{- end }}
{{- if and $a.keda.enabled (gt (int $a.keda.minReplicas) (int $a.keda.maxReplicas)) }}
{{- fail "autoscaling.keda.minReplicas: is more than maxReplicas" }}
{{- end }}
{{- if and $a.keda.enabled (not $a.keda.serverAddress) }}
{{- fail "autoscaling.keda.serverAddress: KEDA has to know where Prometheus is, like http://prometheus.monitoring:9090" }}
{{- end }}
{{- with $v.podDisruptionBudget }}
{{- $replicas := int (include "kvlb.replicas" $) }}
{{- if and .enabled (not (kindIs "invalid" .minAvailable)) (not (kindIs "string" .minAvailable)) (not (include "kvlb.isScaled" $)) (ge (int .minAvailable) $replicas) }}
{{- fail (printf "podDisruptionBudget.minAvailable: with %d Pods, no node could ever be drained; set it lower, or use maxUnavailable" $replicas) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "kvlb.checks.engines" -}}
{{- $v := .Values }}
{{- with $v.engines }}
{{- if and (eq .discovery "dns") (not .host) }}
{{- fail "engines.host: discovery by dns has to know a name, like vllm-headless.llm.svc.cluster.local" }}
{{- end }}
{{- if and .host (ne .discovery "dns") }}
{{- fail "engines.host: is for engines.discovery dns alone" }}
{{- end }}
{{- if and (eq .discovery "static") (not .replicas) }}
{{- fail "engines.replicas: with engines.discovery static there are no engines but those named there; name at least one" }}
{{- end }}
{{- if and (ne .discovery "kubernetes") (or .matchLabels .service .namespace) (not $v.networkPolicy.enabled) }}
{{- fail (printf "engines.matchLabels, engines.service, engines.namespace: engines.discovery %s does not look at them; leave them out, or use kubernetes" .discovery) }}
{{- end }}
{{- $first := min (int .eventsPort) (int .replayPort) }}
{{- $second := max (int .eventsPort) (int .replayPort) }}
{{- $ranks := int (include "kvlb.ranks" $) }}
{{- if gt (add $first $ranks) (int64 $second) }}
{{- fail (printf "engines.eventsPort and engines.replayPort: with %d data-parallel ranks, %d and those after it reach into those from %d on; keep them at least %d apart" $ranks $first $second $ranks) }}
{{- end }}
{{- if and (ge (int .port) (int .eventsPort)) (lt (int .port) (add (int .eventsPort) $ranks)) }}
{{- fail "engines.port: lies among the ports of events" }}
{{- end }}
{{- if and (ge (int .port) (int .replayPort)) (lt (int .port) (add (int .replayPort) $ranks)) }}
{{- fail "engines.port: lies among the ports of replays" }}
{{- end }}
{{- end }}
{{- end }}

{{/* Data-parallel ranks behind one address at most. */}}
{{- define "kvlb.ranks" -}}
{{- $ranks := int .Values.engines.ranks }}
{{- if .Values.fleet.enabled }}
{{- range (include "kvlb.pools" . | fromYaml).pools }}
{{- $ranks = max $ranks (int .dataParallelSize) }}
{{- end }}
{{- end }}
{{- $ranks }}
{{- end }}

{{- define "kvlb.checks.access" -}}
{{- $v := .Values }}
{{- with $v.auth }}
{{- if and .enabled .keys .existingSecret }}
{{- fail "auth.keys and auth.existingSecret: both say which keys there are; leave one of them empty" }}
{{- end }}
{{- if and .enabled (not .keys) (not .existingSecret) }}
{{- fail "auth.keys: auth.enabled asks everybody for a key, and there is none; give auth.keys or auth.existingSecret" }}
{{- end }}
{{- if and (not .enabled) (or .keys .existingSecret) }}
{{- fail "auth.keys: nobody is asked for a key unless auth.enabled is true" }}
{{- end }}
{{- end }}
{{- if and $v.auth.enabled $v.siblings.enabled (not $v.secretSettings.existingSecret) (not (get (default dict $v.secretSettings.values.siblings) "api_key")) }}
{{- fail "siblings: they ask each other for a key, too; give one with admin = true in secretSettings.values.siblings.api_key, or disable siblings" }}
{{- end }}
{{- if and $v.auth.enabled $v.monitoring.serviceMonitor.enabled (not $v.monitoring.serviceMonitor.authorization.secretName) }}
{{- fail "monitoring.serviceMonitor.authorization.secretName: Prometheus needs a key with admin = true, as auth.enabled is set" }}
{{- end }}
{{- if and $v.auth.enabled $v.tests.enabled (not $v.tests.apiKey.secretName) }}
{{- fail "tests.apiKey.secretName: helm test needs a key, as auth.enabled is set; name a Secret with one, or disable tests" }}
{{- end }}
{{- if and $v.tls.enabled $v.siblings.enabled }}
{{- fail "siblings: with tls.enabled they would ask each other by the addresses of Pods, which no certificate names; disable siblings, or end TLS at an Ingress or a Gateway" }}
{{- end }}
{{- if and $v.tls.enabled (not $v.tls.secretName) }}
{{- fail "tls.secretName: name the Secret with the certificate, or disable tls" }}
{{- end }}
{{- if and $v.tls.secretName (not $v.tls.enabled) }}
{{- fail "tls.secretName: is used only with tls.enabled" }}
{{- end }}
{{- if and $v.tenants.isolation (not $v.auth.enabled) }}
{{- fail "tenants.isolation: tenants are told by their keys; set auth.enabled" }}
{{- end }}
{{- if and $v.tenants.isolation (not $v.tenants.existingSecret) }}
{{- fail "tenants.existingSecret: name a Secret with salt-secret, for a secret that does not last makes all caches cold" }}
{{- end }}
{{- end }}

{{- define "kvlb.checks.mode" -}}
{{- $v := .Values }}
{{- if eq $v.mode "epp" }}
{{- if eq (int $v.epp.port) 8080 }}
{{- fail "epp.port: 8080 is where kvlb's own HTTP port listens in the Pod; use another one" }}
{{- end }}
{{- if eq (int $v.epp.port) (int $v.gateway.service.port) }}
{{- fail "epp.port: is gateway.service.port, too; they are ports of one Service, so use another one" }}
{{- end }}
{{- if $v.ingress.enabled }}
{{- fail "ingress: with mode epp clients ask the Envoy gateway, not kvlb; disable ingress, or use mode gateway" }}
{{- end }}
{{- if $v.httpRoute.enabled }}
{{- fail "httpRoute: with mode epp the route leads to the pool; use epp.route in its place, or mode gateway" }}
{{- end }}
{{- if $v.tls.enabled }}
{{- fail "tls: with mode epp clients do not ask kvlb; epp.tls is what the Envoy gateway speaks with it" }}
{{- end }}
{{- if ne $v.engines.discovery "kubernetes" }}
{{- fail "engines.discovery: with mode epp the pool's Pods are found by kubernetes" }}
{{- end }}
{{- if and $v.epp.inferencePool.create (ne (include "kvlb.namespace.engines" .) .Release.Namespace) }}
{{- fail "engines.namespace: an InferencePool selects Pods of its own namespace alone; install the chart there" }}
{{- end }}
{{- if and $v.networkPolicy.enabled $v.networkPolicy.engines (not $v.networkPolicy.engineClients) }}
{{- fail "networkPolicy.engineClients: with mode epp it is the Envoy gateway that sends requests to engines, and the policy would close them to it; name its Pods, or set networkPolicy.engines to false" }}
{{- end }}
{{- if and $v.epp.gateway.create (not $v.epp.gateway.className) }}
{{- fail "epp.gateway.className: a Gateway needs the name of a GatewayClass" }}
{{- end }}
{{- if and $v.epp.route.create (not $v.epp.gateway.create) (not $v.epp.route.parentRefs) }}
{{- fail "epp.route.parentRefs: name the Gateway that the route belongs to, or set epp.gateway.create" }}
{{- end }}
{{- else }}
{{- if or (get $v.settings "epp") $v.epp.gateway.create $v.epp.route.create $v.epp.istio.enabled }}
{{- fail "epp: is for mode epp alone; set mode, or leave it out, in settings as well" }}
{{- end }}
{{- if and $v.ingress.enabled $v.httpRoute.enabled }}
{{- fail "ingress and httpRoute: both lead clients to kvlb; enable one of them" }}
{{- end }}
{{- if and $v.ingress.enabled (not $v.ingress.hosts) }}
{{- fail "ingress.hosts: name at least one host" }}
{{- end }}
{{- if and $v.httpRoute.enabled (not $v.httpRoute.parentRefs) }}
{{- fail "httpRoute.parentRefs: name the Gateway that the route belongs to" }}
{{- end }}
{{- end }}
{{- end }}
