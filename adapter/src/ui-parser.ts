/**
 * Turns one line of a run's log into entries of Paperclip's transcript view.
 *
 * Paperclip runs this file in a locked-down Web Worker as CommonJS and remembers results by (line, time): so no
 * imports that are left after bundling, no state, no exceptions. Events: OpenCode 1.18 `run --format json`, older
 * spellings that the existing adapters knew, and this package's own status lines (`{"type":"agent_run", …}`).
 */

import type { TranscriptEntry } from "./paperclip.ts";

type Fields = { [name: string]: unknown };
type Parser = (event: Fields, ts: string) => TranscriptEntry[];

const DIFF_LINES = 200;
/** Events of our own status lines that report something wrong. */
const ERROR_EVENTS: ReadonlySet<string> = new Set(["gap", "failure"]);

const PARSERS: { [type: string]: Parser } = {
  agent_run: statusLine,
  text: (event, ts) => textEntries("assistant", text(fields(event.part).text), ts),
  reasoning: (event, ts) => textEntries("thinking", text(fields(event.part).text), ts),
  thinking: (event, ts) => {
    const part = fields(event.part);
    return textEntries("thinking", typeof part.thinking === "string" ? part.thinking : text(part.text), ts);
  },
  assistant: (event, ts) => blocks(event).flatMap((block) => assistantBlock(block, ts)),
  user: (event, ts) => blocks(event).flatMap((block) => userBlock(block, ts)),
  tool_use: toolUse,
  step_start: (_event, ts) => [{ kind: "system", ts, text: "Starting step…" }],
  step_finish: stepFinish,
  error: (event, ts) => {
    const content = errorText(event.error ?? event.message ?? event);
    return content ? [{ kind: "stderr", ts, text: content }] : [];
  },
};

/**
 * The entries of one log line; none for a line that is not shown.
 *
 * @param line one line as it was logged; anything that is not a JSON object is shown as it is.
 * @param ts when it was logged, ISO 8601; every entry carries it.
 */
export function parseStdoutLine(line: string, ts: string): TranscriptEntry[] {
  const trimmed = line.trim();
  if (!trimmed) return [];
  const event = parsed(trimmed);
  if (typeof event !== "object" || event === null) return [unparsed(trimmed, ts)];
  const type = (event as Fields).type;
  const parser = typeof type === "string" && Object.hasOwn(PARSERS, type) ? PARSERS[type] : undefined;
  return parser ? parser(event as Fields, ts) : [];
}

