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

import { signalCollected } from "./outcome.ts";
import { OPEN_RUN_STATES, objectOf, PaperclipApi, paperclipApiUrl } from "./paperclip-api.ts";
import { shutdownSignal } from "./shutdown.ts";
import type { Run, Temporal } from "./temporal.ts";
import { BackOff, sleep, withLinkedSignal } from "./waits.ts";

/** From the return until Paperclip is first asked: it ends a run within half a second, on a busy machine in one or two. */
export const FIRST_REQUEST_MS = 3000;
/** Between two requests, the second time twice as long, and so on. */
const REQUEST_INTERVAL_MS = 2500;
const LONGEST_INTERVAL_MS = 10_000;
/** Paperclip's own limit for its work after a run has returned, and a margin. */
const STORED_TIMEOUT_MS = 90_000;
const UNREACHABLE_TIMEOUT_MS = 15_000;
/** Without a Paperclip to ask: for the signal to arrive before the result is returned. */
const SIGNAL_TIMEOUT_MS = 5000;

/** What identifies a stored result. */
export interface Delivery {
  /** Paperclip's id of the wake that gets the outcome. */
  runId: string;
  workflowRunId: string;
  token?: string;
}

/** A returned outcome of which it is not yet known whether Paperclip has stored it, by workflow run. */
const pending = new Map<string, { hurry: AbortController; delivered: Promise<boolean> }>();

/** Signals the run that its outcome was collected, now or when its result is stored. Returns soon; never rejects. */
export async function signalOnceStored(temporal: Temporal, run: Run, delivery: Delivery): Promise<void> {
  const api = apiFor(delivery.token);
  const signal = () => signalCollected(temporal, run).catch(() => undefined);
  if (api === undefined) {
    await Promise.race([signal(), sleep(SIGNAL_TIMEOUT_MS)]);
    return;
  }
  const hurry = new AbortController();
  const delivered = deliver(api, delivery, signal, hurry).catch(() => false);
  pending.set(delivery.workflowRunId, { hurry, delivered });
  void delivered.then(() => pending.delete(delivery.workflowRunId));
}

/** Sends the signal once the result is stored. False: it was not. */
async function deliver(
  api: PaperclipApi,
  delivery: Delivery,
  signal: () => Promise<void>,
  hurry: AbortController,
): Promise<boolean> {
  await withLinkedSignal([hurry.signal, shutdownSignal()], ({ signal: early }) => sleep(FIRST_REQUEST_MS, early)).catch(
    () => undefined,
  );
  const stored = await waitUntilStored(api, delivery);
  if (stored) await signal();
  return stored;
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
  const api = apiFor(token);
  if (api === undefined) return false;
  for (const runId of [...runIds].reverse()) {
    if ((await recordState(api, { runId, workflowRunId })) === "stored") return true;
  }
  return false;
}

/** Waits for Paperclip's record. False: Paperclip ended the run otherwise, or is shutting down; the run keeps its outcome. */
async function waitUntilStored(api: PaperclipApi, delivery: Delivery): Promise<boolean> {
  const began = Date.now();
  const backOff = new BackOff(REQUEST_INTERVAL_MS, LONGEST_INTERVAL_MS);
  let lastAnswer = began;
  for (;;) {
    const state = await recordState(api, delivery);
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

async function recordState(api: PaperclipApi, { runId, workflowRunId }: Delivery): Promise<RecordState> {
  const { status, body } = await api.request(`/heartbeat-runs/${encodeURIComponent(runId)}`);
  if (status === 404 || status === 401 || status === 403) return "unknown run";
  if (status !== 200) return "no answer";
  if (OPEN_RUN_STATES.has(body.status)) return "open";
  return objectOf(body.resultJson).workflowRunId === workflowRunId ? "stored" : "ended otherwise";
}

function apiFor(token: string | undefined): PaperclipApi | undefined {
  const base = paperclipApiUrl(process.env);
  return base === undefined ? undefined : new PaperclipApi(base, token);
}
