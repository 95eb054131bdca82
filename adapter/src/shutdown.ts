/**
 * Whether the host is going down. Paperclip gives its runs up the moment it is told to stop, and only seconds later, if at
 * all, aborts their signals; whatever is handed over in between is lost. So a stop of the process counts as a lost lease.
 *
 * Whatever is returned before Paperclip has written down that it gave a run up counts, though: the run is then a plain
 * failure, whose task is held. So nothing is returned until Paperclip has let go, or the process is gone.
 * Source: Paperclip 2026.916.1, observed.
 */

import { setMaxListeners } from "node:events";
import { LEASE_LOST } from "./cancel.ts";
import { sleep } from "./waiting.ts";

/** Paperclip's own drain takes 5 s; a process that lives so long after its stop goes on living. */
const LET_GO_MS = 60_000;

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

/** Waits until the host lets go of a run itself: its signal is aborted. Keeps no process alive. */
export async function letGo(host: AbortSignal | undefined, within: number = LET_GO_MS): Promise<void> {
  await sleep(within, host).catch(() => undefined);
}
