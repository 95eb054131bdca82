/** Attach: one open run per agent, pinned against a real Temporal server. The SDK itself does not expose the request id. */

import { randomUUID } from "node:crypto";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { attach, attachWhenFree, type Busy, findUncertainStart, workflowIdOf } from "../src/attach.ts";
import { EndedWithoutOutcome, fetchOutcome, requestCancel, signalCollected } from "../src/outcome.ts";
import { disconnect, type Temporal } from "../src/temporal.ts";
import {
  aRequest,
  type DevServer,
  devServer,
  type Standin,
  standin,
  temporalOf,
  until,
  wakeOf,
} from "./support/stack.ts";

/** Where @opentelemetry/api keeps what a host's tracer has registered. */
const OPEN_TELEMETRY = Symbol.for("opentelemetry.js.api.1");
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
    temporal = temporalOf(server, `no-worker-${randomUUID()}`);
  });

  it("carries the trace of a host with a tracer into the run, and nothing else of it", async () => {
    const header = async () => {
      const ticket = await attach(temporal, await wakeOf(aRequest()));
      const { events } = await temporal.runOf(ticket).fetchHistory();
      return events?.[0]?.workflowExecutionStartedEventAttributes?.header?.fields?.["_tracer-data"]?.data;
    };
    expect(await header()).toBeUndefined();
    const traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    Object.assign(globalThis, { [OPEN_TELEMETRY]: { context: { active: () => "active" }, propagation: { inject } } });
    try {
      expect(JSON.parse(Buffer.from((await header()) ?? []).toString())).toEqual({ traceparent });
    } finally {
      Reflect.deleteProperty(globalThis, OPEN_TELEMETRY);
    }

    function inject(context: unknown, carrier: object) {
      expect(context).toBe("active");
      Object.assign(carrier, { traceparent, baggage: "secret=1" });
    }
  });

  it("creates one workflow for 25 request ids and 50 callers, and gives each the right ticket", async () => {
    const { agent } = aRequest();
    const ids = Array.from({ length: 25 }, () => randomUUID());
    const wakes = ids.map((runId) => wakeOf(aRequest({ agent, runId, context: { taskId: runId } })));
    const tickets = await Promise.all([...wakes, ...wakes].map(async (wake) => attach(temporal, await wake)));
    expect(new Set(tickets.map((ticket) => ticket.workflowRunId)).size).toBe(1);
    expect(new Set(tickets.map((ticket) => ticket.workflowId))).toEqual(new Set([workflowIdOf(agent.id)]));
    expect(new Set(tickets.map((ticket) => ticket.runId)).size).toBe(1);
    const winner = tickets[0]?.runId;
    const kinds = (own: boolean) =>
      tickets.filter((_, n) => (ids[n % 25] === winner) === own).map((ticket) => ticket.kind);
    expect(kinds(true).sort()).toEqual(["joined", "started"]);
    expect(new Set(kinds(false))).toEqual(new Set(["busy"]));
  });

  it("names the holder of the agent to another task", async () => {
    const request = aRequest();
    const held = await attach(temporal, await wakeOf(request));
    const other = aRequest({ agent: request.agent, context: { taskId: "task-2" } });
    const refused = await attach(temporal, await wakeOf(other));
    expect(refused).toMatchObject({ kind: "busy", workflowRunId: held.workflowRunId, runId: request.runId });
    expect(refused).toMatchObject({ task: "task-1", phase: "queued" });
  });

  it("joins a closed run, and rejects for its missing outcome", async () => {
    const wake = await wakeOf(aRequest());
    const ticket = await attach(temporal, wake);
    const run = temporal.runOf(ticket);
    await run.terminate("a test");
    const repeated = await attach(temporal, wake);
    expect(repeated).toMatchObject({ kind: "joined", closed: true, workflowRunId: ticket.workflowRunId });
    const error = await fetchOutcome(run).catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(EndedWithoutOutcome);
    expect(error).toMatchObject({ message: expect.stringContaining("TERMINATED") });
  });

  it("sets memo, search attributes and a summary", async () => {
    const paperclipIssue = { identifier: "ACM-7", title: "A long task" };
    const request = aRequest({ context: { taskId: "task-1", paperclipIssue } });
    const ticket = await attach(temporal, await wakeOf(request));
    const description = await temporal.runOf(ticket).describe();
    const caller = expect.any(String);
    expect(description.memo).toEqual({ caller, task: "task-1", agent_name: "Ada", task_name: "ACM-7 A long task" });
    expect(description.searchAttributes).toMatchObject({
      AgentId: [request.agent.id],
      CompanyId: ["acme"],
      PaperclipRunId: [request.runId],
      TaskKey: ["task-1"],
      RunPhase: ["queued"],
    });
    expect(await description.staticSummary()).toBe("Ada · ACM-7 A long task");
  });

  it("has ids alone for those who want no names in Temporal", async () => {
    const request = aRequest();
    const { names: _, ...wake } = await wakeOf(request);
    const description = await temporal.runOf(await attach(temporal, wake)).describe();
    expect(Object.keys(description.memo ?? {}).sort()).toEqual(["caller", "task"]);
    expect(await description.staticSummary()).toBe(`${request.agent.id} · task-1`);
  });

  it("finds the run of an unanswered start, and no other run", async () => {
    const request = aRequest();
    const { start, ...wake } = await wakeOf(request);
    const ticket = await attach(temporal, { start, ...wake });
    expect(await findUncertainStart(temporal, start)).toMatchObject({ workflowRunId: ticket.workflowRunId });
    expect(await findUncertainStart(temporal, { ...start, runId: randomUUID() })).toBeUndefined();
    expect(await findUncertainStart(temporal, { ...start, agentId: randomUUID() })).toBeUndefined();
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

  it("fetches the same outcome every time, and the run closes once the outcome is collected", async () => {
    const ticket = await attach(temporal, await wakeOf(aRequest()));
    const run = temporal.runOf(ticket);
    const [one, two] = await Promise.all([fetchOutcome(run), fetchOutcome(run)]);
    expect(one).toEqual(two);
    expect(one).toMatchObject({ exitCode: 0, sessionId: "ses_fake", costUsd: "0.0125" });
    await signalCollected(run);
    await until(async () => (await run.describe()).status.name === "COMPLETED");
    expect(await fetchOutcome(run)).toEqual(one);
    await signalCollected(run); // a closed run ignores it
  });

  it("joins a later wake of the same task to the open run, also when it is repeated after the close", async () => {
    const request = aRequest({ behaviour: "silent" });
    const first = await attach(temporal, await wakeOf(request));
    const run = temporal.runOf(first);
    await until(async () => (await run.describe()).searchAttributes.RunPhase?.[0] === "running");
    const later = aRequest({ agent: request.agent });
    const joined = await attach(temporal, await wakeOf(later));
    expect(joined).toMatchObject({ kind: "joined", workflowRunId: first.workflowRunId, runId: request.runId });
    await requestCancel(run, "a test");
    expect(await fetchOutcome(run)).toMatchObject({ errorCode: "cancelled", agentStopped: true });
    await signalCollected(run);
    await until(async () => (await run.describe()).status.name === "CANCELLED");
    // the wake that had joined is not given a new run once its run has closed
    await until(async () => {
      const repeated = await attach(temporal, await wakeOf(later));
      return repeated.kind === "joined" && repeated.closed && repeated.workflowRunId === first.workflowRunId;
    });
    await requestCancel(run, "late");
    expect(await fetchOutcome(run)).toMatchObject({ errorCode: "cancelled" });
  });

  it("waits for a busy agent, and starts when the other task's finished run is released", async () => {
    const request = aRequest({ behaviour: "lines:20:50" });
    await attach(temporal, await wakeOf(request));
    const other = aRequest({ agent: request.agent, context: { taskId: "task-2" } });
    const busyTickets: Busy[] = [];
    const wake = await wakeOf(other);
    const onBusy = (busy: Busy) => void busyTickets.push(busy);
    const ticket = await attachWhenFree(temporal, wake, onBusy, {}, { uncertain: false }, 500);
    expect(ticket).toMatchObject({ kind: "started", runId: other.runId });
    expect(busyTickets.map((busy) => busy.task)).toEqual(["task-1"]);
    const run = temporal.runOf(ticket);
    expect(await fetchOutcome(run)).toMatchObject({ exitCode: 0 });
    await signalCollected(run);
  });
});

