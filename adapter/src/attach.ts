/**
 * Attach: the one way into a run. The twin of `client/attach.py`; both must give the same ticket for the same facts.
 *
 * Temporal's StartWorkflow is atomic and needs no worker. With `request_id` = Paperclip's run id and conflict policy
 * FAIL the server answers one of three things: started, the same run again (open or closed), or refused with the
 * holder's request id. Source: measured with server 1.32; documented upstream for retries only, hence pinned by an
 * integration test.
 */

import { randomUUID } from "node:crypto";
import { WorkflowFailedError, WorkflowUpdateFailedError } from "@temporalio/client";
import type { Join, Joined, RunRequest } from "./contracts.ts";
import { ask, Closed, collected, NobodyAnswered } from "./outcome.ts";
import {
  attribute,
  attributes,
  away,
  Code,
  codeOf,
  isOutage,
  isUnknownRun,
  once,
  patiently,
  type Run,
  runOf,
  type StartAnswer,
  type StartOptions,
  type Talk,
  type Temporal,
} from "./temporal.ts";
import { BackOff, GivenUp, sleep } from "./waiting.ts";

export const WORKFLOW_TYPE = "AgentRunWorkflow";
const FINAL_PHASES: ReadonlySet<string> = new Set(["succeeded", "failed", "timed out", "cancelled"]);
const JOIN = "join";
/** For a worker to say whether a run may be joined, and for a released run to close. */
const PATIENCE_MS = 10_000;
const CLOSING_MS = 50;
/** Between attempts to get an agent that is held; when its run closes that is noticed at once. */
const LOOK_MS = 10_000;
const IDENTIFIER = /^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$/;

/** Who holds an agent. */
export interface Holder {
  /** Paperclip's id of the run. */
  runId: string;
  /** What it is about; null when it has none. */
  task: string | null;
  phase: string;
  since: Date;
  /** Why it could not be joined, if something was in the way. */
  note?: string;
}

/** What a caller holds after attaching. */
export interface Ticket {
  /**
   * `started` now; `joined`: this very run was started before, or the same task's earlier run goes on or waits with its
   * outcome; `busy`: another task has the agent, see `holder`.
   */
  kind: "started" | "joined" | "busy";
  workflowId: string;
  /** Always address a run by (workflow id, this), never by the bare id. Of a busy agent: the holder's. */
  workflowRunId: string;
  /** Paperclip's id that output and outcome of this workflow carry; of a joined run the first one's. */
  runId: string;
  /** The run has ended; its outcome can be fetched. */
  closed: boolean;
  holder?: Holder;
}

/** A wake that wants to run. */
export interface Arrival {
  request: RunRequest;
  /** What it is about: a later wake with the same may join the run. */
  task: string | null;
  /** Secrets sealed for this wake, for a run that goes on and takes it over; asked for only then. */
  sealedSecrets?(): Promise<string | undefined>;
  /** Whether the outcome that a finished run keeps has been delivered to one of these wakes already. */
  delivered?(runIds: readonly string[], workflowRunId: string): Promise<boolean>;
}

/** How far a start has got, for whoever gives up in the middle of one. */
export interface Progress {
  /** A start was sent and its answer never came: the run may exist. */
  uncertain: boolean;
}

/** `agent-run:<agent id>`: Temporal allows one open run per id, and that is the concurrency guard. */
export function workflowIdOf(agentId: string): string {
  return `agent-run:${agentId}`;
}

/**
 * Starts the run, joins it, or says who holds the agent; idempotent by Paperclip's run id. Outages are sat out.
 *
 * Rejects with `GivenUp`, or with a refusal that will not change. A start that is on its way is never given up, so that
 * `progress` tells the truth: after a rejection the run exists only if `progress.uncertain`.
 */
