/** What the agent asks is put on the task once, and what people answer there reaches the run, by stand-ins for both. */

import { afterEach, beforeEach, describe, expect, it } from "vitest";
import type { Question } from "../generated/contracts.ts";
import type { Ticket } from "../src/attach.ts";
import { RunLog } from "../src/log.ts";
import type { AdapterExecutionContext } from "../src/paperclip.ts";
import { answersOf, interactionOf, Questions } from "../src/questions.ts";
import type { Run } from "../src/temporal.ts";
import { type FakeApi, paperclipApi } from "./support/paperclip-api.ts";
import { until } from "./support/stack.ts";

const PERMISSION: Question = {
  id: "1-per_1",
  attempt: 1,
  kind: "permission",
  fields: [{ text: "bash: make deploy", options: [{ label: "Allow once" }, { label: "Always allow" }] }],
};
const QUESTION: Question = {
  id: "1-que_1",
  attempt: 1,
  kind: "question",
  fields: [
    { text: "Sizes?", options: [{ label: "S", description: "small" }, { label: "L" }], many: true },
    { text: "Why?", ownWords: true },
  ],
};
const TICKET = { runId: "run-1" } as Ticket;
const KEY = "agent-runs:run-1:1-per_1";

let api: FakeApi;
let asked: Question[] | Error;
let updates: unknown[][];
let lines: string[];

beforeEach(async () => {
  api = await paperclipApi();
  asked = [PERMISSION];
  updates = [];
  lines = [];
});
afterEach(async () => await api.stop());

/** The run's part of a plugin process; a further one is that of a Paperclip that has restarted. */
function questions(context: object = { issueId: "issue-1" }): Questions {
  const client = { callOnce: (call: () => unknown) => call() };
  const run = {
    client,
    async query() {
      if (asked instanceof Error) throw asked;
      return asked;
    },
    async executeUpdate(_name: string, options: { args: unknown[]; updateId: string }) {
      updates.push([options.updateId, ...options.args]);
      return {};
    },
  };
  const seal = async (...values: unknown[]) => JSON.stringify(values);
  const log = new RunLog(async (_stream, text) => void lines.push(text));
  const ctx = { context, authToken: "token" } as unknown as AdapterExecutionContext;
  return new Questions(run as unknown as Run, TICKET, seal, ctx, log, {});
}

function resolve(status: string, result: object = {}, by: object = { resolvedByUserId: "ada" }) {
  const { payload } = interactionOf(PERMISSION, KEY);
  api.interactions.push({ id: "int-1", idempotencyKey: KEY, status, result, payload, ...by });
}

