/** The result that Paperclip gets for each way a run can end. */

import { describe, expect, it } from "vitest";
import type { Outcome, Stop } from "../generated/contracts.ts";
import { cancelledBeforeStart, failedResult, resultOf } from "../src/result.ts";

const NOW = new Date("2026-01-02T12:00:00Z");
const HERE = { recovery: true };
const STOPPED: Stop = { agentStarted: true, agentStopped: true, killed: false, sessionPreserved: true };
const UNSTARTED: Stop = { agentStarted: false, agentStopped: true, killed: false, sessionPreserved: false };
const SETTLED = { kind: "interrupted", providerStopped: true, sessionPreserved: true, actionOutcomes: "settled" };
const BOOTSTRAP = { kind: "bootstrap", providerWorkStarted: false };

type Budget = "infrastructure" | "agent" | "none";

function outcome(changes: Partial<Outcome> = {}): Outcome {
  return {
    exitCode: 0,
    timedOut: false,
    ...{ errorMessage: null, errorCode: null, errorFamily: null, biller: null, billingType: "unknown" },
    sessionId: "ses_1",
    sessionParams: { sessionId: "ses_1", cwd: "/work" },
    usage: { inputTokens: 10, outputTokens: 2, cachedInputTokens: 3, cacheWriteTokens: 4, reasoningTokens: 1 },
    costUsd: "0.012500",
    model: "model",
    provider: "fake",
    summary: "done",
    resultJson: { stopReason: "completed", agentStarted: true },
    agentStopped: true,
    ...changes,
  };
}

function failed(code: string, budget: Budget, changes: Partial<Outcome> = {}): Outcome {
  const failure = { code, budget, message: `it was ${code}`, nextStep: "Do this." };
  return outcome({ exitCode: 1, errorCode: code, errorMessage: `it was ${code}`, failure, ...changes });
}

describe("a failure", () => {
  it("has its code and message, and no evidence once its agent has started", () => {
    const result = resultOf(failed("adapter_failed", "agent"), HERE);
    expect(result).toMatchObject({ exitCode: 1, errorCode: "adapter_failed", errorMessage: "it was adapter_failed" });
    expect(result).toMatchObject({ sessionId: "ses_1", costUsd: 0.0125, usageBasis: "per_run" });
    expect(result.executionRecovery).toBeUndefined();
    expect(result.retryNotBefore).toBeUndefined();
  });

  it("before any agent ran has that evidence, and its own family and time of a retry", () => {
    const nothing = { sessionId: null, sessionParams: null, usage: null, costUsd: null, resultJson: {} };
    const retry = { errorFamily: "transient_upstream" as const, retryNotBefore: "2026-01-02T12:01:00Z" };
    const ended = failed("k8s_api_unavailable", "infrastructure", {
      ...{ stop: UNSTARTED, neverStarted: true, recovery: "bootstrap", mayRepeat: true, ...nothing, ...retry },
    });
    const result = resultOf(ended, HERE);
    expect(result).toMatchObject({ executionRecovery: BOOTSTRAP, ...retry });
    expect(result).not.toHaveProperty("sessionParams"); // the stored one stays
    expect(result.resultJson).not.toHaveProperty("conversationContinuation");
    expect(resultOf(ended, { recovery: false }).executionRecovery).toBeUndefined();
  });
});

describe("success", () => {
  it("is exit 0 without a message or a signal", () => {
    expect(resultOf(outcome(), HERE)).toEqual({
      exitCode: 0,
      signal: null,
      timedOut: false,
      errorMessage: null,
      errorCode: null,
      errorFamily: null,
      usage: { inputTokens: 14, outputTokens: 2, cachedInputTokens: 3 },
      usageBasis: "per_run",
      sessionId: "ses_1",
      sessionParams: { sessionId: "ses_1", cwd: "/work" },
      sessionDisplayId: "ses_1",
      provider: "fake",
      biller: null,
      model: "model",
      billingType: "unknown",
      costUsd: 0.0125,
      summary: "done",
      clearSession: false,
      resultJson: { stopReason: "completed", agentStarted: true },
    });
  });

  it("names page, workflow and the run that another wake had started", () => {
    const { resultJson } = resultOf(outcome(), {
      ...HERE,
      page: "http://pages/runs/1",
      joinedRunId: "first",
      workflow: { id: "w", runId: "r" },
    });
    expect(resultJson).toMatchObject({
      transcriptPage: "http://pages/runs/1",
      joinedRunId: "first",
      workflowId: "w",
      workflowRunId: "r",
    });
  });

  it.each([
    ["0.1", 0.1],
    [0.25, 0.25],
    ["0", 0],
    [null, null],
  ])("has the cost %j as the number %j", (costUsd, expected) => {
    expect(resultOf(outcome({ costUsd }), HERE).costUsd).toBe(expected);
  });
});

describe("a session", () => {
  it("that must not be used again is cleared, though the outcome names it", () => {
    const result = resultOf(outcome({ clearSession: true, sessionParams: null }), HERE);
    expect(result).toMatchObject({ clearSession: true, sessionParams: null, sessionId: null, sessionDisplayId: null });
  });
});

