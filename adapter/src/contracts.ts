// Generated from agent_runs/contracts/schema.json by `npm run contracts`. Do not edit.

export interface Contracts {
  RunStart?: RunStart;
  SealedRun?: SealedRun;
  SealedJoin?: SealedJoin;
  CheckStart?: CheckStart;
  SealedCheck?: SealedCheck;
  CheckReport?: CheckReport;
  Outcome?: Outcome;
  Join?: Join;
  Joined?: Joined;
}
/**
 * The workflow's input. An unknown field is refused: nothing but these counts, everything else is sealed.
 *
 * Attributes:
 *     task: Paperclip's task; a later wake of the same task may join the run. None: no wake may.
 *     sealed: compact JWE of `SealedRun`.
 *     outcome_retention_sec: how long an outcome that no caller has fetched is kept, in seconds. Until then the next
 *         wake of the same task gets it; a wake of another task ends the retention.
 */
export interface RunStart {
  agentId: string;
  companyId: string;
  outcomeRetentionSec?: number;
  runId: string;
  sealed: string;
  task?: string | null;
}
/**
 * The plaintext for a run: `context` is Paperclip's execution context as JSON, validated when it is opened.
 */
export interface SealedRun {
  binding: Binding;
  context: {
    [k: string]: unknown;
  };
  host?: HostTexts;
  [k: string]: unknown;
}
/**
 * What a sealed text may be used for. It is part of the plaintext, so only who seals can choose it.
 *
 * Attributes:
 *     purpose: `run`: to start a run; `join`: to give a run the tokens of a later wake; `check`: to check an agent's
 *         configuration.
 *     workflow_id: of the only workflow that may open it.
 *     run_id: Paperclip's id of the wake; of a check the id that the caller chose for it.
 *     task: as the start or the join names it.
 */
export interface Binding {
  companyId: string;
  purpose: "run" | "join" | "check";
  runId: string;
  task?: string | null;
  workflowId: string;
  [k: string]: unknown;
}
/**
 * What only the process of Paperclip's server knows; the defaults are those of a caller that is somewhere else.
 *
 * Attributes:
 *     wake_prompt: the wake as Paperclip's own helper renders it.
 *     heartbeat_template: Paperclip's own template for this kind of wake, for an agent that has none.
 *     repair_wake: Paperclip's own helper says that the wake asks for a repair: the agent then gets no heartbeat.
 *     instructions: the text of the configured instructions file; None: the worker reads the file.
 *     skills: texts of skills by key; None: the worker reads their files.
 *     tool_servers: as Paperclip offers them.
 *     address: Paperclip's address as its own process knows it.
 *     pods_address: Paperclip's address as pods reach it, by the setting of that process.
 *     notes: for people, such as a file that cannot be read.
 */
export interface HostTexts {
  address?: string | null;
  heartbeatTemplate?: string | null;
  instructions?: string | null;
  notes?: string[];
  podsAddress?: string | null;
  repairWake?: boolean;
  skills?: {
    [k: string]: string;
  } | null;
  toolServers?: ToolServer[];
  wakePrompt?: WakePrompt;
  [k: string]: unknown;
}
/**
 * A tool server that Paperclip offers to the run, at Paperclip's own address of it.
 */
export interface ToolServer {
  name: string;
  token?: string | null;
  url: string;
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
 * The plaintext for a join: the tokens that Paperclip has issued for the later wake. All None: the agent keeps its own.
 *
 * Attributes:
 *     tools_token: of Paperclip's connection tools.
 */
export interface SealedJoin {
  authToken?: string | null;
  binding: Binding;
  toolsToken?: string | null;
  [k: string]: unknown;
}
/**
 * The input of a check.
 *
 * Attributes:
 *     check_id: chosen by the caller; part of the workflow's id.
 *     sealed: compact JWE of `SealedCheck`.
 */
export interface CheckStart {
  checkId: string;
  companyId: string;
  sealed: string;
  [k: string]: unknown;
}
/**
 * The plaintext for a check: an agent's configuration as JSON, as a run would get it.
 */
export interface SealedCheck {
  binding: Binding;
  config: {
    [k: string]: unknown;
  };
  host?: HostTexts1;
  [k: string]: unknown;
}
/**
 * What only the process of Paperclip's server knows; the defaults are those of a caller that is somewhere else.
 *
 * Attributes:
 *     wake_prompt: the wake as Paperclip's own helper renders it.
 *     heartbeat_template: Paperclip's own template for this kind of wake, for an agent that has none.
 *     repair_wake: Paperclip's own helper says that the wake asks for a repair: the agent then gets no heartbeat.
 *     instructions: the text of the configured instructions file; None: the worker reads the file.
 *     skills: texts of skills by key; None: the worker reads their files.
 *     tool_servers: as Paperclip offers them.
 *     address: Paperclip's address as its own process knows it.
 *     pods_address: Paperclip's address as pods reach it, by the setting of that process.
 *     notes: for people, such as a file that cannot be read.
 */
export interface HostTexts1 {
  address?: string | null;
  heartbeatTemplate?: string | null;
  instructions?: string | null;
  notes?: string[];
  podsAddress?: string | null;
  repairWake?: boolean;
  skills?: {
    [k: string]: string;
  } | null;
  toolServers?: ToolServer[];
  wakePrompt?: WakePrompt;
  [k: string]: unknown;
}
/**
 * What a check has found; without an error a run of this configuration is not refused for it.
 */
export interface CheckReport {
  findings?: Finding[];
  [k: string]: unknown;
}
/**
 * One result of a check, in the shape of Paperclip's environment test.
 *
 * Attributes:
 *     code: stable, in snake_case.
 *     message: what was found, without values of the configuration.
 *     hint: what to do about it.
 */
export interface Finding {
  code: string;
  hint?: string | null;
  level: "info" | "warn" | "error";
  message: string;
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
 *     sealed: compact JWE of `SealedJoin`, the tokens of that run. From then on the agent reaches Paperclip with them;
 *         None: the agent keeps its token.
 */
export interface Join {
  runId: string;
  sealed?: string | null;
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
