/** After a run: delivery of its outcome to Paperclip, the reconciler's evidence for a lost one, and its blocked task. */

import { randomUUID } from "node:crypto";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { LEASE_LOST } from "../src/abort.ts";
import { executeWith } from "../src/execute.ts";
import { fetchOutcome, signalCollected } from "../src/outcome.ts";
import { FIRST_REQUEST_MS } from "../src/outcome-delivery.ts";
import type { AdapterExecutionContext } from "../src/paperclip.ts";
import { PaperclipApi } from "../src/paperclip-api.ts";
import { Reconciler } from "../src/reconcile.ts";
import { type FakeApi, paperclipApi } from "./support/paperclip-api.ts";
import { describeRun, fakeHost, partsFor, sameAgent, wakeAgent } from "./support/paperclip-context.ts";
import { aRequest, type Request, services, temporalOf, until } from "./support/stack.ts";

const real = services();
let api: FakeApi;
beforeEach(async () => {
  api = await paperclipApi();
});
afterEach(async () => await api.stop());

const wake = (request: Request) => wakeAgent(request, real);
const describeAgentRun = (request: Request) => describeRun(request, real);

async function phase(request: Request): Promise<unknown> {
  return (await describeAgentRun(request)).searchAttributes.RunPhase?.[0];
}

/** A run that Paperclip has lost, and what it recorded of that. */
async function lost(behaviour: string, issue: { [name: string]: unknown } = {}) {
  const issueId = randomUUID();
  const request = aRequest({ behaviour, context: { taskId: issueId, issueId } });
  const host = fakeHost(request);
  const result = executeWith(host.context, partsFor(request, real));
  await until(() => host.agentLines().length > 0);
  host.abort(LEASE_LOST);
  await result;
  const { agent, runId } = request;
  const contextSnapshot = { issueId };
  const run = { id: runId, agentId: agent.id, companyId: "acme", status: "failed", errorCode: "process_lost" };
  api.runs.set(runId, { ...run, contextSnapshot });
  api.issues.set(issueId, { id: issueId, assigneeAgentId: agent.id, status: "blocked", ...issue });
  return { request, runId, issueId };
}

const hold = (runId: string) => ({ executionBlocker: { runId, recoveryActionId: "action-1" } });

describe("a run is released", () => {
  it("once Paperclip has stored the result, not earlier", async () => {
    const request = aRequest();
    api.runs.set(request.runId, { status: "running" });
    const { host, result } = wake(request);
    const { resultJson } = await result;
    expect(resultJson).toMatchObject({ workflowRunId: (await describeAgentRun(request)).runId });
    await until(() => api.requests.filter((path) => path.endsWith(request.runId)).length > 0);
    expect((await describeAgentRun(request)).status.name).toBe("RUNNING");
    api.runs.set(request.runId, { status: "succeeded", resultJson });
    await until(async () => (await describeAgentRun(request)).status.name === "COMPLETED");
    expect(api.tokens).toContain(`Bearer ${host.context.authToken}`);
  });

  it("without a request to Paperclip while it ends the run, and with few afterwards", async () => {
    const request = aRequest();
    api.runs.set(request.runId, { status: "running" });
    const began = performance.now();
    const { resultJson } = await wake(request).result;
    api.runs.set(request.runId, { status: "succeeded", resultJson });
    await until(() => api.requests.length > 0);
    expect(performance.now() - began).toBeGreaterThan(FIRST_REQUEST_MS);
    await until(async () => (await describeAgentRun(request)).status.name === "COMPLETED");
    expect(api.requests.length).toBe(1);
  });

  it("not when Paperclip ended the run otherwise: the next wake gets it", async () => {
    const request = aRequest();
    api.runs.set(request.runId, { status: "interrupted", errorCode: "server_shutdown_interrupted" });
    await wake(request).result;
    expect(await phase(request)).toBe("succeeded");
    const later = sameAgent(request);
    api.runs.set(later.runId, { status: "running" });
    const second = wake(later);
    expect(await second.result).toMatchObject({ exitCode: 0, resultJson: { joinedRunId: request.runId } });
    expect(second.host.agentLines().length).toBe(3);
  });

  it("when a later wake finds its outcome delivered; that wake gets a run of its own", async () => {
    const request = aRequest();
    api.runs.set(request.runId, { status: "running" });
    const { resultJson } = await wake(request).result;
    // stored, and Paperclip died before the run was signalled
    api.runs.set(request.runId, { status: "succeeded", resultJson });
    const later = sameAgent(request);
    const second = await wake(later).result;
    expect(second.exitCode).toBe(0);
    expect(second.resultJson).not.toHaveProperty("joinedRunId");
    expect(second.resultJson?.workflowRunId).not.toBe(resultJson?.workflowRunId);
  });

  it("when Paperclip does not know the run at all", async () => {
    const request = aRequest();
    await wake(request).result;
    await until(async () => (await describeAgentRun(request)).status.name === "COMPLETED");
  });
});

