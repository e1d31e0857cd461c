{{- define "pollux.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "pollux.selector" -}}
app.kubernetes.io/name: pollux
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "pollux.labels" -}}
{{ include "pollux.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}
