// Generated from agent_runs/contracts/schema.json by `npm run contracts`. Do not edit.

export interface Contracts {
  RunRequest?: RunRequest;
  RunConfig?: RunConfig;
  Secrets?: Secrets;
  PromptSource?: PromptSource;
  WakePrompt?: WakePrompt1;
  SessionParams?: SessionParams;
  Outcome?: Outcome;
  Stop?: Stop;
  OutputReceipt?: OutputReceipt1;
  Join?: Join;
  Joined?: Joined;
}
/**
 * The workflow's input: the part of an execution context without secrets, and two sealed fields.
 *
 * Attributes:
 *     sealed_secrets: compact JWE of `Secrets`.
 *     sealed_prompt: compact JWE of `PromptSource`.
 *     notes: for people, such as why a stored session is not resumed.
 *     outcome_retention_sec: how long an outcome that no caller has fetched is kept, in seconds. Until then the next
 *         wake of the same task gets it; a wake of another task ends the retention.
 */
export interface RunRequest {
  agent: AgentRef;
  config: RunConfig;
  context?: WakeContext;
  notes?: string[];
  outcomeRetentionSec?: number;
  runId: string;
  runtime?: Runtime;
  sealedPrompt: string;
  sealedSecrets: string;
  [k: string]: unknown;
}
/**
 * The agent of a run, by Paperclip's ids.
 */
export interface AgentRef {
  companyId: string;
  id: string;
  name?: string;
  [k: string]: unknown;
}
/**
 * The part of the agent's configuration that may enter a history. All times in seconds.
 *
 * Attributes:
 *     timeout_sec: run time of the agent in one run, all attempts together; 0 means no limit.
 *     grace_sec: how long OpenCode may take to end after SIGTERM.
 *     schedule_timeout_sec: until a node has taken the pod.
 *     start_timeout_sec: from there until the agent's container runs.
 *     first_output_timeout_sec: how long OpenCode may be silent before its first line; 0 means no limit.
 *     silence_timeout_sec: how long it may be silent after that; 0 means no limit. A running tool writes nothing.
 *     infrastructure_retries: further attempts after a lost pod or node, on a budget of their own.
 *     ttl_seconds_after_finished: how long Kubernetes keeps a finished Job that the worker did not delete.
 *     paperclip_api_url: address of Paperclip for pods, an absolute http(s) URL; overrides the worker's setting.
 */
export interface RunConfig {
  agentDbMode?: "workspace_subpath" | "dedicated_pvc" | "ephemeral";
  agentDbStorageCapacity?: string;
  agentDbStorageClass?: string | null;
  cwd?: string | null;
  dangerouslySkipPermissions?: boolean;
  extraArgs?: string[];
  firstOutputTimeoutSec?: number;
  graceSec?: number;
  image?: string | null;
  imagePullPolicy?: "IfNotPresent" | "Always" | "Never";
  infrastructureRetries?: number;
  instructionsFilePath?: string | null;
  labels?: {
    [k: string]: string;
  };
  model: string;
  namespace?: string | null;
  nodeSelector?: {
    [k: string]: string;
  } | null;
  paperclipApiUrl?: string | null;
  paperclipRuntimeSkills?: RuntimeSkill[];
  paperclipSkillSync?: SkillSync;
  resources?: Resources;
  resumeLastSession?: boolean;
  retainJobs?: boolean;
  scheduleTimeoutSec?: number;
  serviceAccountName?: string | null;
  silenceTimeoutSec?: number;
  startTimeoutSec?: number;
  timeoutSec?: number;
  tolerations?: Toleration[] | null;
  ttlSecondsAfterFinished?: number;
  variant?: string | null;
  [k: string]: unknown;
}
/**
 * One skill that Paperclip offers: a folder with a SKILL.md on Paperclip's data volume.
 */
export interface RuntimeSkill {
  key: string;
  missingDetail?: string | null;
  required?: boolean;
  runtimeName?: string | null;
  source?: string | null;
  sourceStatus?: string | null;
  [k: string]: unknown;
}
/**
 * The skills chosen for the agent; None: nothing is chosen.
 */
export interface SkillSync {
  desiredSkills?: DesiredSkill[] | null;
  [k: string]: unknown;
}
/**
 * A skill of an agent: its key, slug or runtime name.
 */
export interface DesiredSkill {
  key: string;
  versionId?: string | null;
  [k: string]: unknown;
}
/**
 * Requests and limits of the agent container.
 */
export interface Resources {
  limits?: ResourceAmounts;
  requests?: ResourceAmounts1;
  [k: string]: unknown;
}
/**
 * CPU and memory as Kubernetes quantities.
 */
export interface ResourceAmounts {
  cpu?: string | null;
  memory?: string | null;
  [k: string]: unknown;
}
/**
 * CPU and memory as Kubernetes quantities.
 */
