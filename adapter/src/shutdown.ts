/**
 * Whether Paperclip's process is shutting down.
 *
 * Paperclip gives its runs up the moment it is asked to stop, and aborts their signals only seconds later, if at all; a
 * result that is returned in between is lost. So a stop of the process counts as a lost lease.
 *
 * A result that is returned before Paperclip has recorded that it gave a run up counts, however: the run is then a plain
 * failure, and its task is held. So nothing is returned until Paperclip has released the run, or the process has ended.
 * Source: Paperclip 2026.916.1, observed.
 */

import { setMaxListeners } from "node:events";
import { LEASE_LOST } from "./cancel.ts";

/** For Paperclip to release a run. Its own drain takes 5 s; a process that still runs so long after its stop keeps running. */
export const RELEASE_TIMEOUT_MS = 60_000;

const stopping = new AbortController();
setMaxListeners(0, stopping.signal); // every execution adds a listener
const listeningTo = new Set<string>();

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
