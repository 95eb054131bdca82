/** Which tasks are blocked for a person, by a stand-in for Paperclip's API; `lost-runs.test.ts` has what a run makes of it. */

import { afterEach, beforeEach, describe, expect, it } from "vitest";
import type { Outcome } from "../generated/contracts.ts";
import type { AdapterExecutionContext } from "../src/paperclip.ts";
import { blockTask } from "../src/task.ts";
import { type FakeApi, paperclipApi } from "./support/paperclip-api.ts";

const UNBLOCK = { owner: "board", action: "Correct the model." };
const REFUSED: Outcome = { personAction: UNBLOCK.action };

let api: FakeApi;

beforeEach(async () => {
  api = await paperclipApi();
  api.issues.set("issue-1", { assigneeAgentId: "ada", status: "in_progress" });
});
afterEach(async () => await api.stop());

async function blocked(outcome: Outcome, context: object = {}): Promise<boolean | undefined> {
  const ctx = { agent: { id: "ada" }, context: { issueId: "issue-1", ...context } };
  return await blockTask(outcome, ctx as unknown as AdapterExecutionContext, "board-key");
}

describe("a task that only a person can help", () => {
  it("is blocked, with what that person has to do", async () => {
    expect(await blocked(REFUSED)).toBe(true);
    expect(api.issues.get("issue-1")).toMatchObject({ status: "blocked", unblockDescriptor: UNBLOCK });
    expect([...api.tokens]).toEqual(["Bearer board-key"]);
  });

  it("is blocked once Paperclip has repeated the run as often as it does", async () => {
    const failed: Outcome = { ...REFUSED, mayRepeat: true };
    expect(await blocked(failed, { scheduledRetryAttempt: 1 })).toBeUndefined();
    expect(await blocked(failed, { scheduledRetryAttempt: 2 })).toBe(true);
  });

  it("is blocked also when the answer to that is lost", async () => {
    api.lostAnswers = 1;
    expect(await blocked(REFUSED)).toBe(true);
    expect(api.issues.get("issue-1")).toMatchObject({ status: "blocked" });
  });

  it.each([403, 500])("is not when Paperclip answers %i", async (status) => {
    api.answers = { status, body: {} };
    expect(await blocked(REFUSED)).toBe(false);
    expect(api.issues.get("issue-1")).toMatchObject({ status: "in_progress" });
  });

  it.each([
    ["is another agent's", { assigneeAgentId: "another", status: "in_progress" }],
    ["is done", { assigneeAgentId: "ada", status: "done" }],
    ["is in review", { assigneeAgentId: "ada", status: "in_review" }],
  ])("is left alone when it %s", async (_, issue) => {
    api.issues.set("issue-1", issue);
    expect(await blocked(REFUSED)).toBe(false);
    expect(api.issues.get("issue-1")).toEqual(issue);
  });
});

it.each([
  ["without a task", REFUSED, { issueId: undefined }],
  ["that nobody can help", { personAction: null }, {}],
])("a run %s asks Paperclip for nothing", async (_, outcome, context) => {
  expect(await blocked(outcome, context)).toBeUndefined();
  expect(api.requests).toEqual([]);
});