describe("a started failure", () => {
  it("that Paperclip repeats continues the conversation", () => {
    const errorFamily = "provider_quota" as const;
    const ended = failed("provider_quota", "agent", { errorFamily, mayRepeat: true });
    const result = resultOf(ended, HERE);
    expect(result).toMatchObject({ errorFamily, sessionParams: { sessionId: "ses_1" } });
    expect(result.resultJson).toMatchObject({ conversationContinuation: "continue_conversation_v1" });
    expect(resultOf(ended, { ...HERE, recovery: false }).resultJson).not.toHaveProperty("conversationContinuation");
  });

  it("that Paperclip does not repeat continues it only if its task is blocked", () => {
    const ended = failed("model_refused", "agent", { errorFamily: "model_refusal" });
    expect(resultOf(ended, HERE).resultJson).not.toHaveProperty("conversationContinuation");
    const blocked = resultOf(ended, { ...HERE, taskBlocked: true });
    expect(blocked.resultJson).toMatchObject({ conversationContinuation: "continue_conversation_v1" });
  });

  it("that timed out is reported as timed out", () => {
    expect(resultOf(failed("timeout", "agent", { timedOut: true, exitCode: null }), HERE)).toMatchObject({
      timedOut: true,
      exitCode: null,
      errorCode: "timeout",
    });
  });
});

describe("a cancelled run", () => {
  const stopped = { recovery: true, cancelledAt: NOW };
  const ended = failed("cancelled", "agent", { exitCode: null, stop: STOPPED, recovery: "interrupted" });

  it("whose agent has stopped with its session has evidence", () => {
    const result = resultOf(ended, stopped);
    expect(result.executionRecovery).toEqual(SETTLED);
    expect(result.resultJson).toMatchObject({
      executionCancellation: { state: "acknowledged", acknowledgedAt: NOW.toISOString(), forced: false },
    });
  });

  it.each([true, false])("without proof of its session is acknowledged without evidence: killed %j", (killed) => {
    const result = resultOf(failed("cancelled", "agent", { stop: { ...STOPPED, killed } }), stopped);
    expect(result.executionRecovery).toBeUndefined();
    expect(result.resultJson?.executionCancellation).toMatchObject({ state: "acknowledged", forced: killed });
  });

  it("whose agent may still run is not acknowledged", () => {
    const stop = { ...STOPPED, agentStopped: false };
    const result = resultOf(failed("cancelled", "agent", { stop, agentStopped: false }), stopped);
    expect(result.executionRecovery).toBeUndefined();
    expect(result.resultJson).not.toHaveProperty("executionCancellation");
  });

  it("that was cancelled before its agent started gives evidence of that", () => {
    const unstarted = failed("cancelled", "agent", {
      ...{ stop: UNSTARTED, neverStarted: true, recovery: "bootstrap", resultJson: {} },
    });
    const result = resultOf(unstarted, stopped);
    expect(result.executionRecovery).toEqual(BOOTSTRAP);
    expect(result.resultJson).toMatchObject({ executionCancellation: { state: "acknowledged" } });
  });

  it("before the attach gives evidence that nothing was started", () => {
    expect(cancelledBeforeStart("why", NOW, true)).toMatchObject({
      errorCode: "cancelled",
      errorMessage: "why",
      executionRecovery: BOOTSTRAP,
      resultJson: {
        executionCancellation: { state: "acknowledged", acknowledgedAt: NOW.toISOString(), forced: false },
      },
    });
    expect(cancelledBeforeStart("why", NOW, false).executionRecovery).toBeUndefined();
  });

  it("from outside Paperclip has no evidence", () => {
    const result = resultOf(ended, HERE);
    expect(result).toMatchObject({ errorCode: "cancelled" });
    expect(result.executionRecovery).toBeUndefined();
    expect(result.resultJson).not.toHaveProperty("executionCancellation");
  });

  it("that failed by itself before the cancel is not repeated", () => {
    const retry = {
      mayRepeat: true,
      errorFamily: "transient_upstream" as const,
      retryNotBefore: "2026-01-02T13:00:00Z",
    };
    const result = resultOf(failed("provider_unavailable", "agent", { stop: STOPPED, ...retry }), stopped);
    expect(result.errorFamily).toBeNull();
    expect(result).not.toHaveProperty("retryNotBefore");
    expect(result.resultJson).not.toHaveProperty("conversationContinuation");
  });
});

describe("a failure of the plugin's own", () => {
  it("has a message that is bounded, with no character halved", () => {
    expect(failedResult({ code: "x", message: "why" }, true)).toMatchObject({ exitCode: 1, errorMessage: "why" });
    const long = "x".repeat(3998) + "🦀".repeat(40_000);
    const { errorMessage } = failedResult({ code: "x", message: long }, true);
    expect(errorMessage?.length).toBeLessThanOrEqual(4000);
    expect(Buffer.from(errorMessage ?? "").toString()).toBe(errorMessage);
  });
});
