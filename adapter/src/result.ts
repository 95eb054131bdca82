/**
 * Turns what a run ended with into Paperclip's AdapterExecutionResult. Pure.
 *
 * What Paperclip does with a failure hangs on its evidence: without any it holds the task until an operator says what
 * became of it. So evidence is given whenever it is true, and never otherwise. Source: Paperclip 2026.916.1, its outcome
 * rules and recovery matrix, read and observed live.
 */

import type { Cancelled, Outcome, Stop } from "./contracts.ts";
import type { AdapterExecutionResult, ErrorFamily, ExecutionRecovery, JsonObject } from "./paperclip.ts";
import { decodeSession } from "./session.ts";

const MESSAGE_LIMIT = 4000;
const SUMMARY_LIMIT = 16_000;
const RETRY_AFTER_MS = 60_000;
/** Paperclip starts the next turn of the conversation by itself. Internal to 2026.916. */
const CONTINUE = "continue_conversation_v1";
/** Keys of `resultJson` that Paperclip obeys. A run's facts must not set them. */
const OBEYED = ["executionCancellation", "executionRecovery", "conversationContinuation", "nativeCancellation"];
/** An attempt that ended so had no running agent. */
const NEVER_RAN: ReadonlySet<string> = new Set([
  ...["k8s_image_registry_throttled", "k8s_image_pull_failed", "k8s_pod_schedule_failed", "k8s_pod_start_failed"],
  ...["k8s_job_create_failed", "prompt_too_large", "k8s_job_state_mismatch", "sealed_field_unreadable"],
  ...["k8s_introspection_failed", "invalid_request"],
]);

/** What of the host and of the way to the outcome matters for the result. */
export interface Circumstances {
  /** The host knows recovery evidence and continuation (2026.916 and later). */
  recovery: boolean;
  now: Date;
  /** Our own address of the run's page, without a token. */
  page?: string;
  /** The run that gave this outcome, when another wake had started it. */
  joinedRunId?: string;
  /** An operator's cancel and its answer. */
  cancelled?: { by: Cancelled; at: Date };
  workflow?: { id: string; runId: string };
}

/** A failure of ours, before or beside an outcome. */
export interface Problem {
  code: string;
  message: string;
  nextStep?: string;
  /** Nothing of this run has ever been started: Paperclip may simply try again. */
  neverStarted?: boolean;
  family?: ErrorFamily;
}

/** The result of a run that has an outcome. */
export function resultOf(outcome: Outcome, circumstances: Circumstances): AdapterExecutionResult {
  const { cancelled, recovery } = circumstances;
  const failed = outcome.failure != null || Boolean(outcome.errorMessage) || outcome.timedOut === true;
  const never = neverStarted(outcome);
  const session = outcome.clearSession
    ? null
    : decodeSession(outcome.sessionParams ?? { sessionId: outcome.sessionId });
  const family = failed && cancelled === undefined ? familyOf(outcome, never) : null;
  const continues = recovery && failed && !never && cancelled === undefined && continuing(family);
  const result: AdapterExecutionResult = {
    exitCode: failed ? (outcome.exitCode ?? null) : 0,
    signal: outcome.signal ?? null,
    timedOut: outcome.timedOut ?? false,
    errorMessage: failed ? messageOf(outcome) : null,
    errorCode: failed ? (outcome.errorCode ?? outcome.failure?.code ?? "agent_run_failed") : null,
    errorFamily: family,
    usageBasis: "per_run",
    provider: outcome.provider ?? null,
    biller: outcome.biller ?? null,
    model: outcome.model ?? null,
    billingType: outcome.billingType ?? "unknown",
    costUsd: numberOf(outcome.costUsd),
    summary: outcome.summary ? cut(outcome.summary, SUMMARY_LIMIT) : null,
    clearSession: outcome.clearSession ?? false,
    resultJson: {
      ...facts(outcome, circumstances),
      ...(continues ? { conversationContinuation: CONTINUE } : {}),
      ...(cancelled ? acknowledgement(cancelled) : {}),
    },
  };
  if (outcome.usage) {
    const { inputTokens = 0, outputTokens = 0, cachedInputTokens = 0 } = outcome.usage;
    result.usage = { inputTokens, outputTokens, cachedInputTokens };
  }
  if (session !== null || outcome.clearSession) {
    result.sessionParams = session as JsonObject | null;
    result.sessionId = result.sessionDisplayId = session?.sessionId ?? null;
  }
  const evidence = evidenceOf(cancelled?.by.stop ?? null, never, failed);
  if (evidence && recovery) result.executionRecovery = evidence;
  if (failed && never && family !== null) {
    const soon = new Date(circumstances.now.getTime() + RETRY_AFTER_MS).toISOString();
    result.retryNotBefore = outcome.retryNotBefore ?? soon;
  } else if (failed && outcome.retryNotBefore) {
    result.retryNotBefore = outcome.retryNotBefore;
  }
  return result;
}

