/** What a failed run leaves on its task, by a stand-in for Paperclip's API. */

import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { failureComment } from "../src/failure-comment.ts";
import type { AdapterExecutionContext } from "../src/paperclip.ts";
import { isRepeated } from "../src/task.ts";
import { type FakeApi, paperclipApi } from "./support/paperclip-api.ts";

const FAILED = {
  runId: "run-1",
  code: "provider_auth",
  message: "The provider refuses the key",
  nextStep: "Correct the key.",
  page: "https://runs.example/runs/ada-run-1",
};
const TEXT = [
  "**The run failed: `provider_auth`.** The provider refuses the key",
  "**Next step:** Correct the key.",
  "[Run run-1](https://runs.example/runs/ada-run-1) has what the agent did.",
].join("\n\n");

let api: FakeApi;

beforeEach(async () => {
  api = await paperclipApi();
});
afterEach(async () => await api.stop());

function contextOf(context: object): AdapterExecutionContext {
  return { runId: "wake-1", authToken: "token", context } as unknown as AdapterExecutionContext;
}

async function comment(failed: object = {}, context: object = { issueId: "issue-1" }): Promise<string> {
  return await failureComment({ ...FAILED, ...failed }, contextOf(context));
}

describe("a failed run", () => {
  it("says on its task what happened, what to do and where to look", async () => {
    expect(await comment()).toBe(TEXT);
    expect(api.posts).toEqual([]); // Paperclip makes it of the summary
  });

  it("says so without a page and without a next step", async () => {
    const text = await comment({ page: undefined, nextStep: undefined });
    expect(text).toBe("**The run failed: `provider_auth`.** The provider refuses the key\n\nRun run-1");
  });

  it("comments itself where its agent has commented, because Paperclip would not", async () => {
    api.comments.push({ body: "I have begun.", createdByRunId: "wake-1" });
    expect(await comment()).toBe(TEXT);
    expect(api.posts).toEqual([{ path: "/issues/issue-1/comments", body: { body: TEXT } }]);
  });

  it("does not say it again when a later wake gets its outcome", async () => {
    api.comments.push({ body: TEXT, createdByRunId: "wake-0" });
    expect(await comment()).toBe("");
    expect(api.posts).toEqual([]);
  });

  it("says it although its agent has named the run in a comment", async () => {
    api.comments.push({ body: "Run run-1 is at work.", createdByRunId: "wake-0" });
    expect(await comment()).toBe(TEXT);
  });

  it("without a task has it as its summary, and asks nothing", async () => {
    expect(await comment({}, {})).toBe(TEXT);
    expect(api.requests).toEqual([]);
  });

  it("quotes nothing that Markdown or a mention would make of it", async () => {
    const hostile = "see [this](http://x) <img> @ada `code`\n\n# title";
    const text = await comment({ message: hostile, nextStep: undefined });
    expect(text).toContain("see \\[this\\](http://x) \\<img\\> @\u200bada \\`code\\` \\# title\n\n[Run run-1]");
  });
});

describe("a run that Paperclip repeats by itself", () => {
  it.each([
    [{ mayRepeat: true }, {}, true],
    [{ mayRepeat: true }, { scheduledRetryAttempt: 2 }, false],
    [{ neverStarted: true }, {}, true],
    [{ neverStarted: true }, { retryOfRunId: "wake-0" }, false],
    [{}, {}, false],
  ])("is known: %j woken with %j", (outcome, context, repeated) => {
    expect(isRepeated(outcome, contextOf(context))).toBe(repeated);
  });
});
