/**
 * Attach: every caller starts or joins a run with this one operation. Same rules as `agent_runs/client/attach.py`: both
 * must give the same ticket for the same state of the server.
 *
 * Temporal's StartWorkflow is atomic and needs no worker. With `request_id` = Paperclip's run id and conflict policy
 * FAIL the server answers one of three things: started, the existing run of this id (open or closed), or refused with the
 * holder's request id. Source: measured with server 1.32; documented upstream for retries only, hence pinned by an
 * integration test.
 */

import { randomUUID } from "node:crypto";
import {
  ApplicationFailure,
  type WorkflowExecutionInfo,
  WorkflowFailedError,
  WorkflowUpdateFailedError,
} from "@temporalio/client";
import { defineSearchAttributeKey, TypedSearchAttributes } from "@temporalio/common";
import type { Join, Joined, RunStart } from "../generated/contracts.ts";
import { InvalidRequest } from "./errors.ts";
import { memoOf, type Names, titleOf } from "./names.ts";
import { executeUpdate, RunClosed, signalCollected, UpdatesSpent, UpdateTimedOut } from "./outcome.ts";
import {
  attribute,
  attributes,
  type CallOptions,
  Code,
  codeOf,
  type Run,
  type StartAnswer,
  type StartOptions,
  type Temporal,
  WORKFLOW_TYPE,
} from "./temporal.ts";
import { type OutageListener, sleep } from "./waits.ts";

/** Values of the search attribute RunPhase of a run that has its outcome. */
export const FINAL_PHASES: ReadonlySet<string> = new Set(["succeeded", "failed", "timed out", "cancelled"]);
const JOIN = "join";
/** In the memo of a run whose folder went out. */
const CARRIED = "carried";
const KEYWORD_BYTES = 200;
/** From the start of `attach`: for a worker to answer whether a run may be joined, and for a released run to close. */
const JOIN_TIMEOUT_MS = 10_000;
const CLOSING_POLL_MS = 50;
/** Between requests for an agent that is held; the close of its run ends the pause. */
const HOLDER_POLL_MS = 10_000;

/** A run to follow. */
export interface Ticket {
  /** `joined`: this very run was started before, or the same task's earlier run is open or keeps its outcome. */
  kind: "started" | "joined";
  workflowId: string;
  /** Always address a run by (workflow id, this), never by the workflow id alone. */
  workflowRunId: string;
  /** Paperclip's id in the output and outcome of this workflow; for a joined run the id of the wake that started it. */
  runId: string;
  /** The run has ended; its outcome can be fetched. */
  closed: boolean;
  /** Its folder went out before its start, so what the agent has done has to come back. */
  carried?: boolean;
}

/** The run of another task, which has the agent. */
export interface Busy extends Omit<Ticket, "kind"> {
  kind: "busy";
  task: string | null;
  phase: string;
  since: Date;
  /** Why it could not be joined, if it was tried. */
  note?: string;
}

export interface Wake {
  start: RunStart;
  /** For Temporal's lists; Paperclip's own key of the task, if it differs. */
  names?: Names;
  taskKey?: string;
  /** Seals the wake's own tokens, for an open run that it joins; called only then. */
  sealJoin(): Promise<string | undefined>;
  /** Sends the run's folder, while the agent is free, right before its start is requested. */
  beforeStart?(): Promise<void>;
  /** Whether the outcome that a finished run keeps has already been delivered to one of these wakes. */
  delivered?(runIds: readonly string[], workflowRunId: string): Promise<boolean>;
}

export interface Progress {
  /** A start was sent and not refused: the run may exist. */
  uncertain: boolean;
}

/** A run's description, or its entry in a list. */
type Found = Omit<WorkflowExecutionInfo, "raw">;

/** `agent-run:<agent id>`: Temporal allows one open run per id, and that is the concurrency guard. */
export function workflowIdOf(agentId: string): string {
  return `agent-run:${agentId}`;
}

/**
 * Starts the run, joins it, or reports which run holds the agent; idempotent by Paperclip's run id. Waits through outages.
 *
 * Rejects with `Aborted`, or with an error that a retry does not fix. A start that was sent is never aborted, so
 * `progress` is reliable: after a rejection the run exists only if `progress.uncertain`. Rejects with `InvalidRequest` if
 * another company has had a run of this id and agent.
 */
