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
  SealedMessage?: SealedMessage;
  Question?: Question;
  Answer?: Answer;
  Delivery?: Delivery;
}
export interface RunStart {
  agentId: string;
  companyId: string;
  outcomeRetentionSec?: number;
  runId: string;
  sealed: string;
  task?: string | null;
}
export interface SealedRun {
  binding: Binding;
  context: {
    [k: string]: unknown;
  };
  host?: HostTexts;
}
export interface Binding {
  companyId: string;
  purpose: "run" | "join" | "check" | "message";
  runId: string;
  task?: string | null;
  workflowId: string;
}
export interface HostTexts {
  address?: string | null;
  heartbeatTemplate?: string | null;
  instructions?: string | null;
  notes?: string[];
  opencodeProviders?: string | null;
  podsAddress?: string | null;
  repairWake?: boolean;
  skillFiles?: {
    [k: string]: {
      [k: string]: string;
    };
  };
  skills?: {
    [k: string]: string;
  } | null;
  toolServers?: ToolServer[];
  wakePayload?: string | null;
  wakePrompt?: WakePrompt;
}
export interface ToolServer {
  name: string;
  token?: string | null;
  url: string;
}
export interface WakePrompt {
  fresh?: string;
  resumed?: string;
}
export interface SealedJoin {
  authToken?: string | null;
  binding: Binding;
  toolsToken?: string | null;
}
export interface CheckStart {
  checkId: string;
  companyId: string;
  pod?: boolean;
  sealed: string;
}
export interface SealedCheck {
  binding: Binding;
  config: {
    [k: string]: unknown;
  };
  host?: HostTexts;
  workspaces?: string | null;
}
export interface CheckReport {
  findings?: Finding[];
}
export interface Finding {
  code: string;
  hint?: string | null;
  level: "info" | "warn" | "error";
  message: string;
}
export interface Outcome {
  actionOutcome?: "completed" | "not_performed" | "mixed";
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
  mayRepeat?: boolean;
  model?: string | null;
  neverStarted?: boolean;
  personAction?: string | null;
  provider?: string | null;
  receipt?: OutputReceipt | null;
  recovery?: ("bootstrap" | "interrupted") | null;
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
}
export interface AttemptReport {
  attempt: number;
  failureCode?: string | null;
  jobName: string;
  lost?: LostWork | null;
  peaks?: Peaks;
  receipt?: OutputReceipt;
}
export interface LostWork {
  seconds: number;
  steps: number;
}
export interface Peaks {
  memory?: number | null;
  memoryLimit?: number | null;
  memoryReachedLimit?: boolean;
  outputDisk?: number | null;
}
export interface OutputReceipt {
  bytes?: number;
  checksum?: string | null;
  gaps?: Gap[];
  lines?: number;
  state?: "verified" | "unverified" | "differs";
}
export interface Gap {
  afterSequence: number;
  frames?: number | null;
}
export interface Failure {
  budget: "infrastructure" | "agent" | "none";
  code: string;
  message: string;
  nextStep: string;
}
export interface SessionParams {
  agent?: string | null;
  agentVersion?: string | null;
  cwd?: string | null;
  rejected?: string | null;
  repoRef?: string | null;
  repoUrl?: string | null;
  sessionId: string;
  workspaceId?: string | null;
  workspaceRun?: string | null;
}
export interface Stop {
  agentStarted?: boolean;
  agentStopped?: boolean;
  killed?: boolean;
  sessionPreserved?: boolean;
}
export interface Usage {
  cacheWriteTokens?: number;
  cachedInputTokens?: number;
  inputTokens?: number;
  outputTokens?: number;
  reasoningTokens?: number;
}
export interface Join {
  companyId: string;
  runId: string;
  sealed?: string | null;
  task?: string | null;
}
export interface Joined {
  finished: boolean;
  kind: "joined" | "released";
  phase: string;
  runId: string;
  since: string;
}
export interface SealedMessage {
  answers?: string[][];
  binding: Binding;
  question?: string | null;
  text?: string;
}
export interface Question {
  askedAt?: string | null;
  attempt: number;
  /**
   * @minItems 1
   * @maxItems 8
   */
  fields:
    | [QuestionField]
    | [QuestionField, QuestionField]
    | [QuestionField, QuestionField, QuestionField]
    | [QuestionField, QuestionField, QuestionField, QuestionField]
    | [QuestionField, QuestionField, QuestionField, QuestionField, QuestionField]
    | [QuestionField, QuestionField, QuestionField, QuestionField, QuestionField, QuestionField]
    | [QuestionField, QuestionField, QuestionField, QuestionField, QuestionField, QuestionField, QuestionField]
    | [
        QuestionField,
        QuestionField,
        QuestionField,
        QuestionField,
        QuestionField,
        QuestionField,
        QuestionField,
        QuestionField
      ];
  id: string;
  kind: "permission" | "question";
  withdrawn?: boolean;
}
export interface QuestionField {
  many?: boolean;
  /**
   * @maxItems 16
   */
  options?:
    | []
    | [Option]
    | [Option, Option]
    | [Option, Option, Option]
    | [Option, Option, Option, Option]
    | [Option, Option, Option, Option, Option]
    | [Option, Option, Option, Option, Option, Option]
    | [Option, Option, Option, Option, Option, Option, Option]
    | [Option, Option, Option, Option, Option, Option, Option, Option]
    | [Option, Option, Option, Option, Option, Option, Option, Option, Option]
    | [Option, Option, Option, Option, Option, Option, Option, Option, Option, Option]
    | [Option, Option, Option, Option, Option, Option, Option, Option, Option, Option, Option]
    | [Option, Option, Option, Option, Option, Option, Option, Option, Option, Option, Option, Option]
    | [Option, Option, Option, Option, Option, Option, Option, Option, Option, Option, Option, Option, Option]
    | [Option, Option, Option, Option, Option, Option, Option, Option, Option, Option, Option, Option, Option, Option]
    | [
        Option,
        Option,
        Option,
        Option,
        Option,
        Option,
        Option,
        Option,
        Option,
        Option,
        Option,
        Option,
        Option,
        Option,
        Option
      ]
    | [
        Option,
        Option,
        Option,
        Option,
        Option,
        Option,
        Option,
        Option,
        Option,
        Option,
        Option,
        Option,
        Option,
        Option,
        Option,
        Option
      ];
  ownWords?: boolean;
  text: string;
}
export interface Option {
  description?: string;
  label: string;
}
export interface Answer {
  by: string;
  messageId: string;
  questionId: string;
  runId: string;
  sealed?: string | null;
}
export interface Delivery {
  at: string;
  attempt: number;
  queued?: boolean;
  runId: string;
}
