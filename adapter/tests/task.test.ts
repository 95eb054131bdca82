/** The task of a failed run: it waits for a person, is neither held nor repeated, and nobody else's task is touched. */

import { randomUUID } from "node:crypto";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { type FakeApi, paperclipApi } from "./support/paperclip-api.ts";
import { fakeHost, wakeAgent } from "./support/paperclip-context.ts";
import { aRequest, services } from "./support/stack.ts";

const CONTINUES = { conversationContinuation: "continue_conversation_v1" };

const real = services();
let api: FakeApi;
beforeEach(async () => {
  api = await paperclipApi();
});
afterEach(async () => await api.stop());

/** Runs an agent for a task in this state; its host, its result and what became of the task. */
async function run(behaviour: string, issue: { [name: string]: unknown } = {}, context = {}, host = {}) {
  const issueId = randomUUID();
  const request = aRequest({ behaviour });
  api.runs.set(request.runId, { status: "failed" });
  api.issues.set(issueId, { id: issueId, assigneeAgentId: request.agent.id, status: "in_progress", ...issue });
  const fake = fakeHost(request, { context: { issueId, ...context }, ...host });
  const result = await wakeAgent(request, real, {}, fake).result;
  return { result, notes: fake.statuses(), issue: api.issues.get(issueId) };
}

describe("the task of a run that only a person can help", () => {
  it("is blocked, with the next step for the board, and Paperclip neither holds nor repeats it", async () => {
    const { result, issue, notes } = await run("provider-rejects");
    expect(result).toMatchObject({ errorCode: "provider_rejected", resultJson: CONTINUES });
    expect(issue).toMatchObject({ status: "blocked", unblockDescriptor: { owner: "board" } });
    const { action } = (issue?.unblockDescriptor ?? {}) as { action?: string };
    expect(action).toContain("provider_rejected: the provider answers 404");
    expect(action).toContain("check the model's name");
    expect(notes.join("\n")).toContain("the task is blocked until");
  });

  it("is blocked when Paperclip has repeated the run as often as it does", async () => {
    const before = await run("provider-fails", {}, { scheduledRetryAttempt: 1 });
    expect(before.issue?.status).toBe("in_progress");
    const last = await run("provider-fails", {}, { scheduledRetryAttempt: 2 });
    expect(last.issue?.status).toBe("blocked");
    expect(last.result.resultJson).toMatchObject(CONTINUES);
  });

  it.each([
    ["is another agent's", { assigneeAgentId: "another" }],
    ["is done", { status: "done" }],
    ["is in review", { status: "in_review" }],
  ])("is left alone when it %s", async (_, state) => {
    const { result, issue } = await run("provider-rejects", state);
    expect(issue).toMatchObject(state);
    expect(result.resultJson).not.toHaveProperty("conversationContinuation");
  });

  it("is blocked also when the answer to that is lost", async () => {
    api.lostAnswers = 1;
    const { result, issue } = await run("provider-rejects");
    expect(issue?.status).toBe("blocked");
    expect(result.resultJson).toMatchObject(CONTINUES);
  });

  it("is not repeated by Paperclip when it could not be blocked", async () => {
    api.answers = { status: 403, body: {} };
    const { result, notes } = await run("provider-rejects");
    expect(result.resultJson).not.toHaveProperty("conversationContinuation");
    expect(notes.join("\n")).toContain("AGENT_RUNS_BOARD_API_KEY");
  });

  it("is left alone by a Paperclip that holds no tasks, and after a success", async () => {
    const old = await run("provider-rejects", {}, {}, { onCancellationReady: undefined });
    expect(old.issue?.status).toBe("in_progress");
    const good = await run("lines:3");
    expect(good.issue?.status).toBe("in_progress");
  });

  it("never has a wake without a task", async () => {
    const { result } = await run("provider-rejects", {}, { issueId: undefined });
    expect(result.resultJson).not.toHaveProperty("conversationContinuation");
    expect(api.requests.some((path) => path.startsWith("PATCH"))).toBe(false);
  });
});
