{{- /*
What the operator may do wherever it watches. Children are written by server-side apply, which asks for create and
patch. There is no rule for Secrets: pods refer to them by name, and the operator never reads one.
*/ -}}
{{- define "plimsoll.permissions" -}}
- apiGroups: [plimsoll.dev]
  resources: [inferenceservers]
  verbs: [get, list, watch]
- apiGroups: [plimsoll.dev]
  resources: [inferenceservers/status]
  verbs: [patch]
- apiGroups: [plimsoll.dev] # owner references that block deletion, where the cluster guards them
  resources: [inferenceservers/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [services, serviceaccounts]
  verbs: [get, list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""] # the only two children that a living server may stop wanting
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""] # patch: the label that puts a pod behind its Service
  resources: [pods]
  verbs: [list, watch, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
{{- end -}}
