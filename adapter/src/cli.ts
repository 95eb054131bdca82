/**
 * Shows a line of a run's log in a terminal, as `paperclipai` does for its own adapters.
 *
 * Paperclip's CLI has a fixed list of formatters today and shows external types as plain text; this one is for
 * scripts, and for a Paperclip that loads formatters of external adapters.
 */

import type { TranscriptEntry } from "./paperclip.ts";
import { parseStdoutLine } from "./ui-parser.ts";

const TOOL_OUTPUT_LIMIT = 200;
const RESULT_KINDS: ReadonlySet<string> = new Set(["tool_result", "diff"]);

/** One line for people; "" for an event that is not shown. With `debug` steps, tools and unknown events are shown. */
export function formatEvent(line: string, debug = false): string {
  const entries = parseStdoutLine(line, "");
  const shown = entries.map((entry) => formatted(entry, entries, debug)).filter(Boolean);
  return shown.length > 0 || !debug || entries.length > 0 || !line.trim() ? shown.join("\n") : `[${typeOf(line)}]`;
}

export const cliAdapter = {
  type: "opencode_k8s",
  formatStdoutEvent(line: string, debug: boolean): void {
    const shown = formatEvent(line, debug);
    if (shown) process.stdout.write(`${clean(shown)}\n`);
  },
};

function formatted(entry: TranscriptEntry, all: readonly TranscriptEntry[], debug: boolean): string {
  switch (entry.kind) {
    case "assistant":
    case "stdout":
      return entry.text.trim();
    case "thinking":
    case "system":
      return debug ? `[${entry.kind}] ${entry.text.trim()}` : "";
    case "stderr":
      return `✗ ${entry.text.trim()}`;
    case "init":
      return debug ? `[session] ${entry.sessionId} ${entry.model}`.trim() : "";
    case "tool_call":
      return debug && !all.some((other) => RESULT_KINDS.has(other.kind)) ? `[tool:${entry.name}]` : "";
    case "tool_result":
      return toolResult(entry, debug);
    case "result":
      return stepEnd(entry);
    default:
      return "";
  }
}

function toolResult(entry: TranscriptEntry & { kind: "tool_result" }, debug: boolean): string {
  const content = entry.content.trim();
  if (!debug) return entry.isError && content ? `⚠ ${content}` : "";
  return `[tool:${entry.toolName ?? "tool"}] ${entry.isError ? `✗ ${content}` : `→ ${content.slice(0, TOOL_OUTPUT_LIMIT)}`}`;
}

function stepEnd(entry: TranscriptEntry & { kind: "result" }): string {
  const tokens = entry.inputTokens + entry.cachedTokens + entry.outputTokens;
  const counters = [tokens > 0 ? `tokens=${tokens}` : "", entry.costUsd > 0 ? `cost=$${entry.costUsd.toFixed(4)}` : ""];
  const numbers = counters.filter(Boolean).join(", ");
  return `[step_finish] ${entry.subtype}${numbers ? ` (${numbers})` : ""}`;
}

function typeOf(line: string): string {
  try {
    const event = JSON.parse(line) as { type?: unknown } | null;
    return typeof event?.type === "string" ? event.type : "";
  } catch {
    return "";
  }
}

/** Agent output is hostile: no control characters reach the terminal. */
function clean(shown: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is removed
  return shown.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, "\ufffd");
}
