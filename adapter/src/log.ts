/**
 * Writes a run's log in Paperclip: the agent's own lines, and our status lines between them; as JSON for the plugin's own
 * parser, or as plain text (`readable.ts`) for a Paperclip that loads no parser.
 *
 * In JSON, one line per call, with a newline at its end, below 8000 bytes of UTF-8, each call awaited before the next: Paperclip
 * cuts chunks and shows the last 8 KiB of one, and the order of calls is the only order. A status line is one JSON object:
 *
 *     {"type":"agent_run","event":"<started|joined|busy|phase|…>","message":"…", …}
 *
 * A line of the agent that is too long is written as pieces, to be joined in order:
 *
 *     {"type":"agent_run","event":"chunk","id":"<attempt>.<sequence>","stream":"stdout","of":"event|text","part":1,"parts":3,"text":"…"}
 *
 * `of: "event"` follows the same event with its long strings shortened and `"truncated": true`, which parsers and cost
 * accounting read instead; `of: "text"` stands for the line itself.
 *
 * Nothing that an agent prints can be mistaken for a status line: a stdout line that a reader could parse as one (a JSON
 * object whose `type` is `agent_run`, also after a carriage return or another line separator) is written as a chunk of
 * one part, and its text is a JSON string inside ours. So every status line in a log is ours.
 */

import { setTimeout as setTimer } from "node:timers";
import { setImmediate as nextImmediate } from "node:timers/promises";
import { readable, readableStatus, type Shown } from "./readable.ts";

/** Bytes of one call, newline included, are below this. */
export const CALL_BYTES = 8000;
/** Characters of an event up to which a shortened form of it is made; OpenCode's own events stay below. */
const SHORTENED_LIMIT = 512 * 1024;
/** Characters that are cut into pieces before the host's other work has the event loop. */
const SLICE = 256 * 1024;
/** After so long without a line a heartbeat is written. */
const HEARTBEAT_MS = 5 * 60_000;
const OUTAGE_REPEAT_MS = 60_000;
const STATUS_TYPE = "agent_run";
const SEPARATORS = /[\n\r\v\f\u0085\u2028\u2029]/;

export type StatusEvent =
  | "started"
  | "joined"
  | "busy"
  | "phase"
  | "waiting"
  | "attempt"
  | "session"
  | "gap"
  | "heartbeat"
  | "cancelling"
  | "outcome"
  | "note"
  | "failure";

/**
 * `json`: lines for the plugin's own parser; `text`: for people; `events`: OpenCode's events for Paperclip's parser of its
 * own OpenCode adapter, which shows every other line as it is, so the rest is text.
 */
export type LogFormat = "json" | "text" | "events";
export type OnLog = (stream: "stdout" | "stderr", chunk: string) => Promise<void>;
type Fields = { [name: string]: unknown };

/** One line of an agent, as the log needs it. */
export interface AgentLine {
  attempt: number;
  sequence: number;
  stream: string;
  /** Without its newline. */
  text: string;
}

/** One status line; the message is cut so that the line fits into a call. */
export function statusLine(event: StatusEvent, message: string, fields: Fields = {}): string {
  const line = JSON.stringify({ type: STATUS_TYPE, event, message: message.slice(0, 2000), ...fields });
  if (fits(line)) return line;
  return JSON.stringify({ type: STATUS_TYPE, event, message: message.slice(0, 1000) });
}

/** The lines of the log for one line of an agent, without their newlines: usually the line itself. */
export async function* linesFor(line: AgentLine): AsyncGenerator<{ stream: "stdout" | "stderr"; text: string }> {
  const { text } = line;
  if (line.stream === "stderr") {
    if (fits(text)) yield { stream: "stderr", text };
    else yield* chunks(line, "text");
    return;
  }
  if (fits(text)) {
    if (looksLikeStatus(text)) yield* chunks(line, "text");
    else yield { stream: "stdout", text };
  } else {
    const short = text.length <= SHORTENED_LIMIT ? shortenedEvent(text) : undefined;
    if (short !== undefined) yield { stream: "stdout", text: short };
    yield* chunks(line, short === undefined ? "text" : "event");
  }
}

/** A text in calls: whole lines, and the pieces of a line that is too long for one call, each after the first marked. */
export function callsOf(text: string): string[] {
  const calls: string[] = [];
  for (const line of text.split("\n")) {
    for (const [index, piece] of piecesOf(line, CALL_BYTES - 200).entries()) {
      const part = index === 0 ? piece : `… ${piece}`;
      const both = `${calls.at(-1)}\n${part}`;
      if (calls.length > 0 && fits(both)) calls[calls.length - 1] = both;
      else calls.push(part);
    }
  }
  return calls;
}

