// Generated from contracts/schema.json by `npm run contracts`. Do not edit.

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
  Cancel?: Cancel;
  Cancelled?: Cancelled;
  Join?: Join;
  Joined?: Joined;
}
/**
 * The workflow's input: the safe subset of an execution context and two sealed fields.
 *
 * Attributes:
 *     sealed_secrets: compact JWE of `Secrets`.
 *     sealed_prompt: compact JWE of `PromptSource`.
 *     notes: for people, such as why a stored session is not resumed.
 *     linger_sec: how long the outcome waits for a caller that was lost, in seconds; it holds the agent's id for the
 *         next wake of the same task, and gives it up to any other.
 */
export interface RunRequest {
  agent: AgentRef;
  config: RunConfig;
  context?: WakeContext;
  lingerSec?: number;
  notes?: string[];
  runId: string;
  runtime?: Runtime;
  sealedPrompt: string;
  sealedSecrets: string;
  [k: string]: unknown;
}
/**
 * Who runs.
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
 *     timeout_sec: wall clock for one run; 0 means no limit.
 *     grace_sec: how long OpenCode may take to end after SIGTERM.
 *     schedule_timeout_sec: until a node has taken the pod.
 *     start_timeout_sec: from there until the agent's container runs.
 *     first_output_timeout_sec: OpenCode may be silent this long before its first line; 0 means no limit.
 *     silence_timeout_sec: and this long after it; 0 means no limit. Running tools write nothing.
 *     infrastructure_retries: further attempts after a lost pod or node, on a budget of their own.
 *     ttl_seconds_after_finished: how long Kubernetes keeps a finished Job that we did not delete.
 *     paperclip_api_url: Paperclip as pods reach it, an absolute http(s) URL; wins over the worker's setting.
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
 * The agent's skill preference; None means that nobody chose.
 */
export interface SkillSync {
  desiredSkills?: DesiredSkill[] | null;
  [k: string]: unknown;
}
/**
 * A skill an agent wants: its key, slug or runtime name.
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
 * The wake facts that may enter a history: identifiers and reasons, no prose.
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
 * What `sealedSecrets` holds. Opened only by `create_job`, straight into a Kubernetes Secret.
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
 *     agent, context: the template data, as Paperclip sent them, without secrets.
 *     instructions, skills: texts that the caller has read itself, because they are on its own disk; None leaves them
 *         to the worker, which reads the configured paths on Paperclip's data volume.
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
 * Wake prose as the caller rendered it, for a session that is resumed and for a fresh one.
 */
export interface WakePrompt {
  fresh?: string;
  resumed?: string;
  [k: string]: unknown;
}
/**
 * Wake prose as the caller rendered it, for a session that is resumed and for a fresh one.
 */
export interface WakePrompt1 {
  fresh?: string;
  resumed?: string;
  [k: string]: unknown;
}
/**
 * Maps one to one onto Paperclip's AdapterExecutionResult; the fields after `clear_session` are ours.
 *
 * Source: Paperclip 2026.916.1, adapter-utils types.
 */
export interface Outcome {
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
 * What was stored of one attempt, compared with what the runner in the pod says it wrote.
 *
 * Attributes:
 *     sha256: over the raw stdout bytes, hex.
 *     state: `verified` equal; `unverified` the runner was killed before it could say; `differs`; `best effort` the
 *         log had no frames.
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
 * Output that was written and could not be had. `frames` is its size; None means unknown.
 */
export interface Gap {
  afterSequence: number;
  frames?: number | null;
  [k: string]: unknown;
}
/**
 * A failure as data: what happened, what to do next, whose budget another attempt would spend.
 */
export interface Failure {
  budget: "infrastructure" | "agent" | "none";
  code: string;
  message: string;
  nextStep: string;
  [k: string]: unknown;
}
/**
 * What was stored of one attempt, compared with what the runner in the pod says it wrote.
 *
 * Attributes:
 *     sha256: over the raw stdout bytes, hex.
 *     state: `verified` equal; `unverified` the runner was killed before it could say; `differs`; `best effort` the
 *         log had no frames.
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
 * What is known of an agent that we stopped. Paperclip needs all of it to go on with the task.
 *
 * Attributes:
 *     agent_started: its container ran at some time.
 *     agent_stopped: no container of this run is left, by Kubernetes' word.
 *     forced: it did not end within its grace and was killed.
 *     session_preserved: the session is known and its database outlives the pod, so the next wake can resume it.
 */
export interface Stop {
  agentStarted?: boolean;
  agentStopped?: boolean;
  forced?: boolean;
  sessionPreserved?: boolean;
  [k: string]: unknown;
}
/**
 * Tokens of one run. `input_tokens` are uncached, `output_tokens` include reasoning; shares do not overlap.
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
 * Asks to stop the agent. May be repeated: the first reason counts, every caller gets the same answer.
 */
export interface Cancel {
  reason?: string;
  [k: string]: unknown;
}
/**
 * What became of a cancel.
 *
 * Attributes:
 *     outcome: `cancelled`, or `ended before`: the run had an outcome of its own already.
 *     failure_code: of the outcome; None when the run had succeeded before the cancel came.
 */
export interface Cancelled {
  failureCode?: string | null;
  outcome: "cancelled" | "ended before";
  sessionId?: string | null;
  stop: Stop;
  [k: string]: unknown;
}
/**
 * A wake that found the agent held by another run, and says whose it is.
 *
 * Attributes:
 *     run_id: Paperclip's id of the new run.
 *     task: what it is about; only the same task may join.
 *     sealed_secrets: `Secrets` sealed for the new run id. The agent's pod speaks to Paperclip with its token from
 *         then on; None leaves it with the old one.
 */
export interface Join {
  runId: string;
  sealedSecrets?: string | null;
  task?: string | null;
  [k: string]: unknown;
}
/**
 * How a run takes a wake that is not its own.
 *
 * Attributes:
 *     kind: `joined` the run goes on for both, or its uncollected outcome is the new wake's; `released` the run had
 *         ended and kept the agent only for a caller that never came: attach again.
 *     run_id: Paperclip's id of the run that holds the agent; output and outcome carry this one.
 */
export interface Joined {
  finished: boolean;
  kind: "joined" | "released";
  phase: string;
  runId: string;
  since: string;
  [k: string]: unknown;
}
