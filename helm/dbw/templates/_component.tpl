{{/* Everything that a component consists of. */}}
{{- define "dbw.component" -}}
---
{{ include "dbw.workload" . }}
{{- if eq (include "dbw.kind" .) "StatefulSet" }}
---
{{ include "dbw.headlessService" . }}
{{- end }}
{{- if include "dbw.port" . }}
---
{{ include "dbw.service" . }}
{{- end }}
{{- if and .values.persistence .values.persistence.enabled (not .values.persistence.existingClaim) }}
---
{{ include "dbw.claim" . }}
{{- end }}
{{- if .values.podDisruptionBudget.enabled }}
---
{{ include "dbw.podDisruptionBudget" . }}
{{- end }}
{{- if .root.Values.networkPolicy.enabled }}
---
{{ include "dbw.networkPolicy" . }}
{{- end }}
{{- if and .root.Values.tls.enabled .root.Values.tls.certManager.issuer.name }}
---
{{ include "dbw.certificate" . }}
{{- end }}
{{ end -}}

{{/* For clients: its address stays when the pod is replaced, so that they are back at once. */}}
{{- define "dbw.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}
  {{- include "dbw.metadata" . | nindent 2 }}
spec:
  selector:
    {{- include "dbw.selector" . | nindent 4 }}
  ports:
    - {name: grpc, port: {{ include "dbw.port" . }}, targetPort: grpc}
    - {name: metrics, port: {{ include "dbw.metricsPort" . }}, targetPort: metrics}
{{- end -}}

{{/* For a StatefulSet, which names its pods by one. It has no port `metrics`: nothing must be scraped twice. */}}
{{- define "dbw.headlessService" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}-headless
  {{- include "dbw.metadata" . | nindent 2 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    {{- include "dbw.selector" . | nindent 4 }}
{{- end -}}

{{/* Not a claim template of the StatefulSet, which could never be enlarged. */}}
{{- define "dbw.claim" -}}
{{- $claim := .values.persistence -}}
{{- $keep := $claim.keep | ternary (dict "helm.sh/resource-policy" "keep") dict -}}
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ .name }}
  {{- include "dbw.metadata" . | nindent 2 }}
  {{- with merge (deepCopy $claim.annotations) $keep }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  accessModes: {{ toJson $claim.accessModes }}
  {{- with $claim.storageClass }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests:
      storage: {{ $claim.size }}
{{- end -}}

{{/* `minAvailable` in pods, because of Jobs Kubernetes does not know how many there should be. */}}
{{- define "dbw.podDisruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  {{- include "dbw.metadata" . | nindent 2 }}
spec:
  minAvailable: {{ int .values.podDisruptionBudget.minAvailable }}
  selector:
    matchLabels:
      {{- include "dbw.selector" . | nindent 6 }}
{{- end -}}

{{/* An empty `from` would mean everybody: a rule without peers is left out. */}}
{{- define "dbw.networkPolicy" -}}
{{- $policy := .root.Values.networkPolicy -}}
{{- $release := omit (include "dbw.selector" . | fromYaml) "app.kubernetes.io/component" -}}
{{- $workers := include "dbw.selector" (merge (dict "component" "worker") .) | fromYaml -}}
{{- $own := dict "podSelector" (dict "matchLabels" (eq .component "ps" | ternary $workers $release)) -}}
{{- $callers := dict "controller" (prepend $policy.controllerFrom $own) "ps" (prepend $policy.psFrom $own) -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ .name }}
  {{- include "dbw.metadata" . | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "dbw.selector" . | nindent 6 }}
  policyTypes: [Ingress]
  ingress:
    {{- with get $callers .component }}
    - ports:
        - {port: grpc, protocol: TCP}
      from:
        {{- toYaml . | nindent 8 }}
    {{- end }}
    {{- with $policy.metricsFrom }}
    - ports:
        - {port: metrics, protocol: TCP}
      from:
        {{- toYaml . | nindent 8 }}
    {{- end }}
{{- end -}}

{{/* The longest name is the identity of a client that has no token, to which its jobs belong. */}}
{{- define "dbw.certificate" -}}
{{- $manager := .root.Values.tls.certManager -}}
{{- $namespace := .root.Release.Namespace -}}
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  name: {{ .name }}
  {{- include "dbw.metadata" . | nindent 2 }}
spec:
  secretName: {{ include "dbw.tlsSecret" . }}
  issuerRef:
    {{- toYaml $manager.issuer | nindent 4 }}
  duration: {{ $manager.duration }}
  renewBefore: {{ $manager.renewBefore }}
  privateKey: {algorithm: ECDSA, size: 256, rotationPolicy: Always}
  usages: [digital signature, server auth, client auth]
  dnsNames:
    - {{ .name }}.{{ $namespace }}
    - {{ .name }}
    - {{ .name }}.{{ $namespace }}.svc
    - {{ .name }}.{{ $namespace }}.svc.{{ .root.Values.clusterDomain }}
    - localhost
{{- end -}}
