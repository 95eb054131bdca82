/**
 * Turns one line of a run's log into entries of Paperclip's transcript view. The transcript service has made the entries
 * (`agent_runs/web/paperclip_log.py`), in lines `{"type":"agent_run","entries":[…]}`; what is missing is the time. The
 * plugin's own status lines are `{"type":"agent_run","event":…,"message":…}`.
 *
 * Paperclip runs this file in a locked-down Web Worker as CommonJS and remembers results by (line, time): so no imports
 * that are left after bundling, no state, no exceptions.
 */

import type { TranscriptEntry } from "./paperclip.ts";

const OURS = '{"type":"agent_run"';
/** Events of our own status lines that report something wrong. */
const ERROR_EVENTS: readonly unknown[] = ["gap", "warning", "failure"];

/**
 * The entries of one log line; none for a line that is not shown.
 *
 * @param line one line as it was logged; what is not ours is shown as it is.
 * @param ts when it was logged, ISO 8601; every entry carries it.
 */
export function parseStdoutLine(line: string, ts: string): TranscriptEntry[] {
  const text = line.trim();
  if (!text.startsWith(OURS)) return text ? [{ kind: "stdout", ts, text }] : [];
  try {
    const { event, entries, message, model, sessionId } = JSON.parse(text);
    if (Array.isArray(entries)) return entries.map((entry) => ({ ...entry, ts }));
    if (event === "session") return [{ kind: "init", ts, model, sessionId }];
    return message ? [{ kind: ERROR_EVENTS.includes(event) ? "stderr" : "system", ts, text: String(message) }] : [];
  } catch {
    // Paperclip redacts what looks like a secret in its log, and may remove a quotation mark with it
    return [{ kind: "system", ts, text }];
  }
}