describe("what the agent asks", () => {
  it("is an interaction of the task that only people resolve and that wakes nobody", async () => {
    await questions().tend("asking");
    expect(api.posts).toEqual([{ path: "/issues/issue-1/interactions", body: interactionOf(PERMISSION, KEY) }]);
    expect(api.posts[0]?.body).toMatchObject({ continuationPolicy: "none", resolverPolicy: "human_only" });
    expect(api.tokens).toEqual(new Set(["Bearer token"]));
  });

  it("is asked for once by one process, and under the same key by the next one", async () => {
    const one = questions();
    await one.tend("asking");
    await one.tend("asking");
    await questions().tend("asking");
    expect(api.posts.map(({ body }) => body.idempotencyKey)).toEqual([KEY, KEY]);
  });

  it("is on the task alone until it is over: an interaction of the same agent would end it", async () => {
    asked = [PERMISSION, QUESTION];
    const one = questions();
    await one.tend("asking");
    await one.tend("asking");
    expect(api.posts.map(({ body }) => body.idempotencyKey)).toEqual([KEY]);
    api.answers = { status: 409, body: {} }; // as to a later run of the task
    resolve("pending");
    await questions().tend("asking");
    expect(api.posts.map(({ body }) => body.idempotencyKey)).toEqual([KEY, KEY]);
    asked = [QUESTION];
    await one.tend("asking");
    expect(api.posts[2]?.body.idempotencyKey).toBe("agent-runs:run-1:1-que_1");
  });

  it("is tried again after Paperclip or the workers were away, and named where the task refuses it", async () => {
    const one = questions();
    asked = new Error("no worker");
    await one.tend("asking");
    asked = [PERMISSION];
    api.answers = { status: 503, body: {} };
    await one.tend("asking");
    expect(lines).toEqual([]);
    api.answers = { status: 403, body: {} };
    await one.tend("asking");
    expect(lines.join("")).toMatch(/the agent asks: bash: make deploy; answer on the run's page: .*HTTP 403/);
  });

  it("leaves a run without a task, and one that asks nothing, alone", async () => {
    await questions({}).tend("asking");
    await questions().tend("running");
    expect(api.requests).toEqual([]);
  });
});

describe("an answer on the task", () => {
  const allowed = { answers: [{ questionId: "0", optionIds: ["1"] }] };

  it("reaches the run sealed, with who gave it, once for all processes", async () => {
    resolve("answered", allowed);
    const one = questions();
    await one.tend("asking");
    await one.tend("asking");
    await questions().tend("asking");
    await until(() => updates.length === 2);
    const sealed = JSON.stringify(["run-1", "int-1", "1-per_1", [["Always allow"]]]);
    const answer = { messageId: "int-1", runId: "run-1", questionId: "1-per_1", by: "ada in Paperclip", sealed };
    expect(updates).toEqual([
      ["answer:int-1", answer],
      ["answer:int-1", answer],
    ]);
  });

  it("rejects the question if it is a rejection, or if Paperclip has ended the interaction", async () => {
    resolve("cancelled");
    await questions().tend("asking");
    await until(() => updates.length === 1);
    expect(updates[0]?.[1]).toMatchObject({ sealed: null, questionId: "1-per_1" });
  });

  it("to an interaction that asks something else counts nothing: the agent can make one with the same key", async () => {
    const { payload } = interactionOf(QUESTION, KEY);
    api.interactions.push({ id: "int-1", idempotencyKey: KEY, status: "answered", result: allowed, payload });
    await questions().tend("asking");
    expect(updates).toEqual([]);
  });

  it("of an agent counts nothing", async () => {
    resolve("answered", allowed, { resolvedByAgentId: "agent-1" });
    await questions().tend("asking");
    expect(updates).toEqual([]);
  });

  it("that comes from elsewhere withdraws the interaction, and so does the end of the run", async () => {
    const one = questions();
    await one.tend("asking");
    resolve("pending");
    asked = [];
    await one.tend("running");
    await questions().close();
    const withdrawn = { path: "/issues/issue-1/interactions/int-1/withdraw", body: expect.anything() };
    expect(api.posts.slice(1)).toEqual([withdrawn, withdrawn]);
  });
});

describe("a question of several parts", () => {
  it("has a choice for each, and own words where they are taken", () => {
    expect(interactionOf(QUESTION, "key").payload.questions).toEqual([
      {
        ...{ id: "0", prompt: "Sizes?", selectionMode: "multi", required: true, allowOther: false },
        options: [
          { id: "0", label: "S", description: "small" },
          { id: "1", label: "L" },
        ],
      },
      {
        ...{ id: "1", prompt: "Why?", selectionMode: "single", required: true, allowOther: false },
        options: [{ id: "own-words", label: "In own words", freeText: true }],
      },
    ]);
  });

  it("is answered by the words of the question, or rejected as a whole", () => {
    const sizes = { questionId: "0", optionIds: ["0", "1"] };
    const why = { questionId: "1", optionIds: ["own-words"], otherText: " because " };
    expect(answersOf(QUESTION, { answers: [why, sizes] })).toEqual([["S", "L"], ["because"]]);
    expect(answersOf(QUESTION, { answers: [sizes] })).toEqual([]);
    expect(answersOf(PERMISSION, { answers: [{ questionId: "0", optionIds: ["reject"] }] })).toEqual([]);
    expect(answersOf(PERMISSION, { answers: [{ questionId: "0", optionIds: ["7"] }] })).toEqual([]);
    expect(answersOf(PERMISSION, {})).toEqual([]);
  });
});
