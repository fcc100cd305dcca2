{{/* What a pod mounts. The root file system is read-only. */}}

{{/* The files of a certificate's secret: a client without a certificate of its own needs only the authority. */}}
{{- define "dbw.tlsFiles" -}}
{{- $all := or (has .component (list "controller" "ps")) .root.Values.tls.mutual -}}
{{- $all | ternary (list "ca.crt" "tls.crt" "tls.key") (list "ca.crt") | toJson -}}
{{- end -}}

{{- define "dbw.tokenFiles" -}}
{{- dict "controller" (list "controller-identities" "controller-token")
         "ps" (list "ps-identities" "controller-token")
         "worker" (list "ps-token")
         "test" (list "controller-token") | toJson -}}
{{- end -}}

{{- define "dbw.tlsSecret" -}}
{{- default (printf "%s-tls" .name) .root.Values.tls.existingSecret -}}
{{- end -}}

{{- define "dbw.secretVolume" -}}
- name: {{ .name }}
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
    items:
      {{- range .files }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
{{- end -}}

{{- define "dbw.volumes" -}}
- name: tmp
  emptyDir: {}
{{- if .root.Values.tls.enabled }}
{{- $files := include "dbw.tlsFiles" . | fromJsonArray }}
{{ include "dbw.secretVolume" (dict "name" "tls" "secret" (include "dbw.tlsSecret" .) "files" $files) }}
{{- end }}
{{- with .tokens.existingSecret }}
{{- $files := get (include "dbw.tokenFiles" $ | fromJson) $.component }}
{{ include "dbw.secretVolume" (dict "name" "tokens" "secret" . "files" $files) }}
{{- end }}
{{- with .values.persistence }}
- name: state
  {{- if .enabled }}
  persistentVolumeClaim:
    claimName: {{ default $.name .existingClaim }}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- end }}
{{- if include "dbw.hasData" . }}
- name: data
  {{- with .values.data.existingClaim }}
  persistentVolumeClaim:
    claimName: {{ . }}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- end }}
{{- with .values.volumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "dbw.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if .root.Values.tls.enabled }}
- {name: tls, mountPath: /etc/dbw/tls, readOnly: true}
{{- end }}
{{- if .tokens.existingSecret }}
- {name: tokens, mountPath: /etc/dbw/tokens, readOnly: true}
{{- end }}
{{- if .values.persistence }}
- {name: state, mountPath: /var/lib/dbw}
{{- end }}
{{- if include "dbw.hasData" . }}
- {name: data, mountPath: /var/lib/dbw/data}
{{- end }}
{{- with .values.volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Without either, data sets are those of the image, which a volume would hide. */}}
{{- define "dbw.hasData" -}}
{{- with .values.data }}{{ if or .existingClaim .download }}true{{ end }}{{ end -}}
{{- end -}}
