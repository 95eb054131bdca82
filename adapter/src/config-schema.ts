/**
 * The form of an agent's configuration in Paperclip. Values are saved flat into `adapterConfig`.
 *
 * Keys and order follow the existing Kubernetes adapters, so that their agents keep their settings. Paperclip's own fields
 * (model, env, instructions, extraArgs, timeoutSec, graceSec) are not repeated here.
 */

import type { ConfigField } from "./paperclip.ts";

type Text = Omit<ConfigField, "key" | "label" | "type" | "group" | "hint">;
type Kind = ConfigField["type"];

const field =
  (group: string) =>
  (key: string, label: string, type: Kind, hint: string, more: Text = {}): ConfigField => ({
    ...{ key, label, type, hint, group },
    ...more,
  });

const agent = field("Core");
const kubernetes = field("Kubernetes");
const timeouts = field("Timeouts");
const choices = (...values: string[]) => values.map((value) => ({ label: value, value }));

const FORM_FIELDS: ConfigField[] = [
  agent(
    "variant",
    "Variant",
    "text",
    "The model's reasoning profile, passed to OpenCode as --variant; empty: Paperclip's Thinking effort.",
  ),
  agent(
    "dangerouslySkipPermissions",
    "Skip Permission Checks",
    "toggle",
    "OpenCode may use directories outside the workspace without asking; nobody can answer a question.",
    { default: true },
  ),
  agent(
    "agentDbMode",
    "Agent DB Mode",
    "select",
    "Where OpenCode keeps its sessions: a folder on the shared data volume, a volume of the agent's own, or nowhere.",
    { default: "workspace_subpath", options: choices("workspace_subpath", "dedicated_pvc", "ephemeral") },
  ),
  agent(
    "agentDbStorageClass",
    "Agent DB Storage Class",
    "text",
    "StorageClass of the agent's own volume; needed for dedicated_pvc while the volume does not exist.",
    { meta: { visibleWhen: { key: "agentDbMode", value: "dedicated_pvc" } } },
  ),
  agent("agentDbStorageCapacity", "Agent DB Storage Capacity", "text", "Size of the agent's own volume.", {
    default: "1Gi",
    meta: { visibleWhen: { key: "agentDbMode", value: "dedicated_pvc" } },
  }),
  kubernetes(
    "serviceAccountName",
    "Service Account",
    "text",
    "ServiceAccount of the Job's pod; empty: the namespace's default.",
  ),
  kubernetes("namespace", "Namespace", "text", "Namespace of the Job; empty: the worker's own."),
  kubernetes(
    "image",
    "Container Image",
    "text",
    "The agent's image, which must contain OpenCode; empty: the worker's setting.",
  ),
  kubernetes("imagePullPolicy", "Image Pull Policy", "select", "When the kubelet pulls the image.", {
    default: "IfNotPresent",
    options: choices("IfNotPresent", "Always", "Never"),
  }),
  kubernetes("resources.requests.cpu", "CPU Request", "text", "Such as 500m or 2."),
  kubernetes("resources.requests.memory", "Memory Request", "text", "Such as 2Gi."),
  kubernetes("resources.limits.cpu", "CPU Limit", "text", "Such as 4."),
  kubernetes("resources.limits.memory", "Memory Limit", "text", "Such as 8Gi."),
  kubernetes("nodeSelector", "Node Selector", "textarea", "key=value, one per line."),
  kubernetes("tolerations", "Tolerations", "textarea", 'A JSON array, such as [{"key": "gpu", "operator": "Exists"}].'),
  kubernetes("labels", "Labels", "textarea", "Additional labels of the Job, key=value, one per line."),
  kubernetes(
    "ttlSecondsAfterFinished",
    "TTL After Finished",
    "number",
    "Seconds until Kubernetes deletes a finished Job.",
    {
      default: 300,
    },
  ),
  kubernetes("retainJobs", "Retain Jobs", "toggle", "Keep finished Jobs for inspection."),
  timeouts("scheduleTimeoutSec", "Schedule Timeout", "number", "Seconds until a node must have taken the pod.", {
    default: 600,
  }),
  timeouts("startTimeoutSec", "Start Timeout", "number", "Seconds after that until the agent's container must run.", {
    default: 600,
  }),
  timeouts(
    "firstOutputTimeoutSec",
    "First Output Timeout",
    "number",
    "Seconds that OpenCode may be silent before its first line; 0: no limit.",
    { default: 420 },
  ),
  timeouts(
    "silenceTimeoutSec",
    "Silence Timeout",
    "number",
    "Seconds that OpenCode may be silent after its first line; 0: no limit. Running tools write nothing.",
    { default: 3600 },
  ),
  timeouts(
    "infrastructureRetries",
    "Infrastructure Retries",
    "number",
    "Further attempts after a lost pod or node, with the same session.",
    { default: 2 },
  ),
  field("Paperclip")(
    "paperclipApiUrl",
    "Paperclip URL for Pods",
    "text",
    "Paperclip's address as pods reach it; empty: AGENT_RUNS_PAPERCLIP_API_URL of this server, else the worker's setting.",
  ),
  field("Paperclip")(
    "onBusy",
    "When the Agent Is Busy",
    "select",
    "While a run of another task is open: wait for its end, or refuse this run at once.",
    { default: "wait", options: choices("wait", "refuse") },
  ),
];

/** The form's fields, in order. */
export function configSchema(): { fields: ConfigField[] } {
  return { fields: structuredClone(FORM_FIELDS) };
}