export async function attach(
  temporal: Temporal,
  wake: Wake,
  options: CallOptions = {},
  progress: Progress = { uncertain: false },
): Promise<Ticket | Busy> {
  const joined = await joinedBefore(temporal, wake.start, options);
  if (joined !== undefined) return joined;
  const caller = randomUUID();
  const start = startOf(temporal, wake, caller);
  let until = Date.now() + JOIN_TIMEOUT_MS;
  for (;;) {
    const latest = wake.beforeStart && (await latestRun(temporal, wake.start.agentId, options));
    const known = latest && ticketOf(latest);
    if (latest !== undefined && known?.closed === false && known.runId !== wake.start.runId) {
      const ticket = await joinOrBusy(temporal, wake, known, latest, until, options);
      if (ticket !== undefined) return ticket;
      await sleep(CLOSING_POLL_MS, options.signal);
      continue;
    }
    if (wake.beforeStart && known?.runId !== wake.start.runId) {
      await wake.beforeStart();
      until = Date.now() + JOIN_TIMEOUT_MS;
    }
    const { holder, workflowRunId } = await sendStart(temporal, wake.start.runId, start, options, progress);
    progress.uncertain = holder === undefined;
    const run = temporal.runOf({ workflowId: start.workflowId, workflowRunId });
    // an abort must not hide a run of our own, which may have begun
    const describing = progress.uncertain ? { outage: options.outage } : options;
    const described = await temporal.callUntilAnswered(() => run.describe(), describing);
    const found = { ...ticketOf(described), runId: holder ?? wake.start.runId };
    if (holder === undefined && attribute(described, "CompanyId") !== wake.start.companyId) {
      progress.uncertain = false;
      throw new InvalidRequest(`run ${wake.start.runId} of this agent belongs to another company`);
    }
    // the server answers every repeat like the first start; the memo names the caller of that one
    if (holder === undefined) return { ...found, kind: described.memo?.caller === caller ? "started" : "joined" };
    const ticket = await joinOrBusy(temporal, wake, found, described, until, options);
    if (ticket !== undefined) return ticket;
    await sleep(CLOSING_POLL_MS, options.signal);
  }
}

/**
 * Like `attach`, but waits while another task has the agent. `onBusy` is called with each run that holds it.
 *
 * @param pollMs milliseconds between requests while the holder keeps its outcome for its own caller.
 */
export async function attachWhenFree(
  temporal: Temporal,
  wake: Wake,
  onBusy: (busy: Busy) => void,
  options: CallOptions = {},
  progress: Progress = { uncertain: false },
  pollMs: number = HOLDER_POLL_MS,
): Promise<Ticket> {
  let holder = "";
  for (;;) {
    const ticket = await attach(temporal, wake, options, progress);
    if (ticket.kind !== "busy") return ticket;
    if (ticket.workflowRunId !== holder) {
      holder = ticket.workflowRunId;
      onBusy(ticket);
    }
    await waitForClose(temporal.runOf(ticket), options, pollMs);
  }
}

/**
 * The run that an unanswered start has created; undefined when the agent is free or has another run.
 *
 * Waits through outages; rejects with `Aborted`.
 */
export async function findUncertainStart(
  temporal: Temporal,
  { agentId, companyId, runId }: RunStart,
  options: CallOptions = {},
): Promise<Ticket | undefined> {
  const latest = await latestRun(temporal, agentId, options);
  const ticket = latest && attribute(latest, "CompanyId") === companyId ? ticketOf(latest) : undefined;
  return ticket?.runId === runId ? ticket : undefined;
}

/** The agent's latest run; undefined if it never had one. */
async function latestRun(temporal: Temporal, agentId: string, options: CallOptions): Promise<Found | undefined> {
  try {
    return await temporal.callUntilAnswered(() => temporal.getHandle(workflowIdOf(agentId)).describe(), options);
  } catch (error) {
    if (codeOf(error) === Code.NOT_FOUND) return undefined;
    throw error;
  }
}

/** The run that this wake has joined before; once that is closed, the server would start a new one. */
async function joinedBefore(
  temporal: Temporal,
  { agentId, companyId, runId }: RunStart,
  options: CallOptions,
): Promise<Ticket | undefined> {
  const workflow = `WorkflowType = '${WORKFLOW_TYPE}' AND WorkflowId = '${workflowIdOf(agentId)}'`;
  const query = `${workflow} AND CompanyId = '${companyId}' AND JoinedRunIds = '${runId}'`;
  const joined = async () => {
    for await (const run of temporal.list({ query, pageSize: 1 })) return run;
    return undefined;
  };
  // refused as long as no worker has registered the attribute
  return await findRun(temporal, joined, Code.INVALID_ARGUMENT, options);
}

/** The ticket of a run that `find` finds; undefined when it finds none, or is answered with the code `none`. */
async function findRun(
  temporal: Temporal,
  find: () => Promise<Found | undefined>,
  none: number,
  options: CallOptions,
): Promise<Ticket | undefined> {
  try {
    const found = await temporal.callUntilAnswered(find, options);
    return found && ticketOf(found);
  } catch (error) {
    if (codeOf(error) === none) return undefined;
    throw error;
  }
}

function ticketOf(found: Found): Ticket {
  const { workflowId, runId: workflowRunId, status } = found;
  const runId = attribute(found, "PaperclipRunId") ?? "";
  const carried = found.memo?.workspace === CARRIED ? { carried: true } : {};
  return { kind: "joined", workflowId, workflowRunId, runId, closed: status.name !== "RUNNING", ...carried };
}