describe("the reconciler", () => {
  let reconciler: Reconciler;
  beforeEach(() => {
    reconciler = new Reconciler(temporalOf(real.server, real.worker.queue), new PaperclipApi("board-key"), 0);
  });

  const stepsOf = async (runId: string) => {
    const steps = await reconciler.round();
    return steps.filter((each) => each.runId === runId).map(({ step }) => step);
  };

  /** The list of runs lags behind the runs. */
  async function listed(runId: string, decided = false): Promise<void> {
    const client = temporalOf(real.server, real.worker.queue);
    const final = decided ? " AND RunPhase != 'queued' AND RunPhase != 'scheduling' AND RunPhase != 'running'" : "";
    await until(async () => (await client.count(`PaperclipRunId = '${runId}'${final}`)).count > 0);
  }

  async function end(request: Request): Promise<void> {
    const client = temporalOf(real.server, real.worker.queue);
    await client.getHandle(`agent-run:${request.agent.id}`).cancel();
    await until(async () => (await phase(request)) === "cancelled");
  }

  it("leaves the hold while the agent works, and releases it with evidence when the agent has ended", async () => {
    const { request, runId, issueId } = await lost("works");
    api.issues.set(issueId, { ...api.issues.get(issueId), ...hold(runId) });
    await listed(runId);
    expect(await stepsOf(runId)).toEqual(["still working"]);
    expect(api.posts).toEqual([]);
    await end(request);
    await listed(runId, true);
    expect(await stepsOf(runId)).toEqual(["released"]);
    expect(api.posts.slice(0, 1)).toMatchObject([
      {
        path: `/issues/${issueId}/recovery-actions/resolve`,
        body: {
          actionId: "action-1",
          outcome: "restored",
          sourceIssueStatus: "todo",
          executionReconciliation: { runId, providerStopped: true, actionOutcome: "mixed" },
        },
      },
    ]);
    expect(JSON.stringify(api.posts[0]?.body.executionReconciliation)).toContain("has ended: cancelled");
    expect(api.posts.slice(1)).toMatchObject([{ path: `/agents/${request.agent.id}/wakeup` }]);
    api.issues.set(issueId, { ...api.issues.get(issueId), executionBlocker: null });
    api.runs.set("next", { id: "next", status: "queued", contextSnapshot: { issueId } });
    expect(await stepsOf(runId)).toEqual(["nothing to do"]);
    expect(await stepsOf(runId)).toEqual([]);
    expect(api.posts.length).toBe(2);
    expect(api.tokens).toContain("Bearer board-key");
  });

  it("releases a hold that Paperclip's own recovery restores, at most five times", async () => {
    const { request, runId, issueId } = await lost("lines:3");
    api.issues.set(issueId, { ...api.issues.get(issueId), ...hold(runId) });
    await until(async () => (await phase(request)) === "succeeded");
    await listed(runId, true);
    const steps: string[] = [];
    for (let round = 0; round < 8; round++) steps.push(...(await stepsOf(runId)));
    expect(steps).toEqual(Array(5).fill("released"));
  });

  it("gives `completed` as evidence of a success, and leaves its outcome for the next run", async () => {
    const { request, runId, issueId } = await lost("lines:3");
    api.issues.set(issueId, { ...api.issues.get(issueId), ...hold(runId) });
    await until(async () => (await phase(request)) === "succeeded");
    await listed(runId, true);
    expect(await stepsOf(runId)).toEqual(["released"]);
    expect(api.posts[0]?.body).toMatchObject({ executionReconciliation: { actionOutcome: "completed" } });
    expect((await describeAgentRun(request)).status.name).toBe("RUNNING");
  });

  it("wakes the agent for a task that is not held, also while the run is open", async () => {
    const { request, runId, issueId } = await lost("works", { status: "in_progress", executionBlocker: null });
    await listed(runId);
    expect(await stepsOf(runId)).toEqual(["woken"]);
    expect(api.posts).toMatchObject([
      { path: `/agents/${request.agent.id}/wakeup`, body: { payload: { issueId }, source: "automation" } },
    ]);
    expect(await stepsOf(runId)).toEqual([]);
    await end(request);
  });

  it("retries when Paperclip's API fails for the evidence", async () => {
    const { request, runId, issueId } = await lost("lines:3");
    api.issues.set(issueId, { ...api.issues.get(issueId), ...hold(runId) });
    await until(async () => (await phase(request)) === "succeeded");
    await listed(runId, true);
    api.answers = { status: 500, body: {} };
    expect(await stepsOf(runId)).toEqual(["unknown"]);
    api.answers = { status: 200, body: {} };
    expect(await stepsOf(runId)).toEqual(["released"]);
    const { workflowId, runId: workflowRunId } = await describeAgentRun(request);
    const temporal = temporalOf(real.server, real.worker.queue);
    const run = temporal.runOf({ workflowId, workflowRunId });
    expect(await fetchOutcome(run)).toMatchObject({ exitCode: 0 });
    await signalCollected(run);
  });
});

