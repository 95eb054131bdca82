/** execute() against a real Temporal, the real workflow with stand-in steps, and a real transcript service. */

import { randomUUID } from "node:crypto";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { temporal } from "@temporalio/proto";
import { decodeJwt } from "jose";
import { describe, expect, it } from "vitest";
import { LEASE_LOST } from "../src/abort.ts";
import { InvalidRequest } from "../src/errors.ts";
import { executeWith } from "../src/execute.ts";
import { LINK_LIFETIME_SECONDS } from "../src/tokens.ts";
import { paperclipApi } from "./support/paperclip-api.ts";
import { describeRun, type FakeHost, fakeHost, partsFor, sameAgent, wakeAgent } from "./support/paperclip-context.ts";
import { aRequest, type Request, services, standin, temporalOf, until } from "./support/stack.ts";

const FIXTURES = join(import.meta.dirname, "..", "..", "tests", "fixtures", "paperclip");
const CAPTURED = [
  "ctx-1-first-wake-no-session.json",
  "ctx-2-comment-wake-with-session.json",
  "ctx-3-handoff-wake-session-id-only.json",
  "ctx-4-project-workspace-and-secret.json",
  "ctx-5-after-operator-reconcile.json",
  "ctx-6-resume-after-settled-cancel.json",
  "ctx-7-auto-retry-after-process-lost-override-type.json",
  "ctx-8-transient-retry-wake.json",
];

const real = services();

function wake(request: Request, changes: Parameters<typeof partsFor>[2] = {}, host = fakeHost(request)) {
  return wakeAgent(request, real, changes, host);
}

function describeAgentRun(request: Request) {
  return describeRun(request, real);
}

async function running(host: FakeHost, lines = 3): Promise<void> {
  await until(() => host.agentLines().length >= lines);
}

function numbered(from: number, to: number): string[] {
  return Array.from({ length: to - from + 1 }, (_, n) => `line ${from + n}`);
}

