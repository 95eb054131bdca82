/** The text that Paperclip shows to an agent or a person who configures an agent of this type. */
export const agentConfigurationDoc = `# opencode_k8s agent configuration

Adapter: opencode_k8s. Runs the agent as the OpenCode CLI in a Kubernetes Job of its own, as a durable Temporal workflow.

Use when:
- agents are to run isolated in Kubernetes, for minutes or hours
- a run must survive restarts of Paperclip, the worker, the Kubernetes API or a node: the next wake of the task joins
  the open run and gets its whole log and its one outcome
- an agent is to have one run at a time: a second task of the same agent waits (or is refused, see onBusy)

Don't use when:
- OpenCode is to run on Paperclip's own host: use opencode_local
- there is no Temporal service with an agent-runs worker: every run would wait for one
- the agent needs a browser login, a terminal or a person that answers permission questions
- the task is one command without a model: use process

Core fields:
- model (string, required): "<provider>/<model>", for example "anthropic/claude-sonnet-4-6"
- variant (string): the model's reasoning profile; without one Paperclip's "Thinking effort" (effort, thinkingEffort)
- extraArgs (list of strings): additional arguments of "opencode run"
- env (object): the agent's environment; secret references are resolved by Paperclip and passed on sealed
- mcpServers (object): MCP servers in OpenCode's or Claude's spelling
- timeoutSec (seconds, 0 = no limit), graceSec (seconds between SIGTERM and SIGKILL, default 60)
- resumeLastSession (default true): false starts every run with a fresh session
- dangerouslySkipPermissions (default true): directories outside the workspace are allowed
- agentDbMode: workspace_subpath (default), dedicated_pvc (with agentDbStorageClass, agentDbStorageCapacity), ephemeral
  (sessions end with the pod)

Kubernetes fields:
- namespace, image, imagePullPolicy, serviceAccountName, nodeSelector, tolerations, labels
- resources.requests.cpu, resources.requests.memory, resources.limits.cpu, resources.limits.memory
- ttlSecondsAfterFinished (default 300), retainJobs (default false)

Timeouts (seconds):
- scheduleTimeoutSec 600, startTimeoutSec 600, firstOutputTimeoutSec 420, silenceTimeoutSec 3600
- infrastructureRetries 2: further run attempts after a lost pod or node

Paperclip:
- paperclipApiUrl: Paperclip's address as pods reach it; a loopback address does not work there
- onBusy: wait (default) or refuse

Notes:
- kubeconfig is refused: the cluster is the worker's. reattachOrphanedJobs is not needed: a run is always joined.
- A wrong field fails the run before anything is created; the message names the field and the remedy.
- A failure has a code (errorCode) and a next step (resultJson.nextStep).
`;
