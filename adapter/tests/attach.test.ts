/** Attach: the guard, pinned against a real Temporal server. The raw request id is the SDK's private affair otherwise. */

import { randomUUID } from "node:crypto";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { attach, attachWhenFree, startedAfterAll, type Ticket, workflowIdOf } from "../src/attach.ts";
import { stopped } from "../src/cancel.ts";
import { cancel, collected, EndedWithoutOutcome, outcomeOf } from "../src/outcome.ts";
import { disconnect, runOf, type Temporal } from "../src/temporal.ts";
import { GivenUp } from "../src/waiting.ts";
import { aRequest, type DevServer, devServer, type Standin, standin, temporalOf, until } from "./help/stack.ts";

let server: DevServer;

beforeAll(async () => {
  server = await devServer();
});
afterAll(async () => {
  await disconnect();
  await server.stop();
});

describe("without a worker", () => {
  let temporal: Temporal;
  beforeAll(() => {
    temporal = temporalOf(server, `nobody-${randomUUID()}`);
  });

  it("makes one run of one id, whoever asks again", async () => {
    const arrival = { request: aRequest(), task: "task-1" };
    const first = await attach(temporal, arrival);
    const second = await attach(temporal, arrival);
    expect([first.kind, second.kind]).toEqual(["started", "joined"]);
    expect(second.workflowRunId).toBe(first.workflowRunId);
    expect(first.workflowId).toBe(workflowIdOf(arrival.request.agent.id));
  });

  it("makes one workflow of 25 ids and 50 callers, and tells each the truth", async () => {
    const agent = { id: randomUUID(), companyId: "acme" };
    const ids = Array.from({ length: 25 }, () => randomUUID());
    const asked = [...ids, ...ids].map((runId) => {
      const request = aRequest({ agent, runId });
      return attach(temporal, { request, task: runId });
    });
    const tickets = await Promise.all(asked);
    expect(new Set(tickets.map((ticket) => ticket.workflowRunId)).size).toBe(1);
    expect(new Set(tickets.map((ticket) => ticket.runId)).size).toBe(1);
    const winner = tickets[0]?.runId;
    const kinds = (own: boolean) =>
      tickets.filter((_, n) => (ids[n % 25] === winner) === own).map((ticket) => ticket.kind);
    expect(kinds(true).sort()).toEqual(["joined", "started"]);
    expect(new Set(kinds(false))).toEqual(new Set(["busy"]));
    expect(tickets.filter((ticket) => ticket.kind === "busy").every((t) => t.holder?.runId === winner)).toBe(true);
  });

  it("tells another task who holds the agent", async () => {
    const request = aRequest();
    const held = await attach(temporal, { request, task: "task-1" });
    const other = aRequest({ agent: request.agent, context: { taskId: "task-2" } });
    const refused = await attach(temporal, { request: other, task: "task-2" });
    expect(refused).toMatchObject({ kind: "busy", workflowRunId: held.workflowRunId, runId: request.runId });
    expect(refused.holder).toMatchObject({ runId: request.runId, task: "task-1", phase: "queued" });
  });

  it("joins a run that has ended as closed, and says that it has no outcome", async () => {
    const arrival = { request: aRequest(), task: "task-1" };
    const ticket = await attach(temporal, arrival);
    const run = runOf(temporal, ticket.workflowId, ticket.workflowRunId);
    await run.terminate("a test");
    const again = await attach(temporal, arrival);
    expect(again).toMatchObject({ kind: "joined", closed: true, workflowRunId: ticket.workflowRunId });
    const error = await outcomeOf(temporal, run).catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(EndedWithoutOutcome);
    expect(error).toMatchObject({ how: "TERMINATED", neverRan: false });
  });

  it("shows memo, search attributes and a summary of identifiers", async () => {
    const request = aRequest();
    const ticket = await attach(temporal, { request, task: "task-1" });
    const found = await runOf(temporal, ticket.workflowId, ticket.workflowRunId).describe();
    expect(found.memo?.task).toBe("task-1");
    expect(found.searchAttributes).toMatchObject({
      AgentId: [request.agent.id],
      CompanyId: ["acme"],
      PaperclipRunId: [request.runId],
      TaskKey: ["task-1"],
      Model: [request.config.model],
      RunPhase: ["queued"],
    });
    expect(await found.staticSummary()).toBe("Ada on task-1 with standin/lines:3");
  });

  it("finds the run of a start whose answer was lost, and no other one", async () => {
    const request = aRequest();
    const ticket = await attach(temporal, { request, task: null });
    expect(await startedAfterAll(temporal, request.agent.id, request.runId)).toMatchObject({
      workflowRunId: ticket.workflowRunId,
    });
    expect(await startedAfterAll(temporal, request.agent.id, randomUUID())).toBeUndefined();
    expect(await startedAfterAll(temporal, randomUUID(), request.runId)).toBeUndefined();
  });

  it("gives up waiting for a busy agent at once, and nothing of it exists", async () => {
    const request = aRequest();
    await attach(temporal, { request, task: "task-1" });
    const waiting = new AbortController();
    const heard: Ticket[] = [];
    const progress = { uncertain: false };
    const other = aRequest({ agent: request.agent, context: { taskId: "task-2" } });
    const asked = attachWhenFree(
      temporal,
      { request: other, task: "task-2" },
      (ticket) => {
        heard.push(ticket);
        waiting.abort(new Error("enough"));
      },
      { signal: waiting.signal },
      progress,
    );
    await expect(asked).rejects.toBeInstanceOf(GivenUp);
    expect(heard.map((ticket) => ticket.runId)).toEqual([request.runId]);
    expect(progress.uncertain).toBe(false);
  });
});

