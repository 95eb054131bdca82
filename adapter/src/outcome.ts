/**
 * What a caller does with a run after attaching: fetch its outcome, signal that it was collected, cancel.
 *
 * Same rules as `agent_runs/client/outcome.py`: same Updates, same ids, same meaning of a closed run.
 */

import { randomUUID } from "node:crypto";
import {
  ApplicationFailure,
  CancelledFailure,
  WorkflowFailedError,
  WorkflowUpdateFailedError,
} from "@temporalio/client";
import type { Outcome } from "../generated/contracts.ts";
import { type CallOptions, Code, codeOf, isOutage, isUnknownRun, type Run } from "./temporal.ts";
import { Aborted, BackOff, sleep } from "./waits.ts";

/** The run is closed: it accepts no updates. */
export class RunClosed extends Error {}
/** The run is open, and Temporal accepts no more updates of it. */
export class UpdatesSpent extends Error {}
/** No worker answered the update in time. */
export class UpdateTimedOut extends Error {}
/** The run closed without an outcome: terminated, failed in its own code, or deleted by Temporal. */
export class EndedWithoutOutcome extends Error {}

/** The update for the outcome; also the memo key of the outcome of a run that closed as Canceled. */
const OUTCOME = "outcome";
const COLLECTED = "collected";
/** One request of a long wait; the next one waits for the same update id. */
const UPDATE_ROUND_MS = 30_000;
const QUERY_INTERVAL_MS = 5000;

/**
 * The outcome, as soon as there is one; waits through restarts of workers and of Temporal.
 *
 * Rejects with `EndedWithoutOutcome`, `Aborted`, or an error that a retry does not fix.
 */
export async function fetchOutcome(run: Run, options: CallOptions = {}): Promise<Outcome> {
  try {
    return await executeUpdate<Outcome>(run, OUTCOME, [], { ...options, id: OUTCOME });
  } catch (error) {
    if (error instanceof UpdatesSpent) return await queriedOutcome(run, options);
    if (!(error instanceof RunClosed)) throw error;
  }
  return await outcomeAtClose(run, options);
}

/** Signals that the outcome was collected, so that the run need not keep it. Does nothing for a closed run. */
export async function signalCollected(run: Run, options: CallOptions = {}): Promise<void> {
  try {
    await run.client.callUntilAnswered(() => run.signal(COLLECTED), options);
  } catch (error) {
    if (codeOf(error) === undefined) throw error;
  }
}

/**
 * Has the run cancelled. May be repeated: the first reason counts. Does nothing to a closed run.
 *
 * Once Temporal has answered, the request is in the run's history, so it needs no worker and survives every restart.
 * Therefore it is never aborted. The SDK's own handle cannot carry a reason.
 */
export async function requestCancel(run: Run, reason: string, options: CallOptions = {}): Promise<void> {
  const { client, workflowId, workflowRunId } = run;
  const { namespace, identity } = client.options;
  const workflowExecution = { workflowId, runId: workflowRunId };
  const request = { namespace, identity, requestId: randomUUID(), workflowExecution, reason };
  try {
    const call = () => client.workflowService.requestCancelWorkflowExecution(request);
    await client.callUntilAnswered(call, { ...options, signal: undefined });
  } catch (error) {
    if (!isUnknownRun(error)) throw error; // it is closed
  }
}

/**
 * Requests one Update until it is answered.
 *
 * @param options.id update id: every request with the same id gets the same answer, without a new event.
 * @param options.timeout for a worker to answer, in milliseconds; undefined: no limit.
 *
 * Rejects with `RunClosed`, `UpdateTimedOut`, `Aborted`, or `WorkflowUpdateFailedError` when refused.
 */
export async function executeUpdate<Answer>(
  run: Run,
  update: string,
  args: [] | [unknown],
  { id, timeout = Number.POSITIVE_INFINITY, ...options }: CallOptions & { id: string; timeout?: number },
): Promise<Answer> {
  const call = () => run.executeUpdate<Answer, [unknown]>(update, { args: args as [unknown], updateId: id });
  const backOff = new BackOff();
  const until = Date.now() + timeout;
  for (;;) {
    const roundTimeout = Math.min(UPDATE_ROUND_MS, until - Date.now());
    if (roundTimeout <= 0) throw new UpdateTimedOut();
    try {
      return await run.client.callOnce(call, { signal: options.signal, timeout: roundTimeout });
    } catch (error) {
      if (closedBeforeAnswer(error) || isUnknownRun(error)) throw new RunClosed();
      if (!isOutage(error, options)) throw codeOf(error) === Code.FAILED_PRECONDITION ? new UpdatesSpent() : error;
      if (codeOf(error) === Code.DEADLINE_EXCEEDED)
        backOff.reset(); // no worker answered in this round
      else options.outage?.failed(run.client.outageMessage(error));
    }
    await backOff.wait(options.signal);
    // an unanswered update does not show whether Temporal answers; a deleted run is reported by the next update
    const described = run.client.callUntilAnswered(() => run.describe(), options);
    await described.catch((error) => {
      if (!isUnknownRun(error)) throw error;
    });
  }
}

/** The outcome of a run that accepts no more updates: it is asked for again and again, until it is there or closed. */
async function queriedOutcome(run: Run, options: CallOptions): Promise<Outcome> {
  for (;;) {
    const { status } = await run.client.callUntilAnswered(() => run.describe(), options);
    if (status.name !== "RUNNING") return await outcomeAtClose(run, options);
    const asked = run.client.callOnce(() => run.query<Outcome | null>(OUTCOME), { signal: options.signal });
    const outcome = await asked.catch((error: unknown) => {
      if (error instanceof Aborted) throw error;
      return null; // no worker answers
    });
    if (outcome !== null) return outcome;
    await sleep(QUERY_INTERVAL_MS, options.signal);
  }
}

/** The outcome of a closed run: its result, the details of its failure, or the memo of a cancelled one. */
async function outcomeAtClose(run: Run, options: CallOptions): Promise<Outcome> {
  try {
    return (await run.client.callUntilAnswered(() => run.result(), options)) as Outcome;
  } catch (error) {
    if (isUnknownRun(error)) throw new EndedWithoutOutcome("Temporal no longer knows this run");
    if (!(error instanceof WorkflowFailedError)) throw error;
    const { cause } = error;
    let kept: unknown;
    if (cause instanceof ApplicationFailure) kept = cause.details?.[0];
    else if (cause instanceof CancelledFailure)
      kept = (await run.client.callUntilAnswered(() => run.describe(), options)).memo?.[OUTCOME];
    if (kept === undefined) throw withoutOutcome(cause);
    return kept as Outcome;
  }
}

function withoutOutcome(cause: Error | undefined): EndedWithoutOutcome {
  const status = cause?.name === "TerminatedFailure" ? "TERMINATED" : (cause?.name ?? "FAILED");
  const detail = cause?.message ? `: ${cause.message.slice(0, 500)}` : "";
  return new EndedWithoutOutcome(`the run ended in Temporal without an outcome (${status}${detail})`);
}

/** Whether the workflow accepted the update and closed without completing it: Temporal has a failure type for this. */
function closedBeforeAnswer(error: unknown): boolean {
  if (!(error instanceof WorkflowUpdateFailedError)) return false;
  return (error.cause as { type?: unknown } | undefined)?.type === "AcceptedUpdateCompletedWorkflow";
}
