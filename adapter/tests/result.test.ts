/** The result that Paperclip gets for each way a run can end. */

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import type { Outcome, Stop } from "../src/contracts.ts";
import { cancelledBeforeStart, failedResult, neverStarted, resultOf } from "../src/result.ts";

const NOW = new Date("2026-01-02T12:00:00Z");
const HERE = { recovery: true, now: NOW };
const STOPPED: Stop = { agentStarted: true, agentStopped: true, killed: false, sessionPreserved: true };
const UNSTARTED: Stop = { agentStarted: false, agentStopped: true, killed: false, sessionPreserved: false };
const SETTLED = { kind: "interrupted", providerStopped: true, sessionPreserved: true, actionOutcomes: "settled" };
const BOOTSTRAP = { kind: "bootstrap", providerWorkStarted: false };

type Budget = "infrastructure" | "agent" | "none";

/** Every failure of `agent_runs/contracts/errors.py`: its code and budget, the latter inherited as in Python. */
function failures(): { code: string; budget: Budget }[] {
  const text = readFileSync(join(import.meta.dirname, "..", "..", "agent_runs", "contracts", "errors.py"), "utf8");
  const known = new Map<string, { code: string; budget: Budget }>();
  for (const [, name = "", base = "", body = ""] of text.matchAll(/^class (\w+)\((\w+)\):\n((?:(?: {4}.*)?\n)+)/gm)) {
    const parent = known.get(base) ?? { code: "agent_run_failed", budget: "agent" as Budget };
    const code = /^ {4}code(?:: ClassVar\[str\])? = "(\w+)"/m.exec(body)?.[1];
    const budget = /^ {4}budget(?:: ClassVar\[Budget\])? = "(\w+)"/m.exec(body)?.[1] as Budget | undefined;
    if (code) known.set(name, { code, budget: budget ?? parent.budget });
  }
  return [...known.values()];
}

function outcome(changes: Partial<Outcome> = {}): Outcome {
  return {
    exitCode: 0,
    timedOut: false,
    sessionId: "ses_1",
    sessionParams: { sessionId: "ses_1", cwd: "/work" },
    usage: { inputTokens: 10, outputTokens: 2, cachedInputTokens: 3, cacheWriteTokens: 4, reasoningTokens: 1 },
    costUsd: "0.012500",
    model: "fake/model",
    provider: "fake",
    summary: "done",
    resultJson: { stopReason: "completed", agentStarted: true },
    attempts: [{ attempt: 1, jobName: "job" }],
    receipt: { state: "verified", lines: 3, sha256: "abc" },
    ...changes,
  };
}

function failed(code: string, budget: Budget, changes: Partial<Outcome> = {}): Outcome {
  const failure = { code, budget, message: `it was ${code}`, nextStep: "Do this." };
  return outcome({ exitCode: 1, errorCode: code, errorMessage: `it was ${code}`, failure, ...changes });
}

describe("every failure code", () => {
  it("is found in the Python tree", () => {
    const codes = failures().map(({ code }) => code);
    expect(codes.length).toBeGreaterThan(35);
    expect(codes).toContain("stream_eof_transient");
  });

  it.each(failures())(
    "$code is a failure with its code, message and next step, and no evidence once it has started",
    ({ code, budget }) => {
      const result = resultOf(failed(code, budget), HERE);
      expect(result).toMatchObject({ exitCode: 1, errorCode: code, errorMessage: `it was ${code}` });
      expect(result.resultJson).toMatchObject({ stopReason: code, nextStep: "Do this.", budget });
      expect(result).toMatchObject({ sessionId: "ses_1", costUsd: 0.0125, usageBasis: "per_run" });
      expect(result.executionRecovery).toBeUndefined();
      expect(result.retryNotBefore).toBeUndefined();
    },
  );

  it.each(failures())(
    "$code before any agent ran has that evidence; only infrastructure failures may be retried",
    ({ code, budget }) => {
      const nothing = { sessionId: null, sessionParams: null, usage: null, costUsd: null, resultJson: {} };
      const result = resultOf(failed(code, budget, { stop: UNSTARTED, ...nothing }), HERE);
      expect(result.executionRecovery).toEqual(BOOTSTRAP);
      expect(result.errorFamily).toBe(budget === "infrastructure" ? "transient_upstream" : null);
      expect(Boolean(result.retryNotBefore)).toBe(budget === "infrastructure");
      expect(result).not.toHaveProperty("sessionParams"); // the stored one stays
      expect(result.resultJson).not.toHaveProperty("conversationContinuation");
    },
  );
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
      usage: { inputTokens: 10, outputTokens: 2, cachedInputTokens: 3 },
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
      resultJson: { stopReason: "completed", agentStarted: true, receipt: "verified", outputSha256: "abc" },
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
    ["NaN", null],
    ["-1", null],
    ["", null],
  ])("has the cost %j as the number %j", (costUsd, expected) => {
    expect(resultOf(outcome({ costUsd }), HERE).costUsd).toBe(expected);
  });
});

describe("a session", () => {
  it("that must not be used again is cleared, even with session parameters", () => {
    const result = resultOf(outcome({ clearSession: true }), HERE);
    expect(result).toMatchObject({ clearSession: true, sessionParams: null, sessionId: null, sessionDisplayId: null });
  });

  it("without a session id leaves the stored one", () => {
    const result = resultOf(outcome({ sessionId: null, sessionParams: null }), HERE);
    expect(result.clearSession).toBe(false);
    expect(result).not.toHaveProperty("sessionParams");
  });
});