// Every test has an agent of its own, so the tests of one group run concurrently.
describe.concurrent("a run", () => {
  it("writes each line to the log once, in order, and returns the outcome", async () => {
    const request = aRequest({ behaviour: "lines:100" });
    const { host, result } = wake(request);
    expect(await result).toMatchObject({
      exitCode: 0,
      errorMessage: null,
      sessionId: "ses_fake",
      sessionDisplayId: "ses_fake",
      usage: { inputTokens: 10, outputTokens: 2, cachedInputTokens: 3 },
      usageBasis: "per_run",
      costUsd: 0.0125,
      summary: "done",
      resultJson: { stopReason: "completed", receipt: "verified" },
    });
    expect(host.agentLines()).toEqual(numbered(1, 100));
    expect(host.calls.slice(0, 4)).toEqual(["onCancellationReady", "onMeta", "adapter_startup", "onDispatch"]);
    expect(host.calls.at(-1)).toBe("finalize");
    const statuses = host.statuses().filter((status) => !status.startsWith("warning: "));
    expect(statuses[0]).toMatch(/^the run's page: http/);
    expect(host.metas[0]).toMatchObject({ adapterType: "opencode_local", command: "opencode", prompt: "fresh" });
    const started = `run ${request.runId} started`;
    expect(host.statuses()).toEqual(expect.arrayContaining(["warning: a note", started, "succeeded"]));
    expect(host.statuses("session ses_fake")).toHaveLength(1);
    expect(host.chunks.every(({ chunk }) => chunk.endsWith("\n") && Buffer.byteLength(chunk) < 8000)).toBe(true);
    await until(async () => (await describeAgentRun(request)).status.name === "COMPLETED");
  });

  it("gives a link that opens this run's transcript for a week, and that Temporal never sees", async () => {
    const request = aRequest();
    const { resultJson } = await wake(request).result;
    const link = new URL(String(resultJson?.transcriptPage));
    expect(`${link.origin}${link.pathname}`).toBe(
      `${real.worker.transcripts}/runs/${request.agent.id}~${request.runId}`,
    );
    const token = link.searchParams.get("open")?.replaceAll("~", ".") ?? "";
    const { sub, exp, iat } = decodeJwt(token);
    expect(sub).toBe(`${request.agent.id}~${request.runId}`);
    expect(Math.abs((exp ?? 0) - (iat ?? 0) - LINK_LIFETIME_SECONDS)).toBeLessThanOrEqual(1); // revoked by `iat`
    expect((exp ?? 0) - Date.now() / 1000).toBeLessThanOrEqual(LINK_LIFETIME_SECONDS);
    const headers = { authorization: `Bearer ${token}` };
    const read = (agentId: string, runId: string) =>
      fetch(`${real.worker.transcripts}/runs/${agentId}~${runId}/transcript?attempt=1`, { headers });
    expect((await read(request.agent.id, request.runId)).status).toBe(200);
    expect((await read(request.agent.id, randomUUID())).status).toBe(403);
    expect((await read(randomUUID(), request.runId)).status).toBe(403);
    const { workflowId, runId } = await describeAgentRun(request);
    const history = await temporalOf(real.server, real.worker.queue).getHandle(workflowId, runId).fetchHistory();
    expect(Buffer.from(temporal.api.history.v1.History.encode(history).finish()).includes(token)).toBe(false);
  });

  it("shows both attempts of a run whose pod was lost", async () => {
    const { host, result } = wake(aRequest({ behaviour: "pod-lost-once" }));
    expect(await result).toMatchObject({ exitCode: 0 });
    expect(host.agentLines()).toEqual([...numbered(1, 5), ...numbered(1, 5)]);
    expect(host.statuses()).toContain("attempt 2");
  });

  it("warns of what Paperclip's process could not do before the run, and of what the worker noted after it, once", async () => {
    const { host, result } = wake(aRequest({ behaviour: "pod-lost-once" }));
    const { resultJson } = await result;
    const worker = [resultJson?.notes ?? []].flat().map((note) => `warning: ${note}`);
    expect(worker.join()).toContain("k8s_pod_lost");
    expect(host.statuses("warning: ")).toEqual(["warning: a note", ...worker]);
    const all = host.statuses().map((status) => status.replace(/^(warning):.*|^run .* (started)$/, "$1$2"));
    expect(all.indexOf("warning")).toBeLessThan(all.indexOf("started"));
    expect(all.lastIndexOf("warning")).toBeLessThan(all.indexOf("succeeded"));
  });

  it("gives the evidence that no agent was started when no node took the pod", async () => {
    const { result } = wake(aRequest({ behaviour: "unschedulable" }));
    expect(await result).toMatchObject({
      errorCode: "k8s_pod_schedule_failed",
      errorFamily: null,
      executionRecovery: { kind: "bootstrap", providerWorkStarted: false },
    });
  });

  it("has its failure as its summary once Paperclip does not repeat it", async () => {
    const request = aRequest({ behaviour: "unschedulable" });
    const repeat = fakeHost(request, { context: { retryOfRunId: "the-first" } });
    expect((await wake(request, {}, repeat).result).summary).toMatch(
      /^\*\*The run failed: `k8s_pod_schedule_failed`\.\*\* .*\n\n\*\*Next step:\*\* .*\n\n\[Run /,
    );
    expect((await wake(aRequest({ behaviour: "unschedulable" })).result).summary ?? "").not.toContain("The run failed");
  });

  it("asks Paperclip to continue the conversation after an outage of the provider", async () => {
    const { result } = wake(aRequest({ behaviour: "provider-fails" }));
    const ended = await result;
    expect(ended).toMatchObject({ exitCode: 1, errorCode: "provider_unavailable", errorFamily: "transient_upstream" });
    expect(ended.resultJson).toMatchObject({ conversationContinuation: "continue_conversation_v1" });
    expect(ended.executionRecovery).toBeUndefined();
  });

  it("runs on a Paperclip without cancellation and dispatch, reported as its own type", async () => {
    const request = aRequest({ behaviour: "provider-fails" });
    const changes = { onCancellationReady: undefined, onDispatch: undefined, signal: undefined };
    const { host, result } = wake(request, {}, fakeHost(request, changes));
    const ended = await result;
    expect(ended.errorCode).toBe("provider_unavailable");
    expect(ended.resultJson).not.toHaveProperty("conversationContinuation");
    expect(host.metas[0]?.adapterType).toBe("opencode_k8s");
  });

  it.each(CAPTURED)("starts from the execution context that Paperclip passes: %s", async (file) => {
    const captured = await readFile(join(FIXTURES, file), "utf8");
    // of an agent of its own, also in the path of its workspace
    const data = JSON.parse(captured.replaceAll(JSON.parse(captured).agent.id, randomUUID()));
    const { agent, runtime, context } = data;
    // one of the captured workspaces is outside of the data volume
    const config = { ...data.config, model: "fake/lines:3", workspace: "ephemeral" };
    const request = aRequest({ agent, runtime, context, config });
    const { host, result } = wake(request);
    expect(await result).toMatchObject({ exitCode: 0, sessionId: "ses_fake" });
    expect(host.agentLines()).toEqual(numbered(1, 3));
  });

  it("reports a configuration that the worker refuses, with the evidence that nothing was started", async () => {
    const request = aRequest({ config: { model: "nameless", timeoutSec: -1 } });
    const ended = await wake(request).result;
    expect(ended).toMatchObject({
      ...{ errorCode: "invalid_request", errorFamily: null },
      executionRecovery: { kind: "bootstrap", providerWorkStarted: false },
      resultJson: { stopReason: "invalid_request" },
    });
    expect(ended.errorMessage).toMatch(/config\.model .*config\.timeoutSec /);
    expect(ended).not.toHaveProperty("retryNotBefore");
  });

  it("reports the invocation without the agent's variables", async () => {
    const context = { taskId: "task-1", paperclipWorkspace: { cwd: "/projects/repo" } };
    const { host, result } = wake(aRequest(), {}, fakeHost(aRequest(), { context }));
    await result;
    expect(host.metas[0]).toEqual({
      ...{ adapterType: "opencode_local", command: "opencode", cwd: "/projects/repo", prompt: "fresh" },
      commandNotes: ["runs in Kubernetes, as a Temporal workflow", "a note"],
      context: expect.objectContaining({ taskQueue: real.worker.queue }),
    });
  });

  it("reports the agent that its configuration names", async () => {
    const { host, result } = wake(aRequest(), {}, fakeHost(aRequest(), { config: { agent: " claude " } }));
    await result;
    expect(host.metas[0]).toMatchObject({ adapterType: "opencode_local", command: "claude" });
  });

  it("reports a wrong request before anything is created", async () => {
    const request = aRequest();
    const host = fakeHost(request);
    const result = await executeWith(host.context, async () => {
      throw new InvalidRequest("agent.id must be an id");
    });
    expect(result).toMatchObject({
      errorCode: "invalid_request",
      executionRecovery: { kind: "bootstrap", providerWorkStarted: false },
    });
    expect(result.errorMessage).toContain("agent.id");
    expect(host.calls).toEqual([]);
  });

  it("does not show the message of an unexpected error of the preparation", async () => {
    const host = fakeHost(aRequest());
    const result = await executeWith(host.context, async () => {
      throw new TypeError("canary-secret");
    });
    expect(result).toMatchObject({ exitCode: 1, errorCode: "invalid_request" });
    expect(JSON.stringify([result, host.chunks])).not.toContain("canary-secret");
  });

  it("continues when Paperclip's log refuses lines, and reports the gap", async () => {
    const request = aRequest({ behaviour: "lines:30" });
    const host = fakeHost(request);
    const { onLog } = host.context;
    let refusals = 0;
    host.context.onLog = async (stream, chunk) => {
      if (chunk.includes("line 7") && refusals++ === 0) throw new Error("disk full");
      await onLog(stream, chunk);
    };
    expect(await wake(request, {}, host).result).toMatchObject({ exitCode: 0 });
    expect(host.agentLines()).toEqual([...numbered(1, 6), ...numbered(8, 30)]);
    expect(host.statuses("1 lines are missing here")).toHaveLength(1);
  });

  it("reports a terminated workflow as a failure without evidence", async () => {
    const request = aRequest({ behaviour: "works" });
    const { host, result } = wake(request);
    await running(host);
    const found = await describeAgentRun(request);
    await temporalOf(real.server, real.worker.queue).getHandle(found.workflowId, found.runId).terminate("a test");
    const ended = await result;
    expect(ended).toMatchObject({ exitCode: 1, errorCode: "agent_run_failed" });
    expect(ended.errorMessage).toContain("TERMINATED");
    expect(ended.executionRecovery).toBeUndefined();
  });
});

describe.concurrent("a busy agent", () => {
  it("is waited for, and log and progress name the holder", async () => {
    const request = aRequest({ behaviour: "works" });
    const first = wake(request);
    await running(first.host);
    const other = sameAgent(request, { config: { model: "fake/lines:2" }, context: { taskId: "task-2" } });
    const second = wake(other);
    await until(() => second.host.statuses("the agent is held").length > 0);
    expect(second.host.statuses("the agent is held")[0]).toContain(`by run ${request.runId} on task task-1`);
    await until(() => second.host.progress.includes("Queued behind task task-1"));
    first.host.abort("Cancelled");
    expect((await first.result).errorCode).toBe("cancelled");
    expect(await second.result).toMatchObject({ exitCode: 0 });
    expect(second.host.agentLines()).toEqual(numbered(1, 2));
  });

  it("is refused with `onBusy: refuse`, with the evidence that nothing was started", async () => {
    const request = aRequest({ behaviour: "works" });
    const first = wake(request);
    await running(first.host);
    const other = sameAgent(request, { context: { taskId: "task-2" } });
    expect(await wake(other, { onBusy: "refuse" }).result).toMatchObject({
      errorCode: "k8s_concurrent_run_blocked",
      executionRecovery: { kind: "bootstrap" },
    });
    first.host.abort("Cancelled");
    await first.result;
  });
});

describe.concurrent("a cancel", () => {
  const acknowledged = { state: "acknowledged", forced: false };

  it("before the attach is acknowledged at once", async () => {
    const request = aRequest();
    const host = fakeHost(request, {
      async onCancellationReady() {
        host.abort("Run stopped before provider startup");
      },
    });
    expect(await wake(request, {}, host).result).toMatchObject({
      errorCode: "cancelled",
      executionRecovery: { kind: "bootstrap" },
      resultJson: { executionCancellation: acknowledged },
    });
    await expect(describeAgentRun(request)).rejects.toThrow();
  });

  it("while another task has the agent leaves that task's run alone", async () => {
    const request = aRequest({ behaviour: "works" });
    const first = wake(request);
    await running(first.host);
    const second = wake(sameAgent(request, { context: { taskId: "task-2" } }));
    await until(() => second.host.statuses("the agent is held").length > 0);
    second.host.abort("Cancelled by operator");
    expect(await second.result).toMatchObject({
      executionRecovery: { kind: "bootstrap" },
      resultJson: { executionCancellation: acknowledged },
    });
    expect((await describeAgentRun(request)).status.name).toBe("RUNNING");
    first.host.abort("Cancelled");
    await first.result;
  });

  it("of a working agent stops it, and the result has session, usage and the last lines", async () => {
    const request = aRequest({ behaviour: "works" });
    const { host, result } = wake(request);
    await running(host);
    host.abort("Cancelled by operator");
    const ended = await result;
    expect(ended).toMatchObject({
      errorCode: "cancelled",
      sessionId: "ses_fake",
      usage: { inputTokens: 10 },
      resultJson: { executionCancellation: acknowledged },
      executionRecovery: {
        kind: "interrupted",
        providerStopped: true,
        sessionPreserved: true,
        actionOutcomes: "settled",
      },
    });
    expect(ended.resultJson).not.toHaveProperty("conversationContinuation");
    expect(host.agentLines()).toEqual(numbered(1, host.agentLines().length));
    expect(host.statuses("Cancelled by operator: ")).toHaveLength(1);
    await until(async () => (await describeAgentRun(request)).status.name === "CANCELLED");
  });

  it("of an agent that has to be killed is acknowledged without evidence", async () => {
    const request = aRequest({ behaviour: "ignores-sigterm" });
    const { host, result } = wake(request);
    await running(host);
    host.abort("Cancelled by operator");
    const ended = await result;
    expect(ended.resultJson).toMatchObject({ executionCancellation: { state: "acknowledged", forced: true } });
    expect(ended.executionRecovery).toBeUndefined();
  });

  it.each(["finalize", "outcome"])("after the agent's end (%s) is acknowledged with the outcome", async (moment) => {
    const request = aRequest({ behaviour: "lines:5" });
    const host: FakeHost = fakeHost(request, {
      async onRuntimeProgress({ phase }) {
        if (phase === moment) host.abort("too late");
      },
      async onLog(_, text) {
        if (moment === "outcome" && text === "[agent-runs] succeeded\n") host.abort("too late");
      },
    });
    const ended = await wake(request, {}, host).result;
    expect(ended).toMatchObject({ exitCode: 0, sessionId: "ses_fake" });
    expect(ended.resultJson).toMatchObject({ executionCancellation: { state: "acknowledged" } });
  });
});

describe("a lost lease", () => {
  it("leaves the run open; the next wake joins it, from the first line, and gets its outcome", async () => {
    const request = aRequest({ behaviour: "works" });
    const first = wake(request);
    await running(first.host, 10);
    first.host.abort(LEASE_LOST);
    expect((await first.result).errorCode).toBe("controller_lease_lost");
    const quiet = first.host.chunks.length;
    expect((await describeAgentRun(request)).status.name).toBe("RUNNING");

    const later = sameAgent(request);
    const second = wake(later);
    await running(second.host, 10);
    expect(second.host.statuses(`joined run ${request.runId}`)).toHaveLength(1);
    expect(second.host.statuses(" started")).toEqual([]);
    second.host.abort("Cancelled by operator");
    const ended = await second.result;
    expect(ended.resultJson).toMatchObject({ joinedRunId: request.runId });
    expect(second.host.agentLines()).toEqual(numbered(1, second.host.agentLines().length));
    expect(first.host.chunks.length).toBe(quiet);
  });

  it("does not lose the outcome of a run that ends meanwhile: the next wake gets it", async () => {
    const request = aRequest({ behaviour: "lines:40:50" });
    const first = wake(request);
    await running(first.host);
    first.host.abort(LEASE_LOST);
    await first.result;
    await until(async () => (await describeAgentRun(request)).searchAttributes.RunPhase?.[0] === "succeeded");
    const second = wake(sameAgent(request));
    expect(await second.result).toMatchObject({ exitCode: 0, summary: "done" });
    expect(second.host.agentLines()).toEqual(numbered(1, 40));
    await until(async () => (await describeAgentRun(request)).status.name === "COMPLETED");
  });

  it("stops the agent when Paperclip reports that the run was cancelled", async () => {
    const request = aRequest({ behaviour: "works" });
    const api = await paperclipApi();
    api.runs.set(request.runId, { status: "cancelled" });
    try {
      const first = wake(request);
      await running(first.host);
      first.host.abort(LEASE_LOST);
      await first.result;
      await until(async () => (await describeAgentRun(request)).searchAttributes.RunPhase?.[0] === "cancelled");
    } finally {
      await api.stop();
    }
  });
});

describe("a stop of Paperclip's process", () => {
  it("leaves the run open, and returns only after Paperclip has released it", async () => {
    const request = aRequest({ behaviour: "works" });
    const processStop = new AbortController();
    const order: string[] = [];
    const host = fakeHost(request);
    const result = executeWith(host.context, partsFor(request, real), () => processStop.signal);
    void result.then(() => order.push("returned"));
    await running(host);
    processStop.abort(new Error(LEASE_LOST));
    const later = wake(sameAgent(request));
    await running(later.host, 10); // joined: that takes longer than a return would
    order.push("released");
    host.abort(LEASE_LOST);
    expect((await result).errorCode).toBe("controller_lease_lost");
    expect(order).toEqual(["released", "returned"]);
    later.host.abort("Cancelled");
    expect(await later.result).toMatchObject({ errorCode: "cancelled", resultJson: { joinedRunId: request.runId } });
  });
});

describe("without the transcript service", () => {
  it("the run has its outcome, and the log names the setting", async () => {
    const { host, result } = wake(aRequest(), { transcriptsUrl: undefined });
    expect(await result).toMatchObject({ exitCode: 0 });
    expect(host.statuses("AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL")).toHaveLength(1);
  });
});

describe("outages", () => {
  it("of Temporal during a run only delay it: no line is lost or repeated", async () => {
    const queue = `queue-${randomUUID()}`;
    const outageWorker = await standin(real.server.address, queue);
    const request = aRequest({ behaviour: "works" });
    const host = fakeHost(request);
    const result = executeWith(host.context, partsFor(request, { server: real.server, worker: outageWorker }));
    await running(host);
    await real.server.kill();
    await until(() => host.statuses("Temporal").length > 0);
    await real.server.start();
    await until(() => host.statuses("answers again").length > 0);
    const before = host.agentLines().length;
    await running(host, before + 5);
    host.abort("Cancelled");
    expect((await result).errorCode).toBe("cancelled");
    expect(host.agentLines()).toEqual(numbered(1, host.agentLines().length));
    await outageWorker.stop();
  });
});
