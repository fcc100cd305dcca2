{{/*
Why a parameter server is a Job: it ends with 0 when training is over. A StatefulSet would start it again, it would go on
from its last checkpoint, see that there is nothing left to do, end, and so on for ever. A Job is complete. So is that of
the workers as soon as one of them has been told that training is over: then there is nothing left to do for the others,
be they late, restarting or still waiting for a node. A training without an end may be of StatefulSets.
*/}}

{{- define "dbw.kind" -}}
{{- default "StatefulSet" .values.kind -}}
{{- end -}}

{{- define "dbw.replicas" -}}
{{- eq .component "worker" | ternary (int .values.replicas) 1 -}}
{{- end -}}

{{/* Where a worker finds its number, which makes its id: that of a pod stays the same when it is replaced. */}}
{{- define "dbw.indexLabel" -}}
{{- $label := eq .values.kind "Job" | ternary "batch.kubernetes.io/job-completion-index" "apps.kubernetes.io/pod-index" -}}
metadata.labels['{{ $label }}']
{{- end -}}

{{- define "dbw.workload" -}}
{{- include (printf "dbw.workload.%s" (include "dbw.kind" .)) . -}}
{{- end -}}

{{- define "dbw.workload.Job" -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ .name }}-{{ .run }}
  {{- include "dbw.metadata" . | nindent 2 }}
spec:
  completionMode: Indexed
  completions: {{ include "dbw.replicas" . }}
  parallelism: {{ include "dbw.replicas" . }}
  backoffLimitPerIndex: {{ int .values.retries }}
  podReplacementPolicy: Failed # never two at the same time
  successPolicy:
    rules:
      - succeededCount: 1
  podFailurePolicy:
    rules:
      - action: Ignore # it was evicted or preempted: that is no failure of its own
        onPodConditions:
          - {type: DisruptionTarget, status: "True"}
      {{- if eq .component "ps" }}
      - action: FailIndex # wrong options, which stay wrong; to a worker, a broken GPU is one, and another node may do
        onExitCodes: {containerName: ps, operator: In, values: [2]}
      {{- end }}
  template:
    {{- include "dbw.pod" . | nindent 4 }}
{{- end -}}

{{- define "dbw.workload.StatefulSet" -}}
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ .name }}
  {{- include "dbw.metadata" . | nindent 2 }}
spec:
  serviceName: {{ .name }}-headless
  replicas: {{ include "dbw.replicas" . }}
  podManagementPolicy: Parallel
  selector:
    matchLabels:
      {{- include "dbw.selector" . | nindent 6 }}
  template:
    {{- include "dbw.pod" . | nindent 4 }}
{{- end -}}
