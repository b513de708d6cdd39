{{- define "vramscope.name" -}}
{{- if contains "vramscope" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-vramscope" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "vramscope.selector" -}}
app.kubernetes.io/name: vramscope
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "vramscope.labels" -}}
{{ include "vramscope.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "vramscope.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "vramscope.check" -}}
{{- if gt (int .Values.replicas) 1 }}
{{- if not .Values.database.url }}{{ fail "replicas: more than one need database.url: an SQLite file has one server process" }}{{ end }}
{{- if not .Values.settings.VRAMSCOPE_ARTIFACTS }}
{{- if and .Values.persistence.enabled (not .Values.persistence.existingClaim) (ne .Values.persistence.accessMode "ReadWriteMany") }}{{ fail "replicas: more than one need persistence.accessMode=ReadWriteMany or settings.VRAMSCOPE_ARTIFACTS: uploaded snapshots are files of all of them" }}{{ end }}
{{- if not .Values.persistence.enabled }}{{ fail "replicas: more than one need persistence.enabled or settings.VRAMSCOPE_ARTIFACTS: uploaded snapshots are files of all of them" }}{{ end }}
{{- else if .Values.persistence.enabled }}
{{- if and (not .Values.persistence.existingClaim) (ne .Values.persistence.accessMode "ReadWriteMany") }}{{ fail "replicas: with a bucket set persistence.enabled=false: a ReadWriteOnce volume cannot be mounted by pods on several machines" }}{{ end }}
{{- end }}
{{- end }}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) }}{{ fail "ingress.host: the name under which the server is reached" }}{{ end }}
{{- range $name := list "VRAMSCOPE_HOST" "VRAMSCOPE_PORT" "VRAMSCOPE_DATA_DIR" "VRAMSCOPE_DATABASE" "VRAMSCOPE_SNAPSHOT_MEMORY_BYTES" }}
{{- if hasKey $.Values.settings $name }}{{ fail (printf "settings.%s: the chart sets it" $name) }}{{ end }}
{{- end }}
{{- end }}