describe("an outage of Temporal", () => {
  it("is retried and reported, and exactly one run is started afterwards", async () => {
    const temporal = temporalOf(server, `no-worker-${randomUUID()}`);
    await server.kill();
    const messages: string[] = [];
    let recoveries = 0;
    const outage = { failed: (message: string) => void messages.push(message), recovered: () => void recoveries++ };
    const wake = await wakeOf(aRequest());
    const attaching = attach(temporal, wake, { outage });
    await until(() => messages.length > 1);
    await server.start();
    const ticket = await attaching;
    expect(ticket.kind).toBe("started");
    expect(messages[0]).toContain(server.address);
    expect(recoveries).toBeGreaterThan(0);
    expect(await attach(temporal, wake)).toMatchObject({ kind: "joined", workflowRunId: ticket.workflowRunId });
  });
});

describe("a cancel that no worker answers", () => {
  it("survives a killed Temporal: the next worker never starts the agent, ten times of ten", async () => {
    const queue = `queue-${randomUUID()}`;
    const temporal = temporalOf(server, queue);
    const runs = await Promise.all(
      Array.from({ length: 10 }, async (_, number) => {
        const request = aRequest({ behaviour: "works", context: { taskId: `task-${number}` } });
        const ticket = await attach(temporal, await wakeOf(request));
        return temporal.runOf(ticket);
      }),
    );
    await Promise.all(runs.map((run) => requestCancel(run, "a test")));
    await server.kill();
    await server.start();
    const worker = await standin(server.address, queue);
    for (const run of runs)
      expect(await fetchOutcome(run)).toMatchObject({
        errorCode: "cancelled",
        errorMessage: "Run cancelled; a test",
        stop: { agentStarted: false },
      });
    await worker.stop();
  });
});
