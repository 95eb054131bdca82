/**
 * What a caller does with a run after attaching: fetch its outcome, signal that it was collected, cancel.
 *
 * Same rules as `agent_runs/client/outcome.py`: same Updates, same ids, same meaning of a closed run.
 */

import { randomUUID } from "node:crypto";
import { WorkflowFailedError, WorkflowUpdateFailedError } from "@temporalio/client";
import { ApplicationFailure, CancelledFailure } from "@temporalio/common";
import type { Outcome } from "../generated/contracts.ts";
import {
  type CallOptions,
  Code,
  callOnce,
  callUntilAnswered,
  codeOf,
  isOutage,
  isUnknownRun,
  outageMessage,
  type Run,
  type Temporal,
} from "./temporal.ts";
import { Aborted, BackOff, withAbort } from "./waits.ts";

/** The run is closed: it accepts no updates. */
export class RunClosed extends Error {}
/** No worker answered the update in time. */
export class UpdateTimedOut extends Error {}
/** The run closed without an outcome: terminated, failed in its own code, or deleted by Temporal. */
export class EndedWithoutOutcome extends Error {
  /** The workflow's input could not be read, so no activity of it ever ran. */
  readonly neverRan: boolean;
  constructor(message: string, neverRan = false) {
    super(message);
    this.neverRan = neverRan;
  }
}

/** The outcome of a run after a request to cancel it; its error code is `cancelled`, unless it had ended before. */
export type Cancelled = Outcome;

/** The update for the outcome; also the memo key of the outcome of a run that closed as Canceled. */
const OUTCOME = "outcome";
const COLLECTED = "collected";
/** One request of a long wait; the next one waits for the same update id. */
const UPDATE_ROUND_MS = 30_000;
const INPUT_UNREADABLE = "invalid_request";

/**
 * The outcome, as soon as there is one; waits through restarts of workers and of Temporal.
 *
 * Rejects with `EndedWithoutOutcome`, `Aborted`, or an error that a retry does not fix.
 */
export async function fetchOutcome(temporal: Temporal, run: Run, options: CallOptions = {}): Promise<Outcome> {
  try {
    return await executeUpdate<Outcome>(temporal, run, OUTCOME, [], { ...options, id: OUTCOME });
  } catch (error) {
    if (!(error instanceof RunClosed)) throw error;
  }
  return await resultOfClosed(temporal, run, options);
}

/** Signals that the outcome was collected, so that the run need not keep it. Does nothing for a closed run. */
export async function signalCollected(temporal: Temporal, run: Run, options: CallOptions = {}): Promise<void> {
  try {
    await callUntilAnswered(temporal, () => run.signal(COLLECTED), options);
  } catch (error) {
    if (codeOf(error) === undefined) throw error;
  }
}

/**
 * Stops the run's agent and reports how it ended. May be repeated, also after the end: the first reason counts.
 *
 * Once Temporal has answered the request it is in the run's history, so it needs no worker and survives every restart.
 * Therefore the request itself is never aborted. Rejects as `fetchOutcome`.
 */
export async function cancel(
  temporal: Temporal,
  run: Run,
  reason: string,
  options: CallOptions = {},
): Promise<Cancelled> {
  const request = callUntilAnswered(temporal, () => temporal.client.requestCancel(run, reason), {
    ...options,
    signal: undefined,
  }).catch((error) => {
    if (!isUnknownRun(error)) throw error; // it is closed
  });
  await withAbort(request, options.signal);
  return await fetchOutcome(temporal, run, options);
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
  temporal: Temporal,
  run: Run,
  update: string,
  args: [] | [unknown],
  { id = randomUUID(), timeout, ...options }: CallOptions & { id?: string; timeout?: number },
): Promise<Answer> {
  const { signal, outage } = options;
  const backOff = new BackOff();
  const until = timeout === undefined ? Number.POSITIVE_INFINITY : Date.now() + timeout;
  for (;;) {
    const roundTimeout = Math.min(UPDATE_ROUND_MS, until - Date.now());
    if (roundTimeout <= 0) throw new UpdateTimedOut();
    try {
      const call = () => run.executeUpdate<Answer, [unknown]>(update, { args: args as [unknown], updateId: id });
      const answer = await callOnce(temporal, call, { signal, timeout: roundTimeout });
      outage?.recovered();
      return answer;
    } catch (error) {
      if (error instanceof Aborted) throw error;
      if (closedBeforeAnswer(error) || isUnknownRun(error)) throw new RunClosed();
      if (!isOutage(error, options)) throw error;
      if (codeOf(error) === Code.DEADLINE_EXCEEDED)
        backOff.reset(); // no worker answered in this round
      else outage?.failed(outageMessage(temporal, error));
    }
    await backOff.wait(signal);
    await waitUntilReachable(temporal, run, options);
  }
}

/** Waits until Temporal answers: an unanswered update does not show that. Rejects with `RunClosed` for a deleted run. */
async function waitUntilReachable(temporal: Temporal, run: Run, options: CallOptions): Promise<void> {
  try {
    await callUntilAnswered(temporal, () => run.describe(), options);
  } catch (error) {
    if (isUnknownRun(error)) throw new RunClosed();
    throw error;
  }
}

async function resultOfClosed(temporal: Temporal, run: Run, options: CallOptions): Promise<Outcome> {
  try {
    return (await callUntilAnswered(temporal, () => run.result(), options)) as Outcome;
  } catch (error) {
    const outcome = await outcomeBehind(error, temporal, run, options);
    if (outcome !== undefined) return outcome;
    throw withoutOutcome(error);
  }
}

/** The outcome of a run that closed as Failed, in the failure's details, or as Canceled, in the memo. */
async function outcomeBehind(
  error: unknown,
  temporal: Temporal,
  run: Run,
  options: CallOptions,
): Promise<Outcome | undefined> {
  if (!(error instanceof WorkflowFailedError)) return undefined;
  const { cause } = error;
  if (cause instanceof ApplicationFailure) return cause.details?.[0] as Outcome | undefined;
  if (!(cause instanceof CancelledFailure)) return undefined;
  const { memo } = await callUntilAnswered(temporal, () => run.describe(), options);
  return memo?.[OUTCOME] as Outcome | undefined;
}

function withoutOutcome(error: unknown): unknown {
  if (isUnknownRun(error)) return new EndedWithoutOutcome("Temporal no longer knows this run");
  if (!(error instanceof WorkflowFailedError)) return error;
  const { cause } = error;
  const status = cause?.name === "TerminatedFailure" ? "TERMINATED" : (cause?.name ?? "FAILED");
  const type = (cause as { type?: unknown } | undefined)?.type;
  const detail = cause?.message ? `: ${cause.message.slice(0, 500)}` : "";
  const message = `the run ended in Temporal without an outcome (${status}${detail})`;
  return new EndedWithoutOutcome(message, type === INPUT_UNREADABLE);
}

/** Whether the workflow accepted the update and closed without completing it: Temporal has a failure type for this. */
function closedBeforeAnswer(error: unknown): boolean {
  if (!(error instanceof WorkflowUpdateFailedError)) return false;
  return (error.cause as { type?: unknown } | undefined)?.type === "AcceptedUpdateCompletedWorkflow";
}
