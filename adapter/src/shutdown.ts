/**
 * Whether the host is going down. Paperclip gives its runs up the moment it is told to stop, and only seconds later, if at
 * all, aborts their signals; whatever is handed over in between is lost. So a stop of the process counts as a lost lease.
 */

import { LEASE_LOST } from "./cancel.ts";

let going: AbortController | undefined;

/**
 * Aborted once the process is told to stop.
 *
 * A listener is only added beside one of the host's own: the first listener of a process would keep it from ending.
 */
export function shutdown(): AbortSignal {
  if (going === undefined) {
    const controller = new AbortController();
    going = controller;
    for (const name of ["SIGTERM", "SIGINT"] as const) {
      if (process.listenerCount(name) > 0) process.once(name, () => controller.abort(new Error(LEASE_LOST)));
    }
  }
  return going.signal;
}