export interface ResourceAmounts1 {
  cpu?: string | null;
  memory?: string | null;
  [k: string]: unknown;
}
/**
 * A Kubernetes toleration. Source: core/v1 Toleration.
 */
export interface Toleration {
  effect?: ("NoSchedule" | "PreferNoSchedule" | "NoExecute") | null;
  key?: string | null;
  operator?: ("Exists" | "Equal") | null;
  tolerationSeconds?: number | null;
  value?: string | null;
  [k: string]: unknown;
}
/**
 * The part of the wake context that may enter a history: identifiers and reasons, no prose.
 */
export interface WakeContext {
  approvalId?: string | null;
  approvalStatus?: string | null;
  commentId?: string | null;
  issueId?: string | null;
  issueIds?: string[];
  issueWorkMode?: string | null;
  paperclipRuntimePrimaryUrl?: string | null;
  paperclipWorkspace?: Workspace;
  previousRunId?: string | null;
  retryOfRunId?: string | null;
  taskId?: string | null;
  wakeCommentId?: string | null;
  wakeReason?: string | null;
  [k: string]: unknown;
}
/**
 * The execution workspace: `cwd` is its path on Paperclip's data volume and in the pod.
 */
export interface Workspace {
  agentHome?: string | null;
  branchName?: string | null;
  cwd?: string | null;
  repoRef?: string | null;
  repoUrl?: string | null;
  source?: string | null;
  strategy?: string | null;
  workspaceId?: string | null;
  worktreePath?: string | null;
  [k: string]: unknown;
}
/**
 * Session and task of this wake. `session_params` is already decoded; None means a fresh session.
 */
export interface Runtime {
  sessionParams?: SessionParams | null;
  taskKey?: string | null;
  [k: string]: unknown;
}
/**
 * What Paperclip stores between runs so that the next one can resume. Source: the peers' session codec.
 */
export interface SessionParams {
  cwd?: string | null;
  repoRef?: string | null;
  repoUrl?: string | null;
  sessionId: string;
  workspaceId?: string | null;
  [k: string]: unknown;
}
/**
 * What `sealedSecrets` holds. Opened by activities only, which put it into Kubernetes Secrets or redact it.
 *
 * Attributes:
 *     run_id: must equal the request's, so that a sealed field cannot be moved to another run.
 *     env: the agent's own environment (`config.env`).
 *     secret_env: names in `env` that Paperclip bound to its secrets; their values are kept out of transcripts.
 *     paperclip_env: `PAPERCLIP_*` values that are prose or bulky (wake payload, workspaces).
 *     mcp_servers: OpenCode's or Claude's spelling, with headers and tokens.
 */
export interface Secrets {
  authToken?: string | null;
  env?: {
    [k: string]: string;
  };
  mcpServers?: {
    [k: string]: {
      [k: string]: unknown;
    };
  };
  paperclipEnv?: {
    [k: string]: string;
  };
  runId: string;
  secretEnv?: string[];
  [k: string]: unknown;
}
/**
 * What `sealedPrompt` holds. Opened only by `bundle_prompt`, straight into a Kubernetes Secret.
 *
 * Attributes:
 *     agent, context: the template data of Paperclip, without secrets.
 *     instructions, skills: texts that the caller has read from its own disk; None: the worker reads the configured
 *         paths on Paperclip's data volume.
 */
export interface PromptSource {
  agent?: {
    [k: string]: unknown;
  };
  bootstrapTemplate?: string | null;
  context?: {
    [k: string]: unknown;
  };
  instructions?: string | null;
  promptTemplate?: string | null;
  runId: string;
  sessionHandoff?: string;
  skills?: string[] | null;
  taskMarkdown?: string;
  wake?: WakePrompt;
  [k: string]: unknown;
}
/**
 * The wake text as the caller rendered it, for a resumed session and for a fresh one.
 */
export interface WakePrompt {
  fresh?: string;
  resumed?: string;
  [k: string]: unknown;
}
/**
 * The wake text as the caller rendered it, for a resumed session and for a fresh one.
 */
export interface WakePrompt1 {
  fresh?: string;
  resumed?: string;
  [k: string]: unknown;
}
/**
 * Maps one to one to Paperclip's AdapterExecutionResult; the fields after `clear_session` are additions.
 *
 * Attributes:
 *     error_message: of a failure never empty, because Paperclip takes none for success; at most 4000 characters.
 *     error_family: what Paperclip acts on; of a run that never started None, unless its infrastructure failed.
 *     retry_not_before: the earliest time of Paperclip's own retry, UTC.
 *     session_params: what Paperclip stores, without absent fields; None with `clear_session`.
 *     model: without the provider's name.
 *     never_started: no attempt ever had a running agent, and none can start any more.
 *     agent_stopped: no container of the run is left: it ended by itself, or Kubernetes has deleted it.
 *
 * Source: Paperclip 2026.916.1, adapter-utils types.
 */