async function* chunks(line: AgentLine, of: "event" | "text"): AsyncGenerator<{ stream: "stdout"; text: string }> {
  const id = `${line.attempt}.${line.sequence}`;
  const stream = line.stream === "stderr" ? "stderr" : "stdout";
  const pieces = await piecesInSlices(line.text, CALL_BYTES - 200);
  for (const [index, text] of pieces.entries()) {
    const fields = { id, stream, of, part: index + 1, parts: pieces.length, text };
    yield { stream: "stdout", text: JSON.stringify({ type: STATUS_TYPE, event: "chunk", ...fields }) };
  }
}

/** The text in pieces whose JSON strings have at most `limit` bytes; no piece ends inside a character. */
export function piecesOf(text: string, limit: number): string[] {
  const pieces: string[] = [];
  let from = 0;
  let size = 0;
  for (let at = 0; at < text.length; ) {
    const point = text.codePointAt(at) ?? 0;
    const bytes = escapedBytes(point);
    if (size + bytes > limit) {
      pieces.push(text.slice(from, at));
      from = at;
      size = 0;
    }
    size += bytes;
    at += point > 0xffff ? 2 : 1;
  }
  pieces.push(text.slice(from));
  return pieces;
}

/** The same for a text of any length, in slices between which the host's other work has the event loop. */
async function piecesInSlices(text: string, limit: number): Promise<string[]> {
  const pieces: string[] = [];
  for (let from = 0; from < text.length || from === 0; ) {
    if (from > 0) await nextImmediate();
    const last = text.charCodeAt(from + SLICE - 1);
    const to = from + SLICE - (last >= 0xd800 && last <= 0xdbff ? 1 : 0);
    for (const piece of piecesOf(text.slice(from, to), limit)) pieces.push(piece);
    from = to;
  }
  return pieces;
}

/** Bytes of one character inside a JSON string, as JSON.stringify writes it. */
function escapedBytes(point: number): number {
  if (point === 0x22 || point === 0x5c) return 2;
  if (point < 0x20 || (point >= 0xd800 && point <= 0xdfff)) return 6;
  if (point < 0x80) return 1;
  if (point < 0x800) return 2;
  return point > 0xffff ? 4 : 3;
}

function fits(text: string): boolean {
  if (text.length * 3 < CALL_BYTES - 1) return true;
  return text.length < CALL_BYTES && Buffer.byteLength(text) < CALL_BYTES - 1;
}

/** Whether a reader could parse this, or a part of it, as a status line of ours. */
function looksLikeStatus(text: string): boolean {
  if (!text.includes("{")) return false;
  if (!SEPARATORS.test(text)) return isStatus(text);
  return isStatus(text) || text.split(SEPARATORS).some(isStatus);
}

function isStatus(text: string): boolean {
  const trimmed = text.trim();
  if (!trimmed.startsWith("{")) return false;
  const event = parsed(trimmed);
  return event !== undefined && event.type === STATUS_TYPE;
}

/** An event of OpenCode's that fits into a call, shortened if necessary; undefined for every other line. */
function eventIn({ stream, text }: AgentLine): string | undefined {
  if (stream === "stderr" || text.length > SHORTENED_LIMIT) return undefined;
  const type = parsed(text.trim())?.type;
  if (typeof type !== "string" || type === STATUS_TYPE) return undefined;
  return fits(text) && !SEPARATORS.test(text) ? text : shortenedEvent(text);
}

/** The event with its long strings shortened; undefined when it is no event, or still too long. */
function shortenedEvent(text: string): string | undefined {
  const event = parsed(text.trim());
  if (event === undefined || typeof event.type !== "string" || event.type === STATUS_TYPE) return undefined;
  for (const limit of [2000, 700, 250, 80]) {
    const line = JSON.stringify({ ...(shortenStrings(event, limit, 0) as Fields), truncated: true });
    if (fits(line)) return line;
  }
  return undefined;
}

function shortenStrings(value: unknown, limit: number, depth: number): unknown {
  if (typeof value === "string") return value.length > limit ? `${wellFormed(value.slice(0, limit))}…` : value;
  if (typeof value !== "object" || value === null) return value;
  if (depth > 8) return "…";
  if (Array.isArray(value)) return value.slice(0, 20).map((item) => shortenStrings(item, limit, depth + 1));
  const entries = Object.entries(value).slice(0, 40);
  return Object.fromEntries(entries.map(([key, item]) => [key.slice(0, 80), shortenStrings(item, limit, depth + 1)]));
}

/** Without half a character at the end. */
function wellFormed(text: string): string {
  const last = text.charCodeAt(text.length - 1);
  return last >= 0xd800 && last <= 0xdbff ? text.slice(0, -1) : text;
}

function parsed(text: string): Fields | undefined {
  if (!text.startsWith("{")) return undefined;
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Fields) : undefined;
  } catch {
    return undefined;
  }
}

