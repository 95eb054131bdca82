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
/** Of our own status lines these tell of something wrong. */
const TROUBLE: ReadonlySet<string> = new Set(["gap", "failure"]);

const PARSERS: { [type: string]: Parser } = {
  agent_run: ownLine,
  text: (event, ts) => spoken("assistant", text(fields(event.part).text), ts),
  reasoning: (event, ts) => spoken("thinking", text(fields(event.part).text), ts),
  thinking: (event, ts) => {
    const part = fields(event.part);
    return spoken("thinking", typeof part.thinking === "string" ? part.thinking : text(part.text), ts);
  },
  assistant: (event, ts) => blocks(event).flatMap((block) => saidBlock(block, ts)),
  user: (event, ts) => blocks(event).flatMap((block) => answeredBlock(block, ts)),
  tool_use: toolUse,
  step_start: (_event, ts) => [{ kind: "system", ts, text: "Starting step…" }],
  step_finish: stepFinish,
  error: (event, ts) => {
    const said = errorText(event.error ?? event.message ?? event);
    return said ? [{ kind: "stderr", ts, text: said }] : [];
  },
};

/**
 * The entries of one log line; none for what a reader need not see.
 *
 * @param line one line as it was logged; anything that is no JSON object is shown as it is.
 * @param ts when it was logged, ISO 8601; every entry carries it.
 */
export function parseStdoutLine(line: string, ts: string): TranscriptEntry[] {
  const trimmed = line.trim();
  if (!trimmed) return [];
  const event = parsed(trimmed);
  if (typeof event !== "object" || event === null) return [plain(trimmed, ts)];
  const type = (event as Fields).type;
  const parser = typeof type === "string" && Object.hasOwn(PARSERS, type) ? PARSERS[type] : undefined;
  return parser ? parser(event as Fields, ts) : [];
}

/** Paperclip hides what looks like a secret in its log, and may take a quotation mark along: it was an event before. */
function plain(line: string, ts: string): TranscriptEntry {
  const type = /^\{"type":"([a-z_]+)"/.exec(line)?.[1] ?? "";
  return { kind: Object.hasOwn(PARSERS, type) ? "system" : "stdout", ts, text: line };
}

function ownLine(event: Fields, ts: string): TranscriptEntry[] {
  const what = text(event.event);
  const message = text(event.message).trim();
  if (what === "chunk") {
    return event.of === "text" ? spoken(event.stream === "stderr" ? "stderr" : "stdout", text(event.text), ts) : [];
  }
  if (what === "session") {
    return [{ kind: "init", ts, model: text(event.model), sessionId: text(event.sessionId) }];
  }
  return message ? [{ kind: TROUBLE.has(what) ? "stderr" : "system", ts, text: message }] : [];
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
      const said = text(state.output).trim() || text(state.description) || text(state.title) || "Done";
      return [call, result(said, failedShell(state)), ...diff(fields(state.metadata).diff, ts)];
    }
    default:
      return [call];
  }
}

/** OpenCode calls a shell command that failed `completed`; its exit code tells. */
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
  const left = lines.length - shown.length;
  return left > 0 ? [...shown, { kind: "diff", ts, changeType: "truncation", text: `${left} more lines` }] : shown;
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

/** Blocks of an `assistant` or `user` event, a spelling of other agents that the existing adapters also knew. */
function blocks(event: Fields): Fields[] {
  const part = fields(event.part);
  const content = ("message" in part ? fields(part.message) : part).content;
  return (Array.isArray(content) ? content : [content]).map(fields);
}

function saidBlock(block: Fields, ts: string): TranscriptEntry[] {
  if (block.type === "text") return spoken("assistant", text(block.text).trim(), ts);
  return block.type === "thinking" ? spoken("thinking", text(block.thinking) || text(block.text), ts) : [];
}

function answeredBlock(block: Fields, ts: string): TranscriptEntry[] {
  if (block.type !== "tool_result") return [];
  const toolUseId = text(block.tool_use_id) || text(block.toolUseId);
  const parts = Array.isArray(block.content) ? block.content.map((part) => text(fields(part).text)) : [];
  const content = typeof block.content === "string" ? block.content : parts.join("");
  if (!content && !toolUseId) return [];
  return [{ kind: "tool_result", ts, toolUseId: toolUseId || "unknown", content, isError: block.is_error === true }];
}

function spoken(kind: "assistant" | "thinking" | "stdout" | "stderr", said: string, ts: string): TranscriptEntry[] {
  return said.trim() ? [{ kind, ts, text: kind === "thinking" ? said.trim() : said }] : [];
}

function errorText(error: unknown): string {
  if (typeof error === "string") return error.trim();
  const found = fields(error);
  const said = [found.message, fields(found.data).message, found.name, found.code]
    .map(text)
    .find((each) => each.trim());
  if (said) return said.trim();
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
