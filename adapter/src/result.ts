/**
 * Turns a run's outcome into Paperclip's AdapterExecutionResult. Pure.
 *
 * What Paperclip does with a failure depends on its evidence: without any it holds the task until an operator resolves
 * it. So evidence is given whenever it is true, and never otherwise. Source: Paperclip 2026.916.1, its outcome rules and
 * recovery matrix, read and observed live.
 */

import type { Outcome, Stop } from "./contracts.ts";
import type { Cancelled } from "./outcome.ts";
import type { AdapterExecutionResult, ErrorFamily, ExecutionRecovery, JsonObject } from "./paperclip.ts";
import { decodeSession } from "./session.ts";

const RESULT_MESSAGE_LIMIT = 4000;
const SUMMARY_LIMIT = 16_000;
const RETRY_DELAY_MS = 60_000;
/** How often Paperclip repeats a run by itself. */
const REPEATS = 2;
/** Paperclip holds no task, and repeats the run by itself unless the task is blocked. Internal to 2026.916. */
const CONTINUATION = "continue_conversation_v1";
/** Keys of `resultJson` that Paperclip acts on. A run must not set them. */
const RESERVED_KEYS = ["executionCancellation", "executionRecovery", "conversationContinuation", "nativeCancellation"];
/** Failure codes of a run attempt whose agent never ran. */
const UNSTARTED_CODES: ReadonlySet<string> = new Set([
  ...["k8s_image_registry_throttled", "k8s_image_pull_failed", "k8s_pod_schedule_failed", "k8s_pod_start_failed"],
  ...["k8s_job_create_failed", "prompt_too_large", "k8s_job_state_mismatch", "sealed_field_unreadable"],
  ...["k8s_introspection_failed", "invalid_request"],
]);

/** What the result depends on besides the outcome. */
export interface ResultContext {
  /** The host knows recovery evidence and continuation (2026.916 and later). */
  recovery: boolean;
  now: Date;
  /** Link to the run's page. */
  page?: string;
  /** Paperclip's id of the wake that started the run, when this wake joined it. */
  joinedRunId?: string;
  /** An operator's cancel and its answer. */
  cancelled?: { by: Pick<Cancelled, "outcome" | "stop">; at: Date };
  /** The task is blocked until a person has done the next step. */
  taskBlocked?: boolean;
  workflow?: { id: string; runId: string };
}

/** A failure of the plugin's own: there is no outcome. */
export interface PluginFailure {
  code: string;
  message: string;
  nextStep?: string;
  /** Nothing of this run was ever started: Paperclip may retry it. */
  neverStarted?: boolean;
  family?: ErrorFamily;
}