describe("a started failure", () => {
  it.each(["transient_upstream", "provider_quota"] as const)(
    "of family %s continues the conversation",
    (errorFamily) => {
      const ended = failed("provider_unavailable", "agent", { errorFamily });
      const result = resultOf(ended, HERE);
      expect(result).toMatchObject({ errorFamily, sessionParams: { sessionId: "ses_1" } });
      expect(result.resultJson).toMatchObject({ conversationContinuation: "continue_conversation_v1" });
      expect(resultOf(ended, { ...HERE, recovery: false }).resultJson).not.toHaveProperty("conversationContinuation");
    },
  );

  it("of family model_refusal does not", () => {
    const { resultJson } = resultOf(failed("model_refused", "agent", { errorFamily: "model_refusal" }), HERE);
    expect(resultJson).not.toHaveProperty("conversationContinuation");
  });

  it("may name the earliest time of a retry", () => {
    const ended = failed("provider_quota", "agent", { retryNotBefore: "2026-01-02T13:00:00Z" });
    expect(resultOf(ended, HERE).retryNotBefore).toBe("2026-01-02T13:00:00Z");
  });

  it("that timed out is reported as timed out", () => {
    expect(resultOf(failed("timeout", "agent", { timedOut: true, exitCode: null }), HERE)).toMatchObject({
      timedOut: true,
      exitCode: null,
      errorCode: "timeout",
    });
  });
});

describe("that nothing was started", () => {
  const attempt = (failureCode: string) => ({ attempt: 1, jobName: "job", failureCode });
  it.each([
    ["when the one attempt had no agent", { stop: UNSTARTED }, true],
    [
      "when all attempts had none",
      { stop: UNSTARTED, attempts: [attempt("k8s_image_registry_throttled"), attempt("x")] },
      true,
    ],
    [
      "not when an earlier attempt had one",
      { stop: UNSTARTED, attempts: [attempt("k8s_pod_lost"), attempt("x")] },
      false,
    ],
    ["not when a pod may yet start", { stop: { ...UNSTARTED, agentStopped: false } }, false],
    ["not when it is unknown", { stop: null }, false],
    ["not when the agent had started", { stop: STOPPED }, false],
    ["not when there was output", { stop: UNSTARTED, resultJson: { agentStarted: true } }, false],
  ])("is claimed %s", (_, changes, expected) => {
    expect(neverStarted(outcome({ resultJson: {}, ...changes } as Partial<Outcome>))).toBe(expected);
  });
});

describe("a cancelled run", () => {
  const at = NOW;
  const by = (stop: Stop) => ({ by: { outcome: "cancelled" as const, stop }, at });
  const ended = failed("cancelled", "agent", { exitCode: null, stop: STOPPED });

  it("whose agent has stopped with its session has evidence", () => {
    const result = resultOf(ended, { ...HERE, cancelled: by(STOPPED) });
    expect(result.executionRecovery).toEqual(SETTLED);
    expect(result.resultJson).toMatchObject({
      executionCancellation: { state: "acknowledged", acknowledgedAt: NOW.toISOString(), forced: false },
    });
  });

  it.each([
    ["that was killed", { ...STOPPED, killed: true }, { forced: true }],
    ["whose session is lost", { ...STOPPED, sessionPreserved: false }, { forced: false }],
  ])("%s is acknowledged without evidence", (_, stop, expected) => {
    const result = resultOf(failed("cancelled", "agent", { stop }), { ...HERE, cancelled: by(stop) });
    expect(result.executionRecovery).toBeUndefined();
    expect(result.resultJson?.executionCancellation).toMatchObject({ state: "acknowledged", ...expected });
  });

  it("whose agent may still run is not acknowledged", () => {
    const stop = { ...STOPPED, agentStopped: false };
    const result = resultOf(failed("cancelled", "agent", { stop }), { ...HERE, cancelled: by(stop) });
    expect(result.executionRecovery).toBeUndefined();
    expect(result.resultJson).not.toHaveProperty("executionCancellation");
  });

  it("that was cancelled before its agent started gives evidence of that", () => {
    const unstarted = failed("cancelled", "agent", { stop: UNSTARTED, resultJson: {} });
    const result = resultOf(unstarted, { ...HERE, cancelled: by(UNSTARTED) });
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
});

describe("any outcome", () => {
  it("cannot set the keys that Paperclip acts on", () => {
    const resultJson = {
      executionRecovery: BOOTSTRAP,
      executionCancellation: { state: "acknowledged" },
      conversationContinuation: "continue_conversation_v1",
      lines: 3,
    };
    const result = resultOf(outcome({ resultJson }), HERE);
    expect(Object.keys(result.resultJson ?? {}).sort()).toEqual(["lines", "outputSha256", "receipt", "stopReason"]);
    expect(result.executionRecovery).toBeUndefined();
  });

  it("is bounded, with no character halved", () => {
    const long = "x".repeat(3998) + "🦀".repeat(40_000);
    const result = resultOf(failed("opencode_error", "agent", { errorMessage: long, summary: long }), HERE);
    expect(result.errorMessage?.length).toBeLessThanOrEqual(4000);
    expect(result.summary?.length).toBeLessThanOrEqual(16_000);
    expect(Buffer.from(result.errorMessage ?? "").toString()).toBe(result.errorMessage);
    expect(Buffer.from(result.summary ?? "").toString()).toBe(result.summary);
  });

  it("of a failure has a message: without one Paperclip takes it for a success", () => {
    const failure = { code: "x", budget: "agent" as const, message: " ", nextStep: "" };
    expect(resultOf(outcome({ failure, errorMessage: "" }), HERE).errorMessage).toMatch(/\S/);
    expect(failedResult({ code: "x", message: "why" }, true)).toMatchObject({ exitCode: 1, errorMessage: "why" });
  });
});
