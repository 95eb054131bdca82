/**
 * What an aborted run means, how long its cancel may take, and whether Paperclip's process is shutting down.
 *
 * Paperclip's signal has two meanings. "Legacy controller lease lost": this server no longer owns the run, because it
 * shuts down, was suspended, or lost its database. That alone must not stop anything, because the run can be joined later.
 * Every other reason is a person's or a rule's request to stop the agent; Paperclip waits 60 s for an answer.
 *
 * Paperclip gives its runs up the moment it is asked to stop, and aborts their signals only seconds later, if at all; a
 * result that is returned in between is lost. So a stop of the process counts as a lost lease.
 *
 * A result that is returned before Paperclip has recorded that it gave a run up counts, however: the run is then a plain
 * failure, and its task is held. So nothing is returned until Paperclip has released the run, or the process has ended.
 * Source: Paperclip 2026.916.1, observed.
 */

import { setMaxListeners } from "node:events";
import { objectOf } from "./paperclip.ts";

export const LEASE_LOST = "Legacy controller lease lost";
/** Of the 60 s that Paperclip waits for the answer to a cancel; the rest is for returning the result. */
export const CANCEL_ANSWER_MS = 55_000;
/** Beyond the agent's own grace: for a worker to come back and for the pods to be deleted. */
const CONFIRMATION_MARGIN_MS = 2 * 60_000;
/** Seconds between SIGTERM and SIGKILL of an agent that does not set them. */
const GRACE = 60;
/** Milliseconds; Node takes a longer timer for none. */
const TIMER_LIMIT = 2 ** 31 - 1;

/** For Paperclip to release a run. Its own drain takes 5 s; a process that still runs so long after its stop keeps running. */
export const RELEASE_TIMEOUT_MS = 60_000;

const stopping = new AbortController();
setMaxListeners(0, stopping.signal); // every execution adds a listener
const listeningTo = new Set<string>();

export type Abort = { kind: "cancel"; reason: string } | { kind: "lease lost" };

export function abortOf(signal: AbortSignal | undefined): Abort | undefined {
  if (!signal?.aborted) return undefined;
  const { reason } = signal;
  const message = reason instanceof Error ? reason.message : typeof reason === "string" ? reason : "";
  if (message === LEASE_LOST) return { kind: "lease lost" };
  return { kind: "cancel", reason: message.slice(0, 500) || "Run cancelled" };
}

/** Milliseconds for a worker to confirm that the agent has stopped; the request itself stays in the run's history. */
export function confirmationTimeout(config: unknown): number {
  const { graceSec } = objectOf(config);
  const grace = typeof graceSec === "number" && graceSec >= 0 ? graceSec : GRACE; // the worker refuses a wrong one
  return Math.min(CANCEL_ANSWER_MS + grace * 1000 + CONFIRMATION_MARGIN_MS, TIMER_LIMIT);
}

/**
 * Aborted once the process is asked to stop.
 *
 * A listener is added only when the host has one, which may come later than this module: the first listener of a process
 * would keep it from ending.
 */
export function shutdownSignal(): AbortSignal {
  for (const name of ["SIGTERM", "SIGINT"] as const) {
    if (listeningTo.has(name) || process.listenerCount(name) === 0) continue;
    listeningTo.add(name);
    process.once(name, () => stopping.abort(new Error(LEASE_LOST)));
  }
  return stopping.signal;
}
