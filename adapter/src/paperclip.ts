/**
 * Paperclip's adapter interface, as far as this package uses it.
 *
 * Written down here because the host's own type package is 42 MB and cannot be resolved from an adapter's directory.
 * Source: `@paperclipai/adapter-utils` 2026.916.1, with which `tests/paperclip_server/test_types.py` compares it. What 2026.824.1
 * does not have is optional: ask for it before use.
 */

import type { Finding, Outcome } from "../generated/contracts.ts";

export type JsonObject = { [name: string]: unknown };

/** A copy of `value` if it is an object, else an empty one. */
export function objectOf(value: unknown): JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? { ...value } : {};
}

/** What Paperclip shows of a run at work, for 90 s. */
export interface RuntimeStatusUpdate {
  phase: "adapter_startup" | "finalize";
  message: string;
  currentToolName: string | null;
}

export interface AdapterExecutionContext {
  runId: string;
  agent: { id: string; companyId: string; name: string; adapterType: string | null };
  runtime: {
    sessionId: string | null;
    sessionParams: JsonObject | null;
    sessionDisplayId: string | null;
    taskKey: string | null;
  };
  /** Secret values are in clear in `config.env`. */
  config: JsonObject;
  context: JsonObject;
  authToken?: string;
  onLog(stream: "stdout" | "stderr", chunk: string): Promise<void>;
  onMeta?(meta: InvocationMeta): Promise<void>;
  /** 2026.916 and later. */
  onDispatch?(): Promise<void> | void;
  onRuntimeProgress?(update: RuntimeStatusUpdate): Promise<void> | void;
  /** Opts in to cancellation: from here on an operator's Stop waits for our acknowledgement. 2026.916 and later. */
  onCancellationReady?(): Promise<void>;
  signal?: AbortSignal;
  /** With a bearer for connection tools, for one run; it lives an hour. */
  runtimeTools?: { bearerToken?: string };
  runtimeMcp?: { getServers?(): Promise<unknown[]> | unknown[] };
}

export interface InvocationMeta {
  adapterType: string;
  command: string;
  cwd?: string;
  commandNotes?: string[];
  prompt?: string;
  context?: JsonObject;
}

export interface AdapterExecutionResult {
  exitCode: number | null;
  signal: string | null;
  timedOut: boolean;
  errorMessage?: string | null;
  errorCode?: string | null;
  errorFamily?: Outcome["errorFamily"];
  retryNotBefore?: string | null;
  executionRecovery?:
    | { kind: "bootstrap"; providerWorkStarted: false }
    | { kind: "interrupted"; providerStopped: true; sessionPreserved: true; actionOutcomes: "settled" };
  usage?: { inputTokens: number; outputTokens: number; cachedInputTokens?: number };
  usageBasis?: "per_run";
  sessionId?: string | null;
  sessionParams?: JsonObject | null;
  sessionDisplayId?: string | null;
  provider?: string | null;
  biller?: string | null;
  model?: string | null;
  billingType?: Outcome["billingType"];
  costUsd?: number | null;
  resultJson?: JsonObject | null;
  summary?: string | null;
  clearSession?: boolean;
}

export interface EnvironmentTestContext {
  companyId: string;
  adapterType: string;
  config: JsonObject;
}

export interface EnvironmentTestResult {
  adapterType: string;
  status: "pass" | "warn" | "fail";
  checks: Finding[];
  testedAt: string;
}

/** One entry of a run's transcript in Paperclip's UI; its kind decides which fields it has. */
export interface TranscriptEntry {
  kind: string;
  ts: string;
  [field: string]: unknown;
}
