{{- define "super.name" -}}
{{- if contains "super" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-super{{ end }}
{{- end }}

{{- define "super.labels" -}}
app.kubernetes.io/name: super, app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "super.account" -}}
{{ .Values.serviceAccount.name | default (ternary (include "super.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "super.coordinatorSecret" -}}
{{- if .Values.tls.issuer.name }}{{ include "super.name" . }}-coordinator-tls
{{- else }}{{ required "set tls.issuer.name, or tls.coordinatorSecret: a coordinator on a network speaks TLS" .Values.tls.coordinatorSecret }}{{ end }}
{{- end }}

{{- define "super.cacheSecret" -}}
{{- if .Values.tls.issuer.name }}{{ include "super.name" . }}-cache-tls
{{- else }}{{ required "set tls.issuer.name, or tls.cacheSecret: a cache on a network speaks TLS" .Values.tls.cacheSecret }}{{ end }}
{{- end }}

{{- define "super.cacheCaSecret" -}}
{{ if .Values.cache.address }}{{ .Values.cache.caSecret }}{{ else }}{{ include "super.cacheSecret" . }}{{ end }}
{{- end }}

{{- define "super.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false # variables of services would begin with SUPER_, as settings do
securityContext: {runAsNonRoot: true, runAsUser: 10001, runAsGroup: 10001, fsGroup: 10001, seccompProfile: {type: RuntimeDefault}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "super.container" -}}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end }}