async function sendStart(
  temporal: Temporal,
  requestId: string,
  start: StartOptions,
  { signal, outage }: CallOptions,
  progress: Progress,
): Promise<StartAnswer> {
  const listener: OutageListener = {
    failed(message) {
      progress.uncertain = true;
      outage?.failed(message);
    },
    recovered: () => outage?.recovered(),
  };
  const options = { signal, outage: listener, betweenCalls: true };
  return await temporal.callUntilAnswered(() => temporal.startOrAttach(requestId, start), options);
}

/** The ticket for an agent that another run holds; undefined when that run is about to close: start again. */
async function joinOrBusy(
  temporal: Temporal,
  { start: { runId, companyId, task = null }, sealJoin, delivered }: Wake,
  ticket: Ticket,
  described: Found,
  until: number,
  options: CallOptions,
): Promise<Ticket | Busy | undefined> {
  if (ticket.closed) return undefined;
  const theirs = typeof described.memo?.task === "string" && described.memo.task ? described.memo.task : null;
  const phase = attribute(described, "RunPhase") ?? "queued";
  const busy: Busy = { ...ticket, kind: "busy", task: theirs, phase, since: described.startTime };
  const same = theirs !== null && theirs === task && attribute(described, "CompanyId") === companyId;
  const ended = FINAL_PHASES.has(phase);
  if (!same && !ended) return busy;
  const run = temporal.runOf(ticket);
  const runIds = [ticket.runId, ...attributes(described, "JoinedRunIds")];
  if (same && ended && (await delivered?.(runIds, ticket.workflowRunId))) {
    await signalCollected(run, { outage: options.outage });
    const lastAttempt = Date.now() >= until;
    await waitForClose(run, options);
    return lastAttempt ? busy : undefined;
  }
  const input: Join = { runId, companyId, task, sealed: (await sealJoin()) ?? null };
  try {
    // not abortable: the run may have joined us
    const timeout = Math.max(0, until - Date.now());
    const updateOptions = { outage: options.outage, id: `${JOIN}:${companyId}:${runId}`, timeout };
    const answer = await executeUpdate<Joined>(run, JOIN, [input], updateOptions);
    if (answer.kind === "joined") return { ...ticket, runId: answer.runId };
    const lastAttempt = Date.now() >= until;
    if (!lastAttempt) await waitForClose(run, options); // its pods may still be deleted
    return lastAttempt ? { ...busy, phase: answer.phase } : undefined;
  } catch (error) {
    if (error instanceof RunClosed) return undefined;
    if (error instanceof UpdatesSpent) return { ...busy, note: "Temporal accepts no more requests of it" };
    if (error instanceof UpdateTimedOut) return { ...busy, note: "no worker answered the request to join it" };
    if (error instanceof WorkflowUpdateFailedError) return { ...busy, note: refusalOf(error) };
    throw error;
  }
}

/** Why a run cannot be joined although it has this wake's task; undefined: it has another one. */
function refusalOf({ cause }: WorkflowUpdateFailedError): string | undefined {
  const details = cause instanceof ApplicationFailure ? cause.details : [];
  return (details?.[0] as { note?: string } | undefined)?.note;
}

/** Waits for the close of a run, at most `timeout` milliseconds: the next start shows the state. */
async function waitForClose(run: Run, options: CallOptions, timeout = HOLDER_POLL_MS) {
  try {
    await run.client.callOnce(() => run.result(), { signal: options.signal, timeout });
  } catch (error) {
    if (error instanceof WorkflowFailedError || codeOf(error) === Code.DEADLINE_EXCEEDED) return;
    await sleep(Math.min(1000, timeout), options.signal); // Temporal does not answer
  }
}

function startOf(temporal: Temporal, { start, names = {}, taskKey, beforeStart }: Wake, caller: string): StartOptions {
  const { agentId, companyId, runId, task } = start;
  const keywords = { AgentId: agentId, CompanyId: companyId, PaperclipRunId: runId, TaskKey: taskKey || task };
  const pairs = Object.entries({ ...keywords, RunPhase: "queued" }).flatMap(([name, value]) =>
    value ? [{ key: defineSearchAttributeKey(name, "KEYWORD"), value: cut(value) }] : [],
  );
  return {
    workflowId: workflowIdOf(agentId),
    taskQueue: temporal.taskQueue,
    args: [start],
    memo: { caller, task: task ?? "", ...memoOf(names), ...(beforeStart && { workspace: CARRIED }) },
    typedSearchAttributes: new TypedSearchAttributes(pairs),
    staticSummary: cut(titleOf(names, agentId, task)),
    workflowIdReusePolicy: "ALLOW_DUPLICATE",
    workflowIdConflictPolicy: "FAIL",
  };
}

/** The text's whole characters within 200 bytes of UTF-8: Temporal bounds a search attribute and a summary in bytes. */
function cut(text: string): string {
  const bytes = Buffer.from(text);
  let end = Math.min(bytes.length, KEYWORD_BYTES);
  while (end < bytes.length && ((bytes[end] ?? 0) & 0xc0) === 0x80) end--;
  return bytes.subarray(0, end).toString();
}
