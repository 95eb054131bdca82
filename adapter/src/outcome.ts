/**
 * Fetches the outcome of a run, says that it has arrived, and cancels: what a caller does with a run it holds.
 *
 * The twin of `client/outcome.py`: same Updates, same ids, same meaning of a closed run.
 */

import { randomUUID } from "node:crypto";
import { WorkflowFailedError, WorkflowUpdateFailedError } from "@temporalio/client";
import type { Cancelled, Outcome } from "./contracts.ts";
import {
  away,
  Code,
  codeOf,
  isOutage,
  isUnknownRun,
  once,
  patiently,
  type Run,
  type Talk,
  type Temporal,
} from "./temporal.ts";
import { BackOff, GivenUp } from "./waiting.ts";

/** The run is closed: it takes no updates any more. */
export class Closed extends Error {}
/** No worker answered in time. */
export class NobodyAnswered extends Error {}
/** The run ended without an outcome: terminated, failed in its own code, or Temporal has forgotten it. */
export class EndedWithoutOutcome extends Error {
  /** Temporal's word: `TERMINATED`, `FAILED`, `TIMED_OUT`, `CANCELLED` or `NOT_FOUND`. */
  readonly how: string;
  /** Its input could not be read, so that no step of it ever ran. */
  readonly neverRan: boolean;
  constructor(how: string, message: string, neverRan = false) {
    super(message);
    this.how = how;
    this.neverRan = neverRan;
  }
}

const OUTCOME = "outcome";
const CANCEL = "cancel";
const COLLECTED = "collected";
const CANCELLED_CODE = "cancelled";
/** One round of a long wait; the same Update id goes on waiting in the next one. */
const ROUND_MS = 30_000;
const INPUT_UNREADABLE = "ValidationError";

/**
 * The outcome, as soon as there is one; waits through restarts of workers and of Temporal.
 *
 * Rejects with `EndedWithoutOutcome`, `GivenUp`, or a refusal that will not change.
 */
export async function outcomeOf(temporal: Temporal, run: Run, talk: Talk = {}): Promise<Outcome> {
  try {
    return await ask<Outcome>(temporal, run, OUTCOME, [], { ...talk, id: OUTCOME });
  } catch (error) {
    if (!(error instanceof Closed)) throw error;
  }
  return await resultOfClosed(temporal, run, talk);
}

/** Says that the outcome has arrived, so that the run need not keep it. A run that closed by itself does not mind. */
export async function collected(temporal: Temporal, run: Run, talk: Talk = {}): Promise<void> {
  try {
    await patiently(temporal, () => run.signal(COLLECTED), talk);
  } catch (error) {
    if (codeOf(error) === undefined) throw error;
  }
}

/** Stops the run's agent and says what became of it. May be repeated, also after the end. Rejects as `outcomeOf`. */
export async function cancel(temporal: Temporal, run: Run, reason: string, talk: Talk = {}): Promise<Cancelled> {
  try {
    return await ask<Cancelled>(temporal, run, CANCEL, [{ reason }], talk);
  } catch (error) {
    if (!(error instanceof Closed)) throw error;
  }
  const outcome = await resultOfClosed(temporal, run, talk);
  return {
    outcome: outcome.errorCode === CANCELLED_CODE ? "cancelled" : "ended before",
    stop: outcome.stop ?? { agentStarted: true, agentStopped: true, forced: false, sessionPreserved: false },
    sessionId: outcome.sessionId ?? null,
    failureCode: outcome.errorCode ?? null,
  };
}

/**
 * One Update, asked again until it is answered.
 *
 * @param options.id of this request: whoever asks under the same id gets the same answer, without a new event.
 * @param options.patience for a worker to answer, in milliseconds; without it a worker is waited for.
 *
 * Rejects with `Closed`, `NobodyAnswered`, `GivenUp`, or `WorkflowUpdateFailedError` when refused.
 */
export async function ask<Answer>(
  temporal: Temporal,
  run: Run,
  update: string,
  args: [] | [unknown],
  { id = randomUUID(), patience, ...talk }: Talk & { id?: string; patience?: number },
): Promise<Answer> {
  const { signal, outage } = talk;
  const backOff = new BackOff();
  const until = patience === undefined ? Number.POSITIVE_INFINITY : Date.now() + patience;
  for (;;) {
    const within = Math.min(ROUND_MS, until - Date.now());
    if (within <= 0) throw new NobodyAnswered();
    try {
      const asked = () =>
        args.length === 0
          ? run.executeUpdate<Answer, []>(update, { updateId: id })
          : run.executeUpdate<Answer, [unknown]>(update, { args, updateId: id });
      const answer = await once(temporal, asked, { signal, within });
      outage?.recovered();
      return answer;
    } catch (error) {
      if (error instanceof GivenUp) throw error;
      if (closedMeanwhile(error) || isUnknownRun(error)) throw new Closed();
      if (!isOutage(error, talk)) throw error;
      if (codeOf(error) === Code.DEADLINE_EXCEEDED)
        backOff.reset(); // no worker answered in this round
      else outage?.failed(away(temporal, error));
    }
    await backOff.wait(signal);
    await present(temporal, run, talk);
  }
}

/** Waits until Temporal answers at all: a long wait says nothing of that. Rejects with `Closed` for a forgotten run. */
async function present(temporal: Temporal, run: Run, talk: Talk): Promise<void> {
  try {
    await patiently(temporal, () => run.describe(), talk);
  } catch (error) {
    if (isUnknownRun(error)) throw new Closed();
    throw error;
  }
}

async function resultOfClosed(temporal: Temporal, run: Run, talk: Talk): Promise<Outcome> {
  try {
    return (await patiently(temporal, () => run.result(), talk)) as Outcome;
  } catch (error) {
    throw withoutOutcome(error);
  }
}

function withoutOutcome(error: unknown): unknown {
  if (isUnknownRun(error)) {
    return new EndedWithoutOutcome("NOT_FOUND", "Temporal does not know this run any more");
  }
  if (!(error instanceof WorkflowFailedError)) return error;
  const cause = error.cause;
  const how = cause?.name === "TerminatedFailure" ? "TERMINATED" : (cause?.name ?? "FAILED");
  const type = (cause as { type?: unknown } | undefined)?.type;
  const said = cause?.message ? `: ${cause.message.slice(0, 500)}` : "";
  return new EndedWithoutOutcome(
    how,
    `the run ended in Temporal without an outcome (${how}${said})`,
    type === INPUT_UNREADABLE,
  );
}

/** Temporal answers an update that its workflow accepted and could not end any more with a failure of its own. */
function closedMeanwhile(error: unknown): boolean {
  if (!(error instanceof WorkflowUpdateFailedError)) return false;
  return (error.cause as { type?: unknown } | undefined)?.type === "AcceptedUpdateCompletedWorkflow";
}