export async function attach(
  temporal: Temporal,
  arrival: Arrival,
  talk: Talk = {},
  progress: Progress = { uncertain: false },
): Promise<Ticket> {
  const { request } = arrival;
  const taken = await takenOver(temporal, request.agent.id, request.runId, talk);
  if (taken !== undefined) return taken;
  const caller = randomUUID();
  const start = startOf(temporal, arrival, caller);
  const until = Date.now() + PATIENCE_MS;
  for (;;) {
    const answer = await started(temporal, start, talk, progress);
    if (answer.kind === "held") return await own(temporal, request.runId, start.workflowId, answer, caller, talk);
    const lastTry = Date.now() >= until;
    const ticket = await heldByAnother(temporal, arrival, answer, lastTry, talk);
    if (ticket !== undefined) return ticket;
    await sleep(CLOSING_MS, talk.signal);
  }
}

/**
 * As `attach`, but waits while another task has the agent. `told` hears of each holder.
 *
 * @param look milliseconds between attempts while the holder keeps its outcome for its own caller.
 */
export async function attachWhenFree(
  temporal: Temporal,
  arrival: Arrival,
  told: (ticket: Ticket) => void,
  talk: Talk = {},
  progress: Progress = { uncertain: false },
  look: number = LOOK_MS,
): Promise<Ticket> {
  let holder = "";
  for (;;) {
    const ticket = await attach(temporal, arrival, talk, progress);
    if (ticket.kind !== "busy") return ticket;
    if (ticket.workflowRunId !== holder) {
      holder = ticket.workflowRunId;
      told(ticket);
    }
    await ended(temporal, runOf(temporal, ticket.workflowId, ticket.workflowRunId), talk, look);
  }
}

/**
 * The run that a start of unknown fate has made, if it has: undefined when the agent is free or another run's.
 *
 * Waits through outages; rejects with `GivenUp`.
 */
export async function startedAfterAll(
  temporal: Temporal,
  agentId: string,
  runId: string,
  talk: Talk = {},
): Promise<Ticket | undefined> {
  const workflowId = workflowIdOf(agentId);
  try {
    const found = await patiently(temporal, () => temporal.client.getHandle(workflowId).describe(), talk);
    if (attribute(found, "PaperclipRunId") !== runId) return undefined;
    const closed = found.status.name !== "RUNNING";
    return { kind: "joined", workflowId, workflowRunId: found.runId, runId, closed };
  } catch (error) {
    if (isUnknownRun(error)) return undefined;
    throw error;
  }
}

/** One start, repeated until the server has answered. Looks at the signal between tries only. */
async function started(temporal: Temporal, start: StartOptions, talk: Talk, progress: Progress): Promise<StartAnswer> {
  const backOff = new BackOff();
  for (;;) {
    if (talk.signal?.aborted) throw new GivenUp(talk.signal.reason);
    try {
      const answer = await once(temporal, () => temporal.client.startOrAttach(start));
      progress.uncertain = false;
      talk.outage?.recovered();
      return answer;
    } catch (error) {
      if (!isOutage(error)) throw error;
      progress.uncertain = true;
      talk.outage?.failed(away(temporal, error));
      await backOff.wait(talk.signal);
    }
  }
}

/** The server's answer is the same for the first start and for every repeat; the memo says whose the first one was. */
async function own(
  temporal: Temporal,
  runId: string,
  workflowId: string,
  answer: { workflowRunId: string; open: boolean },
  caller: string,
  talk: Talk,
): Promise<Ticket> {
  const run = runOf(temporal, workflowId, answer.workflowRunId);
  const { memo } = await patiently(temporal, () => run.describe(), { outage: talk.outage });
  const kind = memo?.caller === caller ? "started" : "joined";
  return { kind, workflowId, workflowRunId: answer.workflowRunId, runId, closed: !answer.open };
}

/** The run that this wake has joined before: once that is closed the server would start another one. */
async function takenOver(temporal: Temporal, agentId: string, runId: string, talk: Talk): Promise<Ticket | undefined> {
  if (!IDENTIFIER.test(runId) || !IDENTIFIER.test(agentId)) return undefined;
  const workflowId = workflowIdOf(agentId);
  const query = `WorkflowType = '${WORKFLOW_TYPE}' AND WorkflowId = '${workflowId}' AND JoinedRunIds = '${runId}'`;
  try {
    const found = await patiently(temporal, () => newest(temporal, query), talk);
    if (found === undefined) return undefined;
    const first = attribute(found, "PaperclipRunId") ?? runId;
    const closed = found.status.name !== "RUNNING";
    return { kind: "joined", workflowId, workflowRunId: found.runId, runId: first, closed };
  } catch (error) {
    if (codeOf(error) === Code.INVALID_ARGUMENT) return undefined; // no worker has registered the attribute yet
    throw error;
  }
}