/** Paperclip redacts what looks like a secret in its log, and may remove a quotation mark with it: the line was an event. */
function unparsed(line: string, ts: string): TranscriptEntry {
  const type = /^\{"type":"([a-z_]+)"/.exec(line)?.[1] ?? "";
  return { kind: Object.hasOwn(PARSERS, type) ? "system" : "stdout", ts, text: line };
}

function statusLine(event: Fields, ts: string): TranscriptEntry[] {
  const what = text(event.event);
  const message = text(event.message).trim();
  if (what === "chunk") {
    return event.of === "text"
      ? textEntries(event.stream === "stderr" ? "stderr" : "stdout", text(event.text), ts)
      : [];
  }
  if (what === "session") {
    return [{ kind: "init", ts, model: text(event.model), sessionId: text(event.sessionId) }];
  }
  return message ? [{ kind: ERROR_EVENTS.has(what) ? "stderr" : "system", ts, text: message }] : [];
}

function toolUse(event: Fields, ts: string): TranscriptEntry[] {
  const part = fields(event.part);
  const state = fields(part.state);
  const name = text(part.tool) || text(part.type) || "tool";
  const toolUseId = [part.callID, part.id, part.toolUseId].map(text).find(Boolean) ?? name;
  const call: TranscriptEntry = { kind: "tool_call", ts, name, input: state.input ?? state.description, toolUseId };
  const result = (content: string, isError: boolean): TranscriptEntry => ({
    ...{ kind: "tool_result", ts, toolUseId, toolName: name },
    ...{ content, isError },
  });
  switch (state.status) {
    case "error":
      return [call, result(text(state.error).trim() || "Tool error", true)];
    case "completed":
    case "done": {
      const content = text(state.output).trim() || text(state.description) || text(state.title) || "Done";
      return [call, result(content, failedShell(state)), ...diff(fields(state.metadata).diff, ts)];
    }
    default:
      return [call];
  }
}

/** OpenCode reports a shell command that failed as `completed`; its exit code shows the failure. */
function failedShell(state: Fields): boolean {
  const { exit } = fields(state.metadata);
  return typeof exit === "number" && exit !== 0;
}

function diff(patch: unknown, ts: string): TranscriptEntry[] {
  if (typeof patch !== "string" || !patch.trim()) return [];
  const lines = patch.replace(/\n$/, "").split("\n");
  const shown: TranscriptEntry[] = [];
  let inHunk = false;
  for (const line of lines.slice(0, DIFF_LINES)) {
    inHunk ||= line.startsWith("@@");
    shown.push({ kind: "diff", ts, changeType: changeOf(line, inHunk), text: line });
  }
  const omitted = lines.length - shown.length;
  return omitted > 0
    ? [...shown, { kind: "diff", ts, changeType: "truncation", text: `${omitted} more lines` }]
    : shown;
}

function changeOf(line: string, inHunk: boolean): "add" | "remove" | "context" | "hunk" | "file_header" {
  if (!inHunk) return "file_header";
  if (line.startsWith("@@")) return "hunk";
  if (line.startsWith("+")) return "add";
  return line.startsWith("-") ? "remove" : "context";
}

function stepFinish(event: Fields, ts: string): TranscriptEntry[] {
  const part = fields(event.part);
  const tokens = fields(part.tokens);
  const reason = text(part.reason);
  return [
    {
      kind: "result",
      ts,
      text: text(part.message) || `Step finished: ${reason || "done"}`,
      inputTokens: number(tokens.input),
      outputTokens: number(tokens.output) + number(tokens.reasoning),
      cachedTokens: number(fields(tokens.cache).read),
      costUsd: number(part.cost),
      subtype: reason || "step_finish",
      isError: false,
      errors: [],
    },
  ];
}

/** Blocks of an `assistant` or `user` event: events of other agents that the existing adapters also read. */
function blocks(event: Fields): Fields[] {
  const part = fields(event.part);
  const content = ("message" in part ? fields(part.message) : part).content;
  return (Array.isArray(content) ? content : [content]).map(fields);
}

function assistantBlock(block: Fields, ts: string): TranscriptEntry[] {
  if (block.type === "text") return textEntries("assistant", text(block.text).trim(), ts);
  return block.type === "thinking" ? textEntries("thinking", text(block.thinking) || text(block.text), ts) : [];
}

function userBlock(block: Fields, ts: string): TranscriptEntry[] {
  if (block.type !== "tool_result") return [];
  const toolUseId = text(block.tool_use_id) || text(block.toolUseId);
  const parts = Array.isArray(block.content) ? block.content.map((part) => text(fields(part).text)) : [];
  const content = typeof block.content === "string" ? block.content : parts.join("");
  if (!content && !toolUseId) return [];
  return [{ kind: "tool_result", ts, toolUseId: toolUseId || "unknown", content, isError: block.is_error === true }];
}

function textEntries(
  kind: "assistant" | "thinking" | "stdout" | "stderr",
  content: string,
  ts: string,
): TranscriptEntry[] {
  return content.trim() ? [{ kind, ts, text: kind === "thinking" ? content.trim() : content }] : [];
}

function errorText(error: unknown): string {
  if (typeof error === "string") return error.trim();
  const found = fields(error);
  const content = [found.message, fields(found.data).message, found.name, found.code]
    .map(text)
    .find((each) => each.trim());
  if (content) return content.trim();
  return Object.keys(found).length > 0 ? JSON.stringify(found) : "";
}

function parsed(line: string): unknown {
  try {
    return JSON.parse(line);
  } catch {
    return undefined;
  }
}

function fields(value: unknown): Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Fields) : {};
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function number(value: unknown): number {
  return typeof value === "number" && Number.isFinite(value) ? value : 0;
}