/** The result of a wake that never came to an outcome. */
export function failedResult(problem: Problem, recovery: boolean): AdapterExecutionResult {
  const result: AdapterExecutionResult = {
    exitCode: 1,
    signal: null,
    timedOut: false,
    errorMessage: cut(problem.message, MESSAGE_LIMIT),
    errorCode: problem.code,
    errorFamily: problem.family ?? null,
    usageBasis: "per_run",
    resultJson: { stopReason: problem.code, ...(problem.nextStep ? { nextStep: problem.nextStep } : {}) },
  };
  if (problem.neverStarted && recovery) result.executionRecovery = bootstrap();
  return result;
}

/** The result of a wake that was cancelled before anything of it existed. */
export function cancelledBeforeStart(reason: string, at: Date, recovery: boolean): AdapterExecutionResult {
  const result: AdapterExecutionResult = {
    exitCode: null,
    signal: null,
    timedOut: false,
    errorMessage: cut(reason, MESSAGE_LIMIT),
    errorCode: "cancelled",
    usageBasis: "per_run",
    resultJson: {
      stopReason: "cancelled",
      executionCancellation: { state: "acknowledged", acknowledgedAt: at.toISOString(), forced: false },
    },
  };
  if (recovery) result.executionRecovery = bootstrap();
  return result;
}

/** Whether no attempt ever had a running agent, and none can start any more. */
export function neverStarted(outcome: Outcome): boolean {
  const { stop, attempts = [] } = outcome;
  if (stop?.agentStarted !== false || stop.agentStopped !== true) return false;
  if (outcome.resultJson?.agentStarted === true) return false;
  return attempts.slice(0, -1).every((attempt) => NEVER_RAN.has(attempt.failureCode ?? ""));
}

function evidenceOf(stopped: Stop | null, never: boolean, failed: boolean): ExecutionRecovery | undefined {
  if (never && (failed || stopped !== null)) return bootstrap();
  if (stopped?.agentStopped && stopped.sessionPreserved && !stopped.forced) {
    return { kind: "interrupted", providerStopped: true, sessionPreserved: true, actionOutcomes: "settled" };
  }
  return undefined;
}

function bootstrap(): ExecutionRecovery {
  return { kind: "bootstrap", providerWorkStarted: false };
}

function acknowledgement({ by, at }: { by: Cancelled; at: Date }): JsonObject {
  const forced = by.stop.forced ?? false;
  // an agent that may still run has not been stopped, and that is what an acknowledgement says
  if (!by.stop.agentStopped) return {};
  return { executionCancellation: { state: "acknowledged", acknowledgedAt: at.toISOString(), forced } };
}

/** Of a run that never started only the infrastructure's failures may be tried again without anybody's doing. */
function familyOf(outcome: Outcome, never: boolean): ErrorFamily | null {
  if (!never) return outcome.errorFamily ?? null;
  return outcome.failure?.budget === "infrastructure" ? "transient_upstream" : null;
}

function continuing(family: ErrorFamily | null): boolean {
  return family === "transient_upstream" || family === "provider_quota";
}

/** Never empty for a failure: Paperclip takes a missing message for success. */
function messageOf(outcome: Outcome): string {
  const said = outcome.errorMessage?.trim() || outcome.failure?.message.trim();
  return cut(said || "the run failed and said nothing", MESSAGE_LIMIT);
}

function facts(outcome: Outcome, { page, joinedRunId, workflow }: Circumstances): JsonObject {
  const own = Object.entries(outcome.resultJson ?? {}).filter(([name]) => !OBEYED.includes(name));
  const { failure, receipt } = outcome;
  return {
    ...Object.fromEntries(own),
    stopReason: failure?.code ?? outcome.errorCode ?? "completed",
    ...(failure ? { nextStep: failure.nextStep, budget: failure.budget } : {}),
    ...(receipt?.state ? { receipt: receipt.state } : {}),
    ...(receipt?.sha256 ? { outputSha256: receipt.sha256 } : {}),
    ...(page ? { transcriptPage: page } : {}),
    ...(joinedRunId ? { joinedRunId } : {}),
    ...(workflow ? { workflowId: workflow.id, workflowRunId: workflow.runId } : {}),
  };
}

/** Python writes exact decimals as text. */
function numberOf(cost: number | string | null | undefined): number | null {
  if (cost === null || cost === undefined || cost === "") return null;
  const value = Number(cost);
  return Number.isFinite(value) && value >= 0 ? value : null;
}

/** At most `limit` characters, none of them halved. */
function cut(text: string, limit: number): string {
  if (text.length <= limit) return text;
  const kept = text.slice(0, limit - 1);
  const last = kept.charCodeAt(kept.length - 1);
  return `${last >= 0xd800 && last <= 0xdbff ? kept.slice(0, -1) : kept}…`;
}