async function newest(temporal: Temporal, query: string) {
  for await (const run of temporal.client.list({ query, pageSize: 1 })) return run;
  return undefined;
}

/** The ticket for an agent that another run holds; undefined when that run is just going: try again. */
async function heldByAnother(
  temporal: Temporal,
  { request, task, sealedSecrets, delivered }: Arrival,
  held: { holder: string; workflowRunId: string },
  lastTry: boolean,
  talk: Talk,
): Promise<Ticket | undefined> {
  const workflowId = workflowIdOf(request.agent.id);
  const run = runOf(temporal, workflowId, held.workflowRunId);
  const found = await patiently(temporal, () => run.describe(), talk);
  if (found.status.name !== "RUNNING") return undefined;
  const theirs = typeof found.memo?.task === "string" && found.memo.task ? found.memo.task : null;
  const phase = attribute(found, "RunPhase") ?? "queued";
  const holder: Holder = { runId: held.holder, task: theirs, phase, since: found.startTime };
  const address = { workflowId, workflowRunId: held.workflowRunId };
  const busy: Ticket = { kind: "busy", ...address, runId: held.holder, closed: false, holder };
  const same = theirs !== null && theirs === task;
  if (!same && !FINAL_PHASES.has(phase)) return busy;
  const runIds = [held.holder, ...attributes(found, "JoinedRunIds")];
  if (same && FINAL_PHASES.has(phase) && (await delivered?.(runIds, held.workflowRunId))) {
    await collected(temporal, run, { outage: talk.outage });
    await ended(temporal, run, talk);
    return lastTry ? busy : undefined;
  }
  const order: Join = { runId: request.runId, task, sealedSecrets: (await sealedSecrets?.()) ?? null };
  try {
    const id = `${JOIN}:${request.runId}`;
    const asking = { outage: talk.outage, id, patience: PATIENCE_MS }; // never given up: the run may have taken us
    const answer = await ask<Joined>(temporal, run, JOIN, [order], asking);
    if (answer.kind === "joined") return { kind: "joined", ...address, runId: answer.runId, closed: false };
    return lastTry ? busy : undefined;
  } catch (error) {
    if (error instanceof Closed) return undefined;
    if (error instanceof WorkflowUpdateFailedError) return busy;
    if (!(error instanceof NobodyAnswered)) throw error;
    return { ...busy, holder: { ...holder, note: "no worker answered whether it may be joined" } };
  }
}

/** Waits for the end of a run, but not long: what matters is noticed by the next attempt. */
async function ended(temporal: Temporal, run: Run, talk: Talk, look: number = LOOK_MS): Promise<void> {
  const began = Date.now();
  try {
    await once(temporal, () => run.result(), { signal: talk.signal, within: look });
  } catch (error) {
    if (error instanceof GivenUp) throw error;
    if (error instanceof WorkflowFailedError || codeOf(error) === Code.DEADLINE_EXCEEDED) return;
    await sleep(Math.max(0, Math.min(1000, look - (Date.now() - began))), talk.signal);
  }
}

function startOf(temporal: Temporal, { request, task }: Arrival, caller: string): StartOptions {
  const { agent, config, context, runtime } = request;
  const taskId = context?.taskId || context?.issueId || null;
  const about = taskId ? ` on ${taskId}` : "";
  return {
    workflowId: workflowIdOf(agent.id),
    requestId: request.runId,
    taskQueue: temporal.taskQueue,
    input: request,
    memo: { caller, task: task ?? "" },
    searchAttributes: {
      AgentId: agent.id,
      CompanyId: agent.companyId,
      PaperclipRunId: request.runId,
      TaskKey: runtime?.taskKey || taskId,
      Model: config.model,
      RunPhase: "queued",
    },
    summary: `${agent.name || agent.id}${about} with ${config.model}`.slice(0, 200),
  };
}
