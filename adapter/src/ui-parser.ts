/**
 * Turns one line of a run's log into entries of Paperclip's transcript view. The transcript service has made the entries
 * (`agent_runs/web/paperclip_entries.py`), in lines `{"type":"agent_run","entries":[…]}`; what is missing is the time. The
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
 * @param line one line as it was logged; what is neither ours nor an event of OpenCode's is shown as it is.
 * @param ts when it was logged, ISO 8601; every entry carries it.
 */
export function parseStdoutLine(line: string, ts: string): TranscriptEntry[] {
  const text = line.trim();
  const ours = text.startsWith(OURS);
  try {
    const { event, entries, message, model, sessionId, ...other } = JSON.parse(text);
    if (!ours) return entriesOf(other).map((entry) => ({ ...entry, ts }));
    if (Array.isArray(entries)) return entries.map((entry) => ({ ...entry, ts }));
    if (event === "session") return [{ kind: "init", ts, model, sessionId }];
    return message ? [{ kind: ERROR_EVENTS.includes(event) ? "stderr" : "system", ts, text: String(message) }] : [];
  } catch {
    // Paperclip redacts what looks like a secret in its log, and may remove a quotation mark with it
    return text ? [{ kind: ours ? "system" : "stdout", ts, text }] : [];
  }
}

/** An event of OpenCode's, which the log has in place of Paperclip's own adapter, as its parser shows it; else throws. */
// biome-ignore lint/suspicious/noExplicitAny: an agent wrote it; what has another form throws
function entriesOf({ type, part, error }: any): { kind: string; [field: string]: unknown }[] {
  if (type === "step_start") return [];
  if (type === "error") return [{ kind: "stderr", text: String(error.data?.message ?? error.message ?? error.name) }];
  const text = part.text?.trim();
  if (type === "text") return text ? [{ kind: "assistant", text }] : [];
  if (type === "reasoning") return text ? [{ kind: "thinking", text }] : [];
  if (type === "step_finish") {
    const [reason, { input, output, reasoning = 0, cache }] = [part.reason.trim(), part.tokens];
    const used = { inputTokens: +input, outputTokens: +output + +reasoning, cachedTokens: +cache.read };
    const [errors, costUsd] = [[], +part.cost];
    return [{ kind: "result", text: reason, subtype: reason, isError: false, errors, costUsd, ...used }];
  }
  if (type !== "tool_use") throw new TypeError("no event");
  const { callID, tool, state } = part;
  const [name, toolUseId, content] = [tool, callID, state.output || state.error || ""].map(String);
  const result = { kind: "tool_result", toolUseId, toolName: name, content, isError: state.status === "error" };
  return [{ kind: "tool_call", name, toolUseId, input: state.input }, result];
}
