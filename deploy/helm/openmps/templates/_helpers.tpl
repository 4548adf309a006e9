{{- define "openmps.labels" -}}
app.kubernetes.io/name: openmps
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "openmps.nodeSelector" -}}
{{- if .Values.nodeSelector -}}
{{ toYaml .Values.nodeSelector }}
{{- else if eq .Values.mode "aliyun" -}}
ack.node.gpu.schedule: mps
{{- else if eq .Values.mode "nvidia" -}}
nvidia.com/mps.capable: "true"
{{- else if eq .Values.mode "openmps" -}}
openmps.org/schedule: "true"
{{- else -}}
{{ fail (printf "mode is %q: it is aliyun, nvidia or openmps" .Values.mode) }}
{{- end -}}
{{- end }}

{{- define "openmps.pod" -}}
nodeSelector:
  {{- include "openmps.nodeSelector" . | nindent 2 }}
priorityClassName: system-node-critical
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
tolerations:
  - operator: Exists
{{- end }}