export interface Outcome {
  agentStopped?: boolean;
  attempts?: AttemptReport[];
  biller?: string | null;
  billingType?: "api" | "metered_api" | "unknown";
  clearSession?: boolean;
  costUsd?: number | string | null;
  errorCode?: string | null;
  errorFamily?: ("transient_upstream" | "provider_quota" | "model_refusal") | null;
  errorMessage?: string | null;
  exitCode?: number | null;
  failure?: Failure | null;
  model?: string | null;
  neverStarted?: boolean;
  provider?: string | null;
  receipt?: OutputReceipt1 | null;
  resultJson?: {
    [k: string]: unknown;
  };
  retryNotBefore?: string | null;
  sessionDisplayId?: string | null;
  sessionId?: string | null;
  sessionParams?: SessionParams | null;
  signal?: string | null;
  stop?: Stop | null;
  summary?: string | null;
  timedOut?: boolean;
  usage?: Usage | null;
  usageBasis?: "per_run";
  [k: string]: unknown;
}
/**
 * One attempt as the outcome lists it.
 */
export interface AttemptReport {
  attempt: number;
  failureCode?: string | null;
  jobName: string;
  receipt?: OutputReceipt;
  [k: string]: unknown;
}
/**
 * What was stored of one attempt, compared with what the runner in the pod has counted.
 *
 * Attributes:
 *     sha256: over the raw stdout bytes, hex.
 *     state: `verified`: both are equal; `unverified`: the runner was killed before it reported; `differs`: they are
 *         not equal; `best effort`: the log had no frames.
 */
export interface OutputReceipt {
  bytes?: number;
  gaps?: Gap[];
  lines?: number;
  sha256?: string | null;
  state?: "verified" | "unverified" | "differs" | "best effort";
  [k: string]: unknown;
}
/**
 * Output that the agent wrote and that is missing. `frames` is its size; None: unknown.
 */
export interface Gap {
  afterSequence: number;
  frames?: number | null;
  [k: string]: unknown;
}
/**
 * A failure as data: what happened, what to do next, whose budget a next attempt costs.
 */
export interface Failure {
  budget: "infrastructure" | "agent" | "none";
  code: string;
  message: string;
  nextStep: string;
  [k: string]: unknown;
}
/**
 * What was stored of one attempt, compared with what the runner in the pod has counted.
 *
 * Attributes:
 *     sha256: over the raw stdout bytes, hex.
 *     state: `verified`: both are equal; `unverified`: the runner was killed before it reported; `differs`: they are
 *         not equal; `best effort`: the log had no frames.
 */
export interface OutputReceipt1 {
  bytes?: number;
  gaps?: Gap[];
  lines?: number;
  sha256?: string | null;
  state?: "verified" | "unverified" | "differs" | "best effort";
  [k: string]: unknown;
}
/**
 * What is known of an agent that was stopped. Paperclip needs it to continue the task.
 *
 * Attributes:
 *     agent_started: its container has run.
 *     agent_stopped: no container of this run is left, according to Kubernetes.
 *     killed: it did not end within its grace and was killed.
 *     session_preserved: the session is known and its database outlives the pod, so the next wake can resume it.
 */
export interface Stop {
  agentStarted?: boolean;
  agentStopped?: boolean;
  killed?: boolean;
  sessionPreserved?: boolean;
  [k: string]: unknown;
}
/**
 * Tokens of one run. `input_tokens` are uncached; `output_tokens` include `reasoning_tokens`.
 */
export interface Usage {
  cacheWriteTokens?: number;
  cachedInputTokens?: number;
  inputTokens?: number;
  outputTokens?: number;
  reasoningTokens?: number;
  [k: string]: unknown;
}
/**
 * A wake of an agent that is held by another run.
 *
 * Attributes:
 *     run_id: Paperclip's id of the run that wants to join.
 *     task: the task of that run; only the same task may join.
 *     sealed_secrets: `Secrets`, sealed for the id of that run. From then on the agent reaches Paperclip with its
 *         token; None: the agent keeps its token.
 */
export interface Join {
  runId: string;
  sealedSecrets?: string | null;
  task?: string | null;
  [k: string]: unknown;
}
/**
 * How a run answers a later wake.
 *
 * Attributes:
 *     kind: `joined`: the run continues for both, or the wake gets its uncollected outcome; `released`: the run has
 *         ended, and its outcome was collected or belongs to another task, so the agent is free: attach once more.
 *     run_id: Paperclip's id of the run that holds the agent, which names its output and outcome.
 */
export interface Joined {
  finished: boolean;
  kind: "joined" | "released";
  phase: string;
  runId: string;
  since: string;
  [k: string]: unknown;
}
