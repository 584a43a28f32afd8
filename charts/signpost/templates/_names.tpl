{{/* Who an object belongs to. Takes the root and the component. */}}
{{- define "signpost.labels" -}}
{{ include "signpost.selector" .component }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* What Pods are found by. It can never change, and is the same as in the plain manifests. */}}
{{- define "signpost.selector" -}}
app.kubernetes.io/name: signpost
app.kubernetes.io/component: {{ . }}
{{- end }}

{{/* The image of a component. Takes the root and the component's values. */}}
{{- define "signpost.image" -}}
{{- $image := .component.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* The settings that agents and operators share. Takes the root. */}}
{{- define "signpost.environment" -}}
{{- $server := include "signpost.apiServer" . | fromJson -}}
- name: KUBERNETES_SERVICE_HOST
  value: {{ $server.host | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ $server.port | quote }}
- name: SIGNPOST_LOG
  value: {{ .Values.log.filter | quote }}
- name: SIGNPOST_LOG_FORMAT
  value: {{ .Values.log.format }}
{{- end }}

{{/* The port of an IP:port. */}}
{{- define "signpost.port" -}}
{{ regexFind "[0-9]+$" . }}
{{- end }}

{{/* How many operators there are. Takes the root. */}}
{{- define "signpost.operator.replicas" -}}
{{- if .Values.operator.replicas -}}
{{ .Values.operator.replicas }}
{{- else -}}
{{- $selector := merge (dict "kubernetes.io/os" "linux") .Values.operator.nodeSelector -}}
{{- $nodes := 0 -}}
{{- range (lookup "v1" "Node" "" "").items -}}
{{- $labels := .metadata.labels | default dict -}}
{{- if deepEqual $labels (merge (deepCopy $selector) $labels) -}}{{- $nodes = add1 $nodes -}}{{- end -}}
{{- end -}}
{{- /* Where manifests are rendered without a cluster there are no nodes. */ -}}
{{ ternary 1 2 (eq (int $nodes) 1) }}
{{- end -}}
{{- end }}