describe("with a worker", () => {
  let worker: Standin;
  let temporal: Temporal;
  beforeAll(async () => {
    worker = await standin(server.address);
    temporal = temporalOf(server, worker.queue);
  });
  afterAll(async () => await worker.stop());

  it("fetches one outcome, as often as it is asked for, and closes the run when it has arrived", async () => {
    const ticket = await attach(temporal, { request: aRequest(), task: "task-1" });
    const run = runOf(temporal, ticket.workflowId, ticket.workflowRunId);
    const [one, two] = await Promise.all([outcomeOf(temporal, run), outcomeOf(temporal, run)]);
    expect(one).toEqual(two);
    expect(one).toMatchObject({ exitCode: 0, sessionId: "ses_standin", costUsd: "0.0125" });
    await collected(temporal, run);
    await until(async () => (await run.describe()).status.name === "COMPLETED");
    expect(await outcomeOf(temporal, run)).toEqual(one);
    await collected(temporal, run); // nobody minds
  });

  it("gives a later wake of the same task the run that goes on, once and again", async () => {
    const request = aRequest({ behaviour: "quiet" });
    const first = await attach(temporal, { request, task: "task-1" });
    const run = runOf(temporal, first.workflowId, first.workflowRunId);
    await until(async () => (await run.describe()).searchAttributes.RunPhase?.[0] === "running");
    const later = aRequest({ agent: request.agent });
    const joined = await attach(temporal, { request: later, task: "task-1", sealedSecrets: async () => undefined });
    expect(joined).toMatchObject({ kind: "joined", workflowRunId: first.workflowRunId, runId: request.runId });
    const answer = await cancel(temporal, run, "a test");
    expect(answer).toMatchObject({ outcome: "cancelled", stop: { agentStopped: true } });
    await collected(temporal, run);
    await until(async () => (await run.describe()).status.name === "COMPLETED");
    // the wake that had joined is not given a new run once its run has closed
    await until(async () => {
      const again = await attach(temporal, { request: later, task: "task-1" });
      return again.kind === "joined" && again.closed && again.workflowRunId === first.workflowRunId;
    });
    expect(await cancel(temporal, run, "late")).toMatchObject({ outcome: "cancelled" });
  });

  it("waits for the agent, and gets it when the other task's outcome waits for nobody", async () => {
    const request = aRequest({ behaviour: "lines:20:50" });
    await attach(temporal, { request, task: "task-1" });
    const other = aRequest({ agent: request.agent, context: { taskId: "task-2" } });
    const heard: Ticket[] = [];
    const arrival = { request: other, task: "task-2" };
    const hear = (busy: Ticket) => void heard.push(busy);
    const ticket = await attachWhenFree(temporal, arrival, hear, {}, { uncertain: false }, 500);
    expect(ticket).toMatchObject({ kind: "started", runId: other.runId });
    expect(heard.map((busy) => busy.holder?.task)).toEqual(["task-1"]);
    const run = runOf(temporal, ticket.workflowId, ticket.workflowRunId);
    expect(await outcomeOf(temporal, run)).toMatchObject({ exitCode: 0 });
    await collected(temporal, run);
  });
});

describe("while Temporal is away", () => {
  it("keeps asking, tells of it, and starts exactly one run when it is back", async () => {
    const temporal = temporalOf(server, `nobody-${randomUUID()}`);
    await server.kill();
    const said: string[] = [];
    let back = 0;
    const outage = { failed: (what: string) => void said.push(what), recovered: () => void back++ };
    const arrival = { request: aRequest(), task: "task-1" };
    const asked = attach(temporal, arrival, { outage });
    await until(() => said.length > 1);
    await server.start();
    const ticket = await asked;
    expect(ticket.kind).toBe("started");
    expect(said[0]).toContain(server.address);
    expect(back).toBeGreaterThan(0);
    expect(await attach(temporal, arrival)).toMatchObject({ kind: "joined", workflowRunId: ticket.workflowRunId });
  });
});

describe("a cancel that nobody answers", () => {
  it("is left with Temporal, so that the next worker stops the agent", async () => {
    const queue = `queue-${randomUUID()}`;
    const temporal = temporalOf(server, queue);
    const ticket = await attach(temporal, { request: aRequest({ behaviour: "works" }), task: "task-1" });
    const run = runOf(temporal, ticket.workflowId, ticket.workflowRunId);
    expect(await stopped(temporal, run, "a test", 1, {}, 500)).toBeUndefined();
    const worker = await standin(server.address, queue);
    expect(await outcomeOf(temporal, run)).toMatchObject({ errorCode: "cancelled", stop: { agentStarted: false } });
    await worker.stop();
  });
});
