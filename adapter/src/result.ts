/**
 * Adds to a run's outcome what depends on this Paperclip: the acknowledgement of a cancel, links, whether it knows recovery.
 * Pure. The outcome itself is complete, and so is its evidence: `agent_runs/paperclip/result.py` decides both.
 *
 * Source: Paperclip 2026.916.1, its outcome rules and recovery matrix, read and observed live.
 */

import type { Outcome } from "../generated/contracts.ts";
import type { AdapterExecutionResult, JsonObject } from "./paperclip.ts";

const MESSAGE_LIMIT = 4000;
/** Paperclip holds no task, and repeats the run by itself unless the task is blocked. Internal to 2026.916. */
const CONTINUATION = "continue_conversation_v1";
const EVIDENCE = {
  bootstrap: { kind: "bootstrap", providerWorkStarted: false },
  interrupted: { kind: "interrupted", providerStopped: true, sessionPreserved: true, actionOutcomes: "settled" },
} as const;

export interface ResultContext {
  /** The host knows recovery evidence and continuation (2026.916 and later). */
  recovery: boolean;
  /** Link to the run's page. */
  page?: string;
  /** Paperclip's id of the wake that started the run, when this wake joined it. */
  joinedRunId?: string;
  /** The summary of a failed run: what happened and what to do. */
  comment?: string;
  /** When an operator's cancel was answered with this outcome. */
  cancelledAt?: Date;
  /** The task is blocked until a person has done the next step. */
  taskBlocked?: boolean;
  workflow?: { id: string; runId: string };
  /** What the agent has done is not in the local folder, or not all of it. */
  unreturned?: PluginFailure;
}

/** A failure of the plugin's own: there is no outcome. */
export interface PluginFailure {
  code: string;
  message: string;
  nextStep?: string;
  /** Nothing of this run was ever started: Paperclip may retry it. */
  neverStarted?: boolean;
  family?: Outcome["errorFamily"];
}

export function resultOf(outcome: Outcome, context: ResultContext): AdapterExecutionResult {
  const { recovery, cancelledAt, taskBlocked, page, joinedRunId, workflow, comment, unreturned } = context;
  const { exitCode = null, signal = null, timedOut = false, clearSession = false, retryNotBefore } = outcome;
  const { errorMessage, errorCode, provider, biller, model, billingType, summary } = outcome;
  const evidence = recovery && (cancelledAt || outcome.neverStarted) && outcome.recovery;
  const continued = taskBlocked || (outcome.mayRepeat && !outcome.neverStarted && cancelledAt === undefined);
  const result: AdapterExecutionResult = {
    ...{ exitCode, signal, timedOut, errorMessage, errorCode, summary: comment ?? summary, clearSession },
    ...(unreturned && failing(outcome, unreturned)),
    errorFamily: cancelledAt === undefined ? outcome.errorFamily : null,
    ...{ provider, biller, model, billingType, usageBasis: "per_run" },
    ...(evidence && { executionRecovery: EVIDENCE[evidence] }),
    costUsd: outcome.costUsd == null ? null : Number(outcome.costUsd), // Python writes exact decimals as text
    resultJson: {
      ...outcome.resultJson,
      ...(unreturned && { nextStep: outcome.failure?.nextStep ?? unreturned.nextStep }),
      ...(page && { transcriptPage: page }),
      ...(joinedRunId && { joinedRunId }),
      ...(workflow && { workflowId: workflow.id, workflowRunId: workflow.runId }),
      ...(recovery && continued && { conversationContinuation: CONTINUATION }),
      ...(cancelledAt && outcome.agentStopped && acknowledgement(cancelledAt, outcome.stop?.killed)),
    },
  };
  if (outcome.usage) {
    const { inputTokens = 0, cacheWriteTokens = 0, outputTokens = 0, cachedInputTokens = 0 } = outcome.usage;
    result.usage = { inputTokens: inputTokens + cacheWriteTokens, outputTokens, cachedInputTokens };
  }
  if (outcome.sessionParams || clearSession) {
    result.sessionParams = (outcome.sessionParams ?? null) as JsonObject | null;
    result.sessionId = result.sessionDisplayId = outcome.sessionParams?.sessionId ?? null;
  }
  if (retryNotBefore && cancelledAt === undefined) result.retryNotBefore = retryNotBefore;
  return result;
}

function failing({ exitCode, errorMessage, errorCode }: Outcome, { code, message }: PluginFailure) {
  const said = [errorMessage, message].filter(Boolean).join("; ").slice(0, MESSAGE_LIMIT);
  return { exitCode: exitCode || 1, errorCode: errorCode ?? code, errorMessage: said };
}

export function failedResult(failure: PluginFailure, recovery: boolean, comment?: string): AdapterExecutionResult {
  const { code, message, nextStep, neverStarted, family = null } = failure;
  return {
    ...{ exitCode: 1, signal: null, timedOut: false, usageBasis: "per_run" },
    errorMessage: message.slice(0, MESSAGE_LIMIT).replace(/\p{Cs}/gu, "\ufffd"), // a half character is no UTF-8
    ...{ errorCode: code, errorFamily: family, summary: comment },
    resultJson: { stopReason: code, ...(nextStep && { nextStep }) },
    ...(neverStarted && recovery && { executionRecovery: EVIDENCE.bootstrap }),
  };
}

/** The result of a wake that was cancelled before anything of it existed. */
export function cancelledBeforeStart(reason: string, at: Date, recovery: boolean): AdapterExecutionResult {
  const result = failedResult({ code: "cancelled", message: reason, neverStarted: true }, recovery);
  return { ...result, exitCode: null, resultJson: { ...result.resultJson, ...acknowledgement(at) } };
}

function acknowledgement(at: Date, forced = false): JsonObject {
  return { executionCancellation: { state: "acknowledged", acknowledgedAt: at.toISOString(), forced } };
}
