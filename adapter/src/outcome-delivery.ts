/**
 * Delivers an outcome to Paperclip, and releases the run that keeps it only once Paperclip has stored it.
 *
 * A run keeps its outcome until it gets the signal `collected`. Sent too early, a Paperclip that dies before it has
 * stored the result loses the outcome; never sent, the task's next wake would get the old outcome instead of a run. So
 * the signal is sent once Paperclip's own record of the run names our workflow in its result, which only a stored result
 * does; and a wake that finds a finished run first asks whether that outcome has been stored before.
 * A Paperclip that does not answer counts as having stored what was returned to it.
 *
 * Paperclip is not asked at the moment of the return: its authentication of a run's token locks the run's task and then
 * the run, while ending the run locks them the other way round, and PostgreSQL ends one of the two: a run that succeeded
 * was then `failed`. Six requests at the return gave 12 deadlocks in 12 ends, the same requests 2.5 s later none.
 * Source: Paperclip 2026.916.1, observed.
 */

import { shutdownSignal } from "./abort.ts";
import { signalCollected } from "./outcome.ts";
import { objectOf } from "./paperclip.ts";
import { OPEN_RUN_STATES, PaperclipApi } from "./paperclip-api.ts";
import type { Run } from "./temporal.ts";
import { BackOff, sleep, withLinkedSignal } from "./waits.ts";

/** From the return until Paperclip is first asked: it ends a run within half a second, on a busy machine in one or two. */
export const FIRST_REQUEST_MS = 3000;
/** Between two requests, the second time twice as long, and so on. */
const REQUEST_INTERVAL_MS = 2500;
const LONGEST_INTERVAL_MS = 10_000;
/** Paperclip's own limit for its work after a run has returned, and a margin. */
const STORED_TIMEOUT_MS = 90_000;
const UNREACHABLE_TIMEOUT_MS = 15_000;

/** What identifies a stored result. */
interface Delivery {
  runId: string;
  workflowRunId: string;
  token?: string;
}

/** A returned outcome of which it is not yet known whether Paperclip has stored it, by workflow run. */
const pending = new Map<string, { hurry: AbortController; delivered: Promise<boolean> }>();

/**
 * Signals the run that its outcome was collected, once its result is stored. Never throws.
 *
 * @param runId Paperclip's id of the wake that gets the outcome.
 */
export function signalOnceStored(run: Run, runId: string, token?: string): void {
  const { workflowRunId } = run;
  const hurry = new AbortController();
  const delivered = waitUntilStored({ runId, workflowRunId, token }, hurry.signal)
    .catch(() => false)
    .then(async (stored) => {
      if (stored) await signalCollected(run).catch(() => undefined);
      return stored;
    });
  pending.set(workflowRunId, { hurry, delivered });
  void delivered.then(() => pending.delete(workflowRunId));
}

/**
 * Whether one of these wakes has got the outcome of this workflow run already. False when Paperclip does not answer.
 *
 * A later wake of the task shows that Paperclip has ended the run, so a delivery that waits is then completed at once.
 */
export async function wasDelivered(runIds: readonly string[], workflowRunId: string, token?: string): Promise<boolean> {
  const delivery = pending.get(workflowRunId);
  if (delivery !== undefined) {
    delivery.hurry.abort();
    return await delivery.delivered;
  }
  for (const runId of [...runIds].reverse()) {
    if ((await recordState({ runId, workflowRunId, token })) === "stored") return true;
  }
  return false;
}

/** Waits for Paperclip's record. False: Paperclip ended the run otherwise, or is shutting down; the run keeps its outcome. */
async function waitUntilStored(delivery: Delivery, hurry: AbortSignal): Promise<boolean> {
  const began = Date.now();
  const pause = withLinkedSignal([hurry, shutdownSignal()], ({ signal }) => sleep(FIRST_REQUEST_MS, signal));
  await pause.catch(() => undefined);
  const backOff = new BackOff(REQUEST_INTERVAL_MS, LONGEST_INTERVAL_MS);
  let lastAnswer = Date.now();
  for (;;) {
    const state = await recordState(delivery);
    if (state === "stored" || state === "unknown run") return true;
    if (state === "ended otherwise") return false;
    const now = Date.now();
    if (state === "open") lastAnswer = now;
    if (now - lastAnswer > UNREACHABLE_TIMEOUT_MS) return true;
    if (now - began > STORED_TIMEOUT_MS) return false;
    await backOff.wait(shutdownSignal());
  }
}

type RecordState = "stored" | "ended otherwise" | "open" | "unknown run" | "no answer";

async function recordState({ runId, workflowRunId, token }: Delivery): Promise<RecordState> {
  const { status, body } = await new PaperclipApi(token).run(runId);
  if (status === 404 || status === 401 || status === 403) return "unknown run";
  if (status !== 200) return "no answer";
  if (OPEN_RUN_STATES.has(body.status)) return "open";
  return objectOf(body.resultJson).workflowRunId === workflowRunId ? "stored" : "ended otherwise";
}
