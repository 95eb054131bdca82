/**
 * A run's log as plain text, for a Paperclip whose transcript view loads no parser of an external adapter and would show
 * JSON lines as they are.
 *
 * Agent output is hostile: what is shown of it is bounded, has no ANSI codes, control or direction characters, and no line
 * of it begins like one of ours or of Paperclip's. OpenCode's own INFO lines are left out. The transcript has everything.
 */

import type { TranscriptEntry } from "./paperclip.ts";
import { parseStdoutLine } from "./ui-parser.ts";

/** Our own lines begin so. */
export const OWN_MARK = "[agent-runs]";
/** Beginnings of lines that an agent must not write: ours and Paperclip's. */
const MARKS = [OWN_MARK, "[paperclip]"];
/** Status lines whose content is in other lines or in Paperclip's own view. */
const UNSHOWN_STATUSES: ReadonlySet<string> = new Set(["session"]);
const FAULT_STATUSES: ReadonlySet<string> = new Set(["gap", "failure"]);

/** Characters of a line that are parsed. */
const PARSED_LIMIT = 512 * 1024;
const TEXT = { characters: 12_000, lines: 400 };
const THINKING = { characters: 4000, lines: 100 };
const RESULT = { characters: 2000, lines: 15 };
const RAW = { characters: 1000, lines: 15 };
const SUBJECT_LIMIT = 300;
const STATUS_LIMIT = 2000;

// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is removed
const ANSI = /\u001b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[@-Z\\-_])/g;
const BREAKS = /\r\n|[\r\v\f\u0085\u2028\u2029]/g;
/** Control characters except tab and LF, invisible characters, and those that turn the direction of text. */
const HIDDEN = /(?![\t\n])[\p{Cc}\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\u{e0000}-\u{e007f}]/gu;
const HALF_CHARACTERS = /\p{Cs}/gu;
/** What may stand between the characters of a mark without being seen. */
const UNSEEN = /[\p{Cf}\p{Mn}]/gu;
/** OpenCode's log lines that report nothing wrong; both of its formats. */
const ORDINARY_LOG = /^(?:timestamp=\S+ +level=(?:DEBUG|INFO)\b|(?:DEBUG|INFO) +\d{4}-\d\d-\d\dT)/;
/** Arguments that show what a tool call is about, the most useful first. */
const SUBJECTS = ["command", "filePath", "path", "pattern", "url", "description", "query", "name"];
/** Reasons for which a step ends as it should. */
const ORDINARY_ENDS: ReadonlySet<string> = new Set(["stop", "tool-calls", "step_finish", "end_turn", "unknown"]);

type Stream = "stdout" | "stderr";
type Fields = { [name: string]: unknown };

/** Text for one or more calls of the log; several lines are possible. */
export interface Shown {
  stream: Stream;
  text: string;
}

/** One of our own status lines as a sentence; undefined for one that is not shown. */
export function readableStatus(event: string, message: string): Shown | undefined {
  const sentence = oneLine(message, STATUS_LIMIT);
  if (!sentence || UNSHOWN_STATUSES.has(event)) return undefined;
  return { stream: FAULT_STATUSES.has(event) ? "stderr" : "stdout", text: `${OWN_MARK} ${sentence}` };
}

/** One line of an agent as a person reads it; nothing for a line that means nothing to a person. */
export function readable(line: { stream: string; text: string }): Shown[] {
  const raw = line.stream === "stderr" ? logLine(line.text) : (eventLines(line.text) ?? plainLine(line.text));
  return raw.map(({ stream, text }) => ({ stream, text: withoutMarks(text) })).filter(({ text }) => text.trim() !== "");
}

function logLine(text: string): Shown[] {
  const visible = oneLine(text, RAW.characters);
  return ORDINARY_LOG.test(visible) ? [] : [{ stream: "stderr", text: visible }];
}

function plainLine(text: string): Shown[] {
  return [{ stream: "stdout", text: bounded(text, RAW) }];
}

