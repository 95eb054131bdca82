/**
 * Turns one line of a run's log into entries of Paperclip's transcript view. The transcript service has made the lines
 * (`agent_runs/web/paperclip_log.py`): events of OpenCode's form, and text. Our own status lines begin with a mark.
 *
 * Paperclip runs this file in a locked-down Web Worker as CommonJS and remembers results by (line, time): so no imports
 * that are left after bundling, no state, no exceptions.
 */

import type { TranscriptEntry } from "./paperclip.ts";

const OURS = "[agent-runs] ";

/**
 * The entries of one log line; none for a line that is not shown.
 *
 * @param line one line as it was logged; what is neither ours nor an event is shown as it is.
 * @param ts when it was logged, ISO 8601; every entry carries it.
 */
export function parseStdoutLine(line: string, ts: string): TranscriptEntry[] {
  const text = line.trim();
  if (text.startsWith(OURS)) return [{ kind: "system", ts, text: text.slice(OURS.length) }];
  try {
    return entriesOf(JSON.parse(text)).map((entry) => ({ ...entry, ts }));
  } catch {
    // Paperclip redacts what looks like a secret in its log, and may remove a quotation mark with it
    return text ? [{ kind: "stdout", ts, text }] : [];
  }
}

/** The entries of an event, as Paperclip's own parser shows it; else throws. */
// biome-ignore lint/suspicious/noExplicitAny: an agent wrote it; what has another form throws
function entriesOf({ type, part, error }: any): { kind: string; [field: string]: unknown }[] {
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
  const call = { kind: "tool_call", name, toolUseId, input: state.input };
  if (state.status === "running") return [call];
  return [call, { kind: "tool_result", toolUseId, toolName: name, content, isError: state.status === "error" }];
}
