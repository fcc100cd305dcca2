{{/* Options of programs. Keys are those of `dbw PROGRAM --help`; each becomes an environment variable. */}}

{{- define "dbw.env" -}}
{{- $options := include (printf "dbw.options.%s" .component) . | fromYaml -}}
{{- range $name, $value := .values.options }}{{ $_ := set $options $name $value }}{{ end -}}
{{- include "dbw.variables" (dict "program" .component "options" $options) }}
{{- with .values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "dbw.variables" -}}
{{- range $name, $value := .options }}
{{- if not (kindIs "invalid" $value) }}
- name: {{ printf "DBW_%s_%s" $.program $name | upper }}
  value: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "dbw.options.controller" -}}
{{ include "dbw.options.server" . }}
state_dir: /var/lib/dbw/state
{{- end -}}

{{- define "dbw.options.ps" -}}
{{ include "dbw.options.server" . }}
{{ with include "dbw.controller.address" .root -}}
controller: {{ . }}
{{ include "dbw.options.client" (dict "root" $.root "tokens" $.tokens "server" "controller" "prefix" "controller_") }}
{{- end }}
job: {{ .training }}
model: {{ .model | quote }}
checkpoint_dir: /var/lib/dbw/checkpoints
resume: true
{{- if not .values.persistence.enabled }}
fresh: true # its checkpoints go with the pod, so that what the controller has learnt says nothing about them
{{- end }}
{{- end -}}

{{- define "dbw.options.worker" -}}
log_format: json
metrics_listen: 0.0.0.0:{{ include "dbw.metricsPort" . }}
server: {{ .base }}-ps:{{ include "dbw.port" (dict "component" "ps") }}
{{ include "dbw.options.client" (dict "root" .root "tokens" .tokens "server" "ps" "prefix" "") }}
id: worker-$(WORKER_INDEX)
model: {{ .model | quote }}
data_dir: /var/lib/dbw/data
{{- if .values.gpus }}
device: cuda # a worker that finds no GPU must fail, rather than hold one and be slow
{{- end }}
{{- if eq .values.kind "Job" }}
patience: 1800 # seconds: one that comes when training is over must not hold a GPU for ever
{{- end }}
{{- end -}}

{{- define "dbw.options.server" -}}
log_format: json
listen: 0.0.0.0:{{ include "dbw.port" . }}
metrics_listen: 0.0.0.0:{{ include "dbw.metricsPort" . }}
{{- if .root.Values.tls.enabled }}
tls_cert: /etc/dbw/tls/tls.crt
tls_key: /etc/dbw/tls/tls.key
{{- if .root.Values.tls.mutual }}
tls_client_ca: /etc/dbw/tls/ca.crt
{{- end }}
{{- else }}
insecure: true
{{- end }}
{{- if .tokens.existingSecret }}
token_file: /etc/dbw/tokens/{{ .component }}-identities
{{- end }}
{{- end -}}

{{/* How to talk to a server of the chart: `server` is which one, `prefix` that of the options. */}}
{{- define "dbw.options.client" -}}
{{- if .root.Values.tls.enabled }}
{{ .prefix }}tls_ca: /etc/dbw/tls/ca.crt
{{- if .root.Values.tls.mutual }}
{{ .prefix }}tls_cert: /etc/dbw/tls/tls.crt
{{ .prefix }}tls_key: /etc/dbw/tls/tls.key
{{- end }}
{{- end }}
{{- if .tokens.existingSecret }}
{{ .prefix }}token_file: /etc/dbw/tokens/{{ .server }}-token
{{- end }}
{{- end -}}

{{/* What `dbw jobs`, `dbw watch` and so on need, in a pod. */}}
{{- define "dbw.operator" -}}
{{- $options := include "dbw.options.client" (dict "root" .root "tokens" .tokens "server" "controller" "prefix" "") | fromYaml -}}
{{- include "dbw.variables" (dict "program" "client" "options" (set $options "controller" .address)) -}}
{{- end -}}
