{{/* Where the API server is, as JSON with host and port. Takes the root. */}}
{{- define "signpost.apiServer" -}}
{{- $given := .Values.apiServer -}}
{{- if $given.host -}}
{{- dict "host" $given.host "port" (toString $given.port) | toJson -}}
{{- else -}}
{{- $url := include "signpost.apiServer.told" . -}}
{{- if not $url -}}{{- include "signpost.apiServer.unknown" . | fail -}}{{- end -}}
{{- $parsed := urlParse $url -}}
{{- $port := regexFind ":[0-9]+$" $parsed.host | trimPrefix ":" | default "443" -}}
{{- dict "host" $parsed.hostname "port" $port | toJson -}}
{{- end -}}
{{- end }}

{{/* The URL that the cluster itself tells; nothing where it does not, and wherever there is no cluster. Takes the root. */}}
{{- define "signpost.apiServer.told" -}}
{{- $version := .Capabilities.KubeVersion.Version -}}
{{- if contains "+k3s" $version -}}
{{- /* Each of its nodes has the API server, or a balancer in front of all of them, on loopback. */ -}}
https://127.0.0.1:6444
{{- else if contains "+rke2" $version -}}
https://127.0.0.1:6443
{{- else -}}
{{- $info := lookup "v1" "ConfigMap" "kube-public" "cluster-info" -}}
{{- $kubeadm := lookup "v1" "ConfigMap" "kube-system" "kubeadm-config" -}}
{{- $proxy := lookup "v1" "ConfigMap" "kube-system" "kube-proxy" -}}
{{- $url := include "signpost.apiServer.ofKubeconfig" (dig "data" "kubeconfig" "" $info) -}}
{{- if not $url -}}
{{- /* Empty in a cluster that was made with one control plane node and no name for it. */ -}}
{{- $endpoint := dig "data" "ClusterConfiguration" "" $kubeadm | fromYaml | dig "controlPlaneEndpoint" "" -}}
{{- if $endpoint -}}
{{- /* Without a port, kubeadm means 6443, and a URL 443. */ -}}
{{- $url = printf "https://%s%s" $endpoint (ternary "" ":6443" (regexMatch ":[0-9]+$" $endpoint)) -}}
{{- end -}}
{{- end -}}
{{- if not $url -}}
{{- $url = include "signpost.apiServer.ofKubeconfig" (dig "data" "kubeconfig.conf" "" $proxy) -}}
{{- end -}}
{{ $url }}
{{- end -}}
{{- end }}

{{/* The server of the first cluster in a kubeconfig, if there is one. */}}
{{- define "signpost.apiServer.ofKubeconfig" -}}
{{- with (fromYaml .).clusters }}{{ (first .).cluster.server }}{{ end -}}
{{- end }}

{{/* What to do where the cluster does not tell. Takes the root. */}}
{{- define "signpost.apiServer.unknown" -}}
{{- $addresses := list -}}
{{- $slice := lookup "discovery.k8s.io/v1" "EndpointSlice" "default" "kubernetes" -}}
{{- range (dig "endpoints" list $slice) }}{{ $addresses = concat $addresses .addresses }}{{ end -}}
{{- $port := dig "ports" list $slice | first | default dict | dig "port" "" -}}
apiServer.host is required: agents must reach the API server before any Service works, and the chart did not find its address
(no ConfigMap kube-public/cluster-info, kube-system/kubeadm-config or kube-system/kube-proxy; neither k3s nor RKE2; `helm template` and
similar tools do not query a cluster). Set --set apiServer.host=HOST --set apiServer.port=PORT to an address that does not change;
`kubectl cluster-info` shows the one that you use.
{{- if $addresses }} The Service kubernetes leads to {{ join ", " $addresses }}, port {{ $port }}.{{ end -}}
{{- end }}