/**
 * The log of one run. Concurrent calls are written one after the other. None rejects: a line that the host refused is
 * counted, and reported as a gap once it accepts lines again.
 */
export class RunLog {
  readonly #onLog: OnLog;
  readonly #heartbeatInterval: number;
  readonly #format: LogFormat;
  #queue: Promise<void> = Promise.resolve();
  #lost = 0;
  #timer: NodeJS.Timeout | undefined;
  #closed = false;
  #session = "";
  /** The phase of the run, for heartbeats. */
  phase = "preparing";
  /** Number of the agent's lines written so far. */
  lines = 0;

  constructor(onLog: OnLog, format: LogFormat = "json", heartbeatInterval: number = HEARTBEAT_MS) {
    this.#onLog = onLog;
    this.#format = format;
    this.#heartbeatInterval = heartbeatInterval;
    this.#restartTimer();
  }

  /** Writes one status line. */
  status(event: StatusEvent, message: string, fields: Fields = {}): Promise<void> {
    return this.#enqueue(async () => await this.#writeStatus(event, message, fields));
  }

  /** Writes one line of the agent. */
  line(line: AgentLine): Promise<void> {
    return this.#enqueue(async () => {
      const event = this.#format === "events" ? eventIn(line) : undefined;
      if (event !== undefined) await this.#write("stdout", event);
      else if (this.#format !== "json") for (const shown of readable(line)) await this.#writeText(shown);
      else for await (const { stream, text } of linesFor(line)) await this.#write(stream, text);
      this.lines += 1;
    });
  }

  /** Writes the agent's session id the first time that an event has it. */
  session(line: AgentLine, model: string): Promise<void> {
    if (this.#session || line.stream === "stderr" || line.text.length > SHORTENED_LIMIT) return Promise.resolve();
    const id = line.text.includes('"sessionID"') ? parsed(line.text.trim())?.sessionID : undefined;
    if (typeof id !== "string" || !id) return Promise.resolve();
    this.#session = id.slice(0, 128);
    return this.status("session", "", { sessionId: this.#session, model });
  }

  /** Waits for pending writes; later calls write nothing. */
  async close(): Promise<void> {
    await this.#queue;
    this.#closed = true;
    clearTimeout(this.#timer);
  }

  #enqueue(work: () => Promise<void>): Promise<void> {
    if (this.#closed) return Promise.resolve();
    this.#queue = this.#queue.then(work);
    return this.#queue;
  }

  async #writeStatus(event: StatusEvent, message: string, fields: Fields): Promise<void> {
    if (this.#format === "json") return await this.#write("stdout", statusLine(event, message, fields));
    const shown = readableStatus(event, message);
    if (shown !== undefined) await this.#writeText(shown);
  }

  async #writeText({ stream, text }: Shown): Promise<void> {
    for (const call of callsOf(text)) await this.#write(stream, call);
  }

  async #write(stream: "stdout" | "stderr", text: string): Promise<void> {
    if (this.#closed) return;
    this.#restartTimer();
    try {
      if (this.#lost > 0) {
        const missing = `${this.#lost} lines are missing here: Paperclip refused them; the transcript has them`;
        const gap = statusLine("gap", missing, { lines: this.#lost });
        await this.#onLog("stdout", `${this.#format === "json" ? gap : readableStatus("gap", missing)?.text}\n`);
        this.#lost = 0;
      }
      await this.#onLog(stream, `${text}\n`);
    } catch {
      this.#lost += 1;
    }
  }

  #restartTimer(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimer(() => {
      void this.status("heartbeat", `no new output; the run is ${this.phase}`, {
        phase: this.phase,
        lines: this.lines,
      });
    }, this.#heartbeatInterval);
    this.#timer.unref();
  }
}

/** Logs the outage of one service: at once, then once a minute, and when the service answers again. */
export class OutageLog {
  readonly #log: RunLog;
  readonly #recoveredMessage: string;
  #since: number | undefined;
  #lastReport = 0;

  constructor(log: RunLog, recoveredMessage: string) {
    this.#log = log;
    this.#recoveredMessage = recoveredMessage;
  }

  failed(message: string): void {
    const now = Date.now();
    this.#since ??= now;
    if (now - this.#lastReport < OUTAGE_REPEAT_MS) return;
    this.#lastReport = now;
    const seconds = Math.round((now - this.#since) / 1000);
    void this.#log.status("waiting", seconds > 0 ? `${message} (for ${seconds} s)` : message, { seconds });
  }

  recovered(): void {
    if (this.#since === undefined) return;
    const seconds = Math.round((Date.now() - this.#since) / 1000);
    this.#since = undefined;
    this.#lastReport = 0;
    void this.#log.status("note", `${this.#recoveredMessage} after ${seconds} s`, { seconds });
  }
}