/** undefined: the line is no event of an agent. */
function eventLines(text: string): Shown[] | undefined {
  if (text.length > PARSED_LIMIT) {
    return [{ stream: "stdout", text: `(a line of ${text.length} characters; the transcript has it)` }];
  }
  const type = typeOf(text);
  if (type === undefined || type === "agent_run") return undefined;
  const entries = parseStdoutLine(text, "");
  const changes = entries.flatMap((entry) => (entry.kind === "diff" ? [entry.text] : []));
  const shown = entries.flatMap((entry) => shownEntry(entry));
  return changes.length === 0 ? shown : [...shown, { stream: "stdout", text: indented(changes.join("\n")) }];
}

function typeOf(text: string): string | undefined {
  if (!text.trimStart().startsWith("{")) return undefined;
  try {
    const { type } = JSON.parse(text) as Fields;
    return typeof type === "string" ? type : undefined;
  } catch {
    return undefined;
  }
}

function shownEntry(entry: TranscriptEntry): Shown[] {
  switch (entry.kind) {
    case "assistant":
      return [{ stream: "stdout", text: bounded(entry.text, TEXT) }];
    case "thinking":
      return [{ stream: "stdout", text: `(thinking) ${bounded(entry.text, THINKING)}` }];
    case "tool_call":
      return [{ stream: "stdout", text: `> ${oneLine(`${entry.name}: ${subjectOf(entry.input)}`, SUBJECT_LIMIT)}` }];
    case "tool_result":
      return [{ stream: "stdout", text: indented(`${entry.isError ? "failed: " : ""}${entry.content}`) }];
    case "result":
      return ORDINARY_ENDS.has(entry.subtype)
        ? []
        : [{ stream: "stdout", text: `(step ended: ${oneLine(entry.subtype, SUBJECT_LIMIT)})` }];
    case "stderr":
      return [{ stream: "stderr", text: `error: ${bounded(entry.text, RESULT)}` }];
    case "stdout":
      return [{ stream: "stdout", text: bounded(entry.text, RAW) }];
    default:
      return [];
  }
}

function subjectOf(input: unknown): string {
  if (typeof input === "string") return input;
  if (typeof input !== "object" || input === null) return "";
  const name = SUBJECTS.find((each) => typeof (input as Fields)[each] === "string");
  return name === undefined ? JSON.stringify(input) : String((input as Fields)[name]);
}

function indented(text: string): string {
  return bounded(text, RESULT).replace(/^/gm, "  ");
}

/** The beginning of a text, cleaned, with the size of what is left out. */
function bounded(text: string, { characters, lines }: { characters: number; lines: number }): string {
  const all = cleaned(text.slice(0, characters)).split("\n");
  const shown = all.slice(0, lines).join("\n");
  const more = Math.max(text.length - characters, 0) + Math.max(all.slice(lines).join("\n").length, 0);
  return more > 0 ? `${shown}\n… ${more} more characters; the transcript has them` : shown;
}

function oneLine(text: string, limit: number): string {
  const line = cleaned(text.slice(0, 4 * limit)).replace(/\s+/g, " ");
  return line.length > limit ? `${line.slice(0, limit - 1).replace(HALF_CHARACTERS, "")}…` : line;
}

/** Without ANSI codes, control, invisible and direction characters; every kind of line break is LF. */
function cleaned(text: string): string {
  return text
    .replace(ANSI, "")
    .replace(BREAKS, "\n")
    .replace(HIDDEN, "")
    .replace(HALF_CHARACTERS, "\ufffd")
    .replace(/^\n+/, "")
    .trimEnd();
}

/** The same text, with a bar before every line that begins like one of ours or of Paperclip's. */
function withoutMarks(text: string): string {
  return text.split("\n").map(withoutMark).join("\n");
}

function withoutMark(line: string): string {
  const begin = line.trimStart().slice(0, 100).normalize("NFKC").replace(UNSEEN, "").toLowerCase();
  return MARKS.some((mark) => begin.startsWith(mark)) ? `| ${line}` : line;
}
