/**
 * Whether the host is going down. Paperclip gives its runs up the moment it is told to stop, and only seconds later, if at
 * all, aborts their signals; whatever is handed over in between is lost. So a stop of the process counts as a lost lease.
 */

import { setMaxListeners } from "node:events";
import { LEASE_LOST } from "./cancel.ts";

const going = new AbortController();
setMaxListeners(0, going.signal); // every execution listens
const heard = new Set<string>();

/**
 * Aborted once the process is told to stop.
 *
 * A listener is only added beside one of the host's own, which may come later than we do: the first listener of a process
 * would keep it from ending.
 */
export function shutdown(): AbortSignal {
  for (const name of ["SIGTERM", "SIGINT"] as const) {
    if (heard.has(name) || process.listenerCount(name) === 0) continue;
    heard.add(name);
    process.once(name, () => going.abort(new Error(LEASE_LOST)));
  }
  return going.signal;
}
