/**
 * Paperclip's adapter interface, as far as this package uses it.
 *
 * Written down here because the host's own type package is 42 MB and cannot be resolved from an adapter's directory.
 * Source: `@paperclipai/adapter-utils` 2026.916.1. What 2026.824.1 does not have is optional: ask for it before use.
 */

export type JsonObject = { [name: string]: unknown };

export interface AdapterAgent {
  id: string;
  companyId: string;
  name: string;
  [column: string]: unknown;
}

export interface AdapterRuntime {
  sessionId: string | null;
  sessionParams: JsonObject | null;
  sessionDisplayId: string | null;
  taskKey: string | null;
}

/** A connection-tools bearer for one run; lives an hour. */
export interface RuntimeTools {
  bearerToken?: string;
  [name: string]: unknown;
}

export interface InvocationMeta {
  adapterType: string;
  command: string;
  cwd?: string;
  commandNotes?: string[];
  prompt?: string;
  context?: JsonObject;
}

export interface AdapterExecutionContext {
  runId: string;
  agent: AdapterAgent;
  runtime: AdapterRuntime;
  /** Secret values are in clear in `config.env`. */
  config: JsonObject;
  context: JsonObject;
  authToken?: string;
  onLog(stream: "stdout" | "stderr", chunk: string): Promise<void>;
  onMeta?(meta: InvocationMeta): Promise<void>;
  /** 2026.916 and later. */
  onDispatch?(): Promise<void>;
  onRuntimeProgress?(update: { phase: "adapter_startup" | "finalize"; message: string }): Promise<void>;
  /** Opts in to cancellation: from here on an operator's Stop waits for our acknowledgement. 2026.916 and later. */
  onCancellationReady?(): Promise<void>;
  signal?: AbortSignal;
  runtimeTools?: RuntimeTools;
  runtimeMcp?: { getServers?(): Promise<unknown[]> | unknown[] };
}

export type ErrorFamily = "transient_upstream" | "provider_quota" | "model_refusal";

export type ExecutionRecovery =
  | { kind: "bootstrap"; providerWorkStarted: false }
  | { kind: "interrupted"; providerStopped: true; sessionPreserved: true; actionOutcomes: "settled" };

export interface AdapterExecutionResult {
  exitCode: number | null;
  signal: string | null;
  timedOut: boolean;
  errorMessage?: string | null;
  errorCode?: string | null;
  errorFamily?: ErrorFamily | null;
  retryNotBefore?: string | null;
  executionRecovery?: ExecutionRecovery;
  usage?: { inputTokens: number; outputTokens: number; cachedInputTokens?: number };
  usageBasis?: "per_run" | "session_cumulative" | null;
  sessionId?: string | null;
  sessionParams?: JsonObject | null;
  sessionDisplayId?: string | null;
  provider?: string | null;
  biller?: string | null;
  model?: string | null;
  billingType?: string | null;
  costUsd?: number | null;
  resultJson?: JsonObject | null;
  summary?: string | null;
  clearSession?: boolean;
}

export interface AdapterSessionCodec {
  deserialize(raw: unknown): JsonObject | null;
  serialize(params: JsonObject | null): JsonObject | null;
  getDisplayId?(params: JsonObject | null): string | null;
}

export interface EnvironmentCheck {
  code: string;
  level: "info" | "warn" | "error";
  message: string;
  detail?: string | null;
  hint?: string | null;
}

export interface EnvironmentTestContext {
  companyId: string;
  adapterType: string;
  config: JsonObject;
  [name: string]: unknown;
}

export interface EnvironmentTestResult {
  adapterType: string;
  status: "pass" | "warn" | "fail";
  checks: EnvironmentCheck[];
  testedAt: string;
}

export interface AdapterModel {
  id: string;
  label: string;
}

export interface SkillContext {
  agentId: string;
  companyId: string;
  adapterType: string;
  config: JsonObject;
}

export interface SkillEntry {
  key: string;
  runtimeName: string | null;
  desired: boolean;
  managed: boolean;
  required?: boolean;
  requiredReason?: string | null;
  state: "available" | "configured" | "installed" | "missing" | "stale" | "external";
  origin?: "company_managed" | "user_installed" | "external_unknown" | "paperclip_required";
  originLabel?: string | null;
  readOnly?: boolean;
  sourcePath?: string | null;
  targetPath?: string | null;
  detail?: string | null;
}

export interface SkillSnapshot {
  adapterType: string;
  supported: boolean;
  mode: "unsupported" | "persistent" | "ephemeral";
  desiredSkills: string[];
  entries: SkillEntry[];
  warnings: string[];
}

export interface ConfigField {
  key: string;
  label: string;
  type: "text" | "select" | "toggle" | "number" | "textarea" | "combobox";
  options?: { label: string; value: string; group?: string }[];
  default?: unknown;
  hint?: string;
  required?: boolean;
  group?: string;
  meta?: JsonObject;
}

export interface ServerAdapterModule {
  type: string;
  execute(context: AdapterExecutionContext): Promise<AdapterExecutionResult>;
  testEnvironment(context: EnvironmentTestContext): Promise<EnvironmentTestResult>;
  sessionCodec?: AdapterSessionCodec;
  models?: AdapterModel[];
  listModels?(): Promise<AdapterModel[]>;
  refreshModels?(): Promise<AdapterModel[]>;
  listSkills?(context: SkillContext): Promise<SkillSnapshot>;
  syncSkills?(context: SkillContext, desired: string[]): Promise<SkillSnapshot>;
  getConfigSchema?(): { fields: ConfigField[] };
  agentConfigurationDoc?: string;
  supportsLocalAgentJwt?: boolean;
  supportsInstructionsBundle?: boolean;
  instructionsPathKey?: string;
  requiresMaterializedRuntimeSkills?: boolean;
  runtimeToolDelivery?: "native_mcp" | "environment" | "invocation_context";
}

/** One entry of a run's transcript in Paperclip's UI; its kind decides which fields it has. */
export interface TranscriptEntry {
  kind: string;
  ts: string;
  [field: string]: unknown;
}
