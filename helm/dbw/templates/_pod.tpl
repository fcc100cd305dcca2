{{/* The pods of all components. They pass the Pod Security Standard `restricted`. */}}

{{- define "dbw.podSecurity" -}}
runAsNonRoot: true
{{- range $name, $id := .Values.securityContext }}
{{- if not (kindIs "invalid" $id) }}
{{ $name }}: {{ int64 $id }}
{{- end }}
{{- end }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "dbw.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* What no pod of the chart does without. */}}
{{- define "dbw.podBasics" -}}
serviceAccountName: {{ include "dbw.serviceAccount" . }}
automountServiceAccountToken: false
# Otherwise Services would become variables such as DBW_CONTROLLER_PORT, which look like options.
enableServiceLinks: false
securityContext:
  {{- include "dbw.podSecurity" . | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "dbw.containerBasics" -}}
image: {{ include "dbw.image" . }}
imagePullPolicy: {{ default .root.Values.image.pullPolicy .values.image.pullPolicy }}
securityContext:
  {{- include "dbw.containerSecurity" . | nindent 2 }}
volumeMounts:
  {{- include "dbw.mounts" . | nindent 2 }}
{{- end -}}

{{/*
A program that is told to stop ends with 0, as it should. A Job would take that for the end of the training, and not
start it again on another node. So in a Job it runs in a shell, which then ends as if the signal had ended it.
*/}}
{{- define "dbw.jobCommand" -}}
command: [/bin/sh, -c]
args:
  - |
    "$@" & program=$!
    trap 'stopped=yes; kill -TERM "$program"' TERM
    wait "$program"; code=$?
    if [ -n "${stopped:-}" ]; then wait "$program"; exit 143; fi
    exit "$code"
  - sh
  - dbw
  - {{ .component }}
{{- end -}}

{{- define "dbw.resources" -}}
{{- $resources := deepCopy .values.resources -}}
{{- with .values.gpus -}}
{{- $limits := default dict $resources.limits | deepCopy -}}
{{- $_ := set $resources "limits" (set $limits $.values.gpuResource (int .)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* Kubernetes cannot ask over TLS itself. */}}
{{- define "dbw.check" -}}
{{- if eq .component "worker" -}}
httpGet: {path: /healthz, port: metrics}
{{- else if .root.Values.tls.enabled -}}
exec:
  command:
    - dbw
    - health
    - localhost:{{ include "dbw.port" . }}
    - --tls-ca=/etc/dbw/tls/ca.crt
    {{- if .root.Values.tls.mutual }}
    - --tls-cert=/etc/dbw/tls/tls.crt
    - --tls-key=/etc/dbw/tls/tls.key
    {{- end }}
{{- else -}}
grpc: {port: {{ include "dbw.port" . }}}
{{- end }}
timeoutSeconds: 10
{{- end -}}

{{- define "dbw.probes" -}}
startupProbe:
  {{- include "dbw.check" . | nindent 2 }}
  periodSeconds: 10
  failureThreshold: {{ div (add .values.startupSeconds 9) 10 }}
livenessProbe: # a busy program may be slow to answer: it is restarted after two minutes
  {{- include "dbw.check" . | nindent 2 }}
  periodSeconds: 20
  failureThreshold: 6
{{- if ne .component "worker" }}
readinessProbe:
  {{- include "dbw.check" . | nindent 2 }}
  periodSeconds: 10
{{- end }}
{{- end -}}

{{/* Spread the pods of this component, unless a constraint says which. */}}
{{- define "dbw.spread" -}}
{{- $own := dict "labelSelector" (dict "matchLabels" (include "dbw.selector" . | fromYaml)) -}}
{{- $constraints := list -}}
{{- range .values.topologySpreadConstraints }}{{ $constraints = append $constraints (merge (deepCopy .) $own) }}{{ end -}}
{{- toYaml $constraints -}}
{{- end -}}

{{- define "dbw.pod" -}}
metadata:
  labels:
    {{- include "dbw.selector" . | nindent 4 }}
    {{- with .values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "dbw.podBasics" .root | nindent 2 }}
  {{- if eq (include "dbw.kind" .) "Job" }}
  restartPolicy: Never # a failure policy asks for that; the Job makes another pod
  {{- end }}
  terminationGracePeriodSeconds: {{ int .values.terminationGracePeriodSeconds }}
  {{- range $key := list "nodeSelector" "tolerations" "affinity" "runtimeClassName" "priorityClassName" }}
  {{- with get $.values $key }}
  {{ $key }}: {{ toJson . }}
  {{- end }}
  {{- end }}
  {{- if .values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- include "dbw.spread" . | nindent 4 }}
  {{- end }}
  {{- with dig "data" "download" list .values }}
  initContainers:
    - name: data
      command: [dbw, data, get, --dir=/var/lib/dbw/data, {{ join ", " . }}]
      {{- include "dbw.containerBasics" $ | nindent 6 }}
      {{- with $.values.env }}
      env:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      resources:
        {{- toYaml $.values.resources | nindent 8 }}
  {{- end }}
  containers:
    - name: {{ .component }}
      {{- if eq (include "dbw.kind" .) "Job" }}
      {{- include "dbw.jobCommand" . | nindent 6 }}
      {{- end }}
      {{- include "dbw.containerBasics" . | nindent 6 }}
      env:
        {{- if eq .component "worker" }}
        - name: WORKER_INDEX
          valueFrom:
            fieldRef:
              fieldPath: {{ include "dbw.indexLabel" . }}
        {{- end }}
        {{- include "dbw.env" . | trim | nindent 8 }}
        {{- if eq .component "controller" }}
        {{- include "dbw.operator" (merge (dict "address" "localhost:50051") .) | trim | nindent 8 }}
        {{- end }}
      ports:
        {{- with include "dbw.port" . }}
        - {name: grpc, containerPort: {{ . }}}
        {{- end }}
        - {name: metrics, containerPort: {{ include "dbw.metricsPort" . }}}
      {{- include "dbw.probes" . | nindent 6 }}
      resources:
        {{- include "dbw.resources" . | nindent 8 }}
  volumes:
    {{- include "dbw.volumes" . | nindent 4 }}
{{- end -}}