/** The result of a run that has an outcome. */
export function resultOf(outcome: Outcome, context: ResultContext): AdapterExecutionResult {
  const { cancelled, recovery } = context;
  const failed = hasFailed(outcome);
  const unstarted = neverStarted(outcome);
  const session = outcome.clearSession
    ? null
    : decodeSession(outcome.sessionParams ?? { sessionId: outcome.sessionId });
  const family = failed && cancelled === undefined ? familyOf(outcome, unstarted) : null;
  const repeated = failed && !unstarted && cancelled === undefined && mayContinue(family);
  const continues = recovery && (repeated || context.taskBlocked === true);
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
    model: modelWithin(outcome),
    billingType: outcome.billingType ?? "unknown",
    costUsd: numberOf(outcome.costUsd),
    summary: outcome.summary ? shorten(outcome.summary, SUMMARY_LIMIT) : null,
    clearSession: outcome.clearSession ?? false,
    resultJson: {
      ...facts(outcome, context),
      ...(continues ? { conversationContinuation: CONTINUATION } : {}),
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
  const evidence = evidenceOf(cancelled?.by.stop ?? null, unstarted, failed);
  if (evidence && recovery) result.executionRecovery = evidence;
  if (failed && unstarted && family !== null) {
    const soon = new Date(context.now.getTime() + RETRY_DELAY_MS).toISOString();
    result.retryNotBefore = outcome.retryNotBefore ?? soon;
  } else if (failed && outcome.retryNotBefore) {
    result.retryNotBefore = outcome.retryNotBefore;
  }
  return result;
}

/** The result of a wake that has no outcome. */
export function failedResult(failure: PluginFailure, recovery: boolean): AdapterExecutionResult {
  const result: AdapterExecutionResult = {
    exitCode: 1,
    signal: null,
    timedOut: false,
    errorMessage: shorten(failure.message, RESULT_MESSAGE_LIMIT),
    errorCode: failure.code,
    errorFamily: failure.family ?? null,
    usageBasis: "per_run",
    resultJson: { stopReason: failure.code, ...(failure.nextStep ? { nextStep: failure.nextStep } : {}) },
  };
  if (failure.neverStarted && recovery) result.executionRecovery = neverStartedEvidence();
  return result;
}

/** The result of a wake that was cancelled before anything of it existed. */
export function cancelledBeforeStart(reason: string, at: Date, recovery: boolean): AdapterExecutionResult {
  const result: AdapterExecutionResult = {
    exitCode: null,
    signal: null,
    timedOut: false,
    errorMessage: shorten(reason, RESULT_MESSAGE_LIMIT),
    errorCode: "cancelled",
    usageBasis: "per_run",
    resultJson: {
      stopReason: "cancelled",
      executionCancellation: { state: "acknowledged", acknowledgedAt: at.toISOString(), forced: false },
    },
  };
  if (recovery) result.executionRecovery = neverStartedEvidence();
  return result;
}

/** Whether no attempt ever had a running agent, and none can start any more. */
export function neverStarted(outcome: Outcome): boolean {
  const { stop, attempts = [] } = outcome;
  if (stop?.agentStarted !== false || stop.agentStopped !== true) return false;
  if (outcome.resultJson?.agentStarted === true) return false;
  return attempts.slice(0, -1).every((attempt) => UNSTARTED_CODES.has(attempt.failureCode ?? ""));
}

/** Whether no container of the run is left: it ended by itself, or Kubernetes reports that the stopped one is deleted. */
export function agentStopped(outcome: Outcome): boolean {
  if (outcome.stop != null) return outcome.stop.agentStopped === true;
  return outcome.failure == null || typeof outcome.resultJson?.podExitCode === "number";
}

/**
 * Whether a failed run's task should wait for a person: the agent has stopped, and Paperclip repeats the run no more.
 *
 * @param repeats how often Paperclip has repeated this run by itself.
 */
export function waitsForPerson(outcome: Outcome, repeats: number): boolean {
  if (!hasFailed(outcome) || !agentStopped(outcome)) return false;
  return repeats >= REPEATS || !mayContinue(familyOf(outcome, neverStarted(outcome)));
}

function hasFailed(outcome: Outcome): boolean {
  return outcome.failure != null || Boolean(outcome.errorMessage) || outcome.timedOut === true;
}

function evidenceOf(stopped: Stop | null, unstarted: boolean, failed: boolean): ExecutionRecovery | undefined {
  if (unstarted && (failed || stopped !== null)) return neverStartedEvidence();
  if (stopped?.agentStopped && stopped.sessionPreserved && !stopped.killed) {
    return { kind: "interrupted", providerStopped: true, sessionPreserved: true, actionOutcomes: "settled" };
  }
  return undefined;
}

function neverStartedEvidence(): ExecutionRecovery {
  return { kind: "bootstrap", providerWorkStarted: false };
}

function acknowledgement({ by, at }: NonNullable<ResultContext["cancelled"]>): JsonObject {
  const forced = by.stop.killed ?? false;
  // an acknowledgement states that the agent has stopped
  if (!by.stop.agentStopped) return {};
  return { executionCancellation: { state: "acknowledged", acknowledgedAt: at.toISOString(), forced } };
}

/** The error family; for a run that never started, only failures of the infrastructure may be retried automatically. */
function familyOf(outcome: Outcome, unstarted: boolean): ErrorFamily | null {
  if (!unstarted) return outcome.errorFamily ?? null;
  return outcome.failure?.budget === "infrastructure" ? "transient_upstream" : null;
}

function mayContinue(family: ErrorFamily | null): boolean {
  return family === "transient_upstream" || family === "provider_quota";
}

/** The failure's message, never empty: Paperclip takes a missing message for success. */
function messageOf(outcome: Outcome): string {
  const message = outcome.errorMessage?.trim() || outcome.failure?.message.trim();
  return shorten(message || "the run failed without a message", RESULT_MESSAGE_LIMIT);
}

function facts(outcome: Outcome, { page, joinedRunId, workflow }: ResultContext): JsonObject {
  const runFacts = Object.entries(outcome.resultJson ?? {}).filter(([name]) => !RESERVED_KEYS.includes(name));
  const { failure, receipt } = outcome;
  return {
    ...Object.fromEntries(runFacts),
    stopReason: failure?.code ?? outcome.errorCode ?? "completed",
    ...(failure ? { nextStep: failure.nextStep, budget: failure.budget } : {}),
    ...(receipt?.state ? { receipt: receipt.state } : {}),
    ...(receipt?.sha256 ? { outputSha256: receipt.sha256 } : {}),
    ...(page ? { transcriptPage: page } : {}),
    ...(joinedRunId ? { joinedRunId } : {}),
    ...(workflow ? { workflowId: workflow.id, workflowRunId: workflow.runId } : {}),
  };
}

/** The model without the provider's name, which Paperclip shows before it. */
function modelWithin({ model, provider }: Outcome): string | null {
  if (!model || !provider || !model.startsWith(`${provider}/`)) return model ?? null;
  return model.slice(provider.length + 1);
}

/** The cost as a number; Python writes exact decimals as text. */
function numberOf(cost: number | string | null | undefined): number | null {
  if (cost === null || cost === undefined || cost === "") return null;
  const value = Number(cost);
  return Number.isFinite(value) && value >= 0 ? value : null;
}

/** At most `limit` UTF-16 code units, without half a surrogate pair. */
export function shorten(text: string, limit: number): string {
  if (text.length <= limit) return text;
  const start = text.slice(0, limit - 1);
  const last = start.charCodeAt(start.length - 1);
  return `${last >= 0xd800 && last <= 0xdbff ? start.slice(0, -1) : start}…`;
}