const CONTINUES = { conversationContinuation: "continue_conversation_v1" };

/** Runs an agent for a task; its result, our status lines, and what became of the task. */
async function runOf(behaviour: string, host: Partial<AdapterExecutionContext> = {}) {
  const issueId = randomUUID();
  const request = aRequest({ behaviour });
  api.runs.set(request.runId, { status: "failed" });
  api.issues.set(issueId, { id: issueId, assigneeAgentId: request.agent.id, status: "in_progress" });
  const fake = fakeHost(request, { context: { issueId }, ...host });
  const result = await wakeAgent(request, real, {}, fake).result;
  return { result, notes: fake.statuses(), issue: api.issues.get(issueId) };
}

describe("the task of a run that only a person can help", () => {
  it("is blocked, with the next step for the board, and Paperclip neither holds nor repeats it", async () => {
    const { result, issue, notes } = await runOf("provider-rejects");
    expect(result).toMatchObject({ errorCode: "provider_rejected", resultJson: CONTINUES });
    expect(issue).toMatchObject({ status: "blocked", unblockDescriptor: { owner: "board" } });
    const { action } = (issue?.unblockDescriptor ?? {}) as { action?: string };
    expect(action).toContain("provider_rejected: the provider answers 404");
    expect(action).toContain("check the model's name");
    expect(notes.join("\n")).toContain("the task is blocked until");
  });

  it("is not repeated by Paperclip when it could not be blocked", async () => {
    api.answers = { status: 403, body: {} };
    const { result, notes } = await runOf("provider-rejects");
    expect(result.resultJson).not.toHaveProperty("conversationContinuation");
    expect(notes.join("\n")).toContain("AGENT_RUNS_BOARD_API_KEY");
  });

  it("is left alone by a Paperclip that holds no tasks, and after a success", async () => {
    const old = await runOf("provider-rejects", { onCancellationReady: undefined });
    expect(old.issue?.status).toBe("in_progress");
    const good = await runOf("lines:3");
    expect(good.issue?.status).toBe("in_progress");
  });
});
