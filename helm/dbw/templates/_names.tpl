{{/*
Most templates take a component: a dict of
  root       what Helm gives to templates
  component  controller, ps or worker: also the program, its image and the prefix of its options
  name       of everything that belongs to it
  training   which one it is part of; empty for the controller
  values     of the component
  tokens     of the training, or of the chart
and, in a training, its model, the base of its names, and the run: what Jobs of other pods would differ in.
*/}}

{{- define "dbw.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $both := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- default $both .Values.fullnameOverride -}}
{{- end -}}

{{- define "dbw.controller" -}}
{{- $name := printf "%s-controller" (include "dbw.fullname" .) -}}
{{- dict "component" "controller" "name" $name "training" "" "values" .Values.controller "tokens" .Values.tokens | toJson -}}
{{- end -}}

{{/* Where parameter servers find the controller; empty: they decide themselves. */}}
{{- define "dbw.controller.address" -}}
{{- if .Values.controller.enabled -}}
{{ include "dbw.fullname" . }}-controller:{{ include "dbw.port" (dict "component" "controller") }}
{{- else -}}
{{ .Values.controller.address }}
{{- end -}}
{{- end -}}

{{/*
All trainings by name, as JSON: what each says of itself, over what is said for all. Without any there is one, named after
the release. JSON, because YAML would turn large integers into floating-point numbers.
*/}}
{{- define "dbw.trainings" -}}
{{- $all := dict -}}
{{- $fullname := include "dbw.fullname" . -}}
{{- range $name, $own := default (dict .Release.Name dict) .Values.trainings -}}
  {{- $shared := pick $.Values "model" "ps" "worker" "tokens" | deepCopy -}}
  {{- $training := mustMergeOverwrite $shared (default dict $own | deepCopy) -}}
  {{- $base := eq $name $.Release.Name | ternary $fullname (printf "%s-%s" $fullname $name) -}}
  {{- $both := pick $training "model" "tokens" | merge (dict "training" $name) -}}
  {{- range $component := list "ps" "worker" -}}
    {{- $values := get $training $component -}}
    {{- $_ := dict "component" $component "name" (printf "%s-%s" $base $component) "values" $values "base" $base
              | merge (deepCopy $both) | set $training $component -}}
  {{- end -}}
  {{- $_ := set $all $name (pick $training "ps" "worker") -}}
{{- end -}}
{{- if .Values.ps.enabled }}{{ toJson $all }}{{ else }}{}{{ end -}}
{{- end -}}

{{/* Who serves gRPC, as JSON: what to call it, whom it lets in beside its own, in which value that is, and its tokens. */}}
{{- define "dbw.servers" -}}
{{- $policy := .Values.networkPolicy -}}
{{- $servers := list -}}
{{- if .Values.controller.enabled -}}
  {{- $servers = append $servers (dict "what" "the controller" "value" "networkPolicy.controllerFrom"
                                       "peers" $policy.controllerFrom "tokens" .Values.tokens) -}}
{{- end -}}
{{- range $name, $training := include "dbw.trainings" . | fromJson -}}
  {{- $servers = append $servers (dict "what" (printf "the parameter server of training %s" $name)
                                       "value" "networkPolicy.psFrom" "peers" $policy.psFrom "tokens" $training.ps.tokens) -}}
{{- end -}}
{{- toJson $servers -}}
{{- end -}}

{{/* A peer that is only a podSelector is in the namespace of the policy. */}}
{{- define "dbw.servesOtherNamespaces" -}}
{{- if not .policy.enabled }}true{{ end -}}
{{- range .peers }}{{ if or (hasKey . "namespaceSelector") (hasKey . "ipBlock") }}true{{ end }}{{ end -}}
{{- end -}}

{{- define "dbw.port" -}}
{{- get (dict "controller" "50051" "ps" "50052" "worker" "") .component -}}
{{- end -}}

{{- define "dbw.metricsPort" -}}
{{- get (dict "controller" "9464" "ps" "9465" "worker" "9466") .component -}}
{{- end -}}

{{- define "dbw.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .training }}
dbw-training: {{ . }}
{{- end }}
{{- end -}}

{{- define "dbw.labels" -}}
{{ include "dbw.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "dbw.metadata" -}}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "dbw.labels" . | nindent 2 }}
{{- end -}}

{{- define "dbw.serviceAccount" -}}
{{- $own := .Values.serviceAccount.create | ternary (include "dbw.fullname" .) "default" -}}
{{- default $own .Values.serviceAccount.name -}}
{{- end -}}

{{- define "dbw.image" -}}
{{- $all := .root.Values.image -}}
{{- $own := .values.image -}}
{{- with default $all.registry $own.registry }}{{ . }}/{{ end -}}
{{- $own.repository }}:{{ coalesce $own.tag $all.tag .root.Chart.AppVersion -}}
{{- end -}}

{{/* How many MiB a quantity of memory in whole Mi or Gi is; empty for other units. */}}
{{- define "dbw.mebibytes" -}}
{{- if regexMatch "^[0-9]+(Mi|Gi)$" . -}}
{{- mul (regexFind "^[0-9]+" . | int64) (hasSuffix "Gi" . | ternary 1024 1) -}}
{{- end -}}
{{- end -}}
