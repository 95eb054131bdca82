/**
 * Writes a run's log in Paperclip: the calls that the transcript service has made of the agent's output, and our status
 * lines between them. Each call is awaited before the next: their order is the only order. A status line is one call, below
 * 8000 bytes of UTF-8 with its newline, a sentence that begins with `[agent-runs]`. Nothing that an agent prints can be
 * mistaken for one, which is the service's part (`agent_runs/web/paperclip_log.py`).
 */

import { setTimeout as setTimer } from "node:timers";
import { stripVTControlCharacters } from "node:util";
import type { LogCall } from "./transcript.ts";

/** Bytes of one call, newline included, are below this. */
export const CALL_BYTES = 8000;
/** After so long without a line a heartbeat is written. */
const HEARTBEAT_MS = 5 * 60_000;
const OUTAGE_REPEAT_MS = 60_000;
const MESSAGE_LIMIT = 2000;

/** How the agent's lines are written: `events`: OpenCode's, for a parser; `text`: for people. */
export type LogFormat = "events" | "text";
export type OnLog = (stream: "stdout" | "stderr", chunk: string) => Promise<void>;

/** A status line, one line whatever an error message holds. */
export function statusLine(message: string): string {
  const visible = stripVTControlCharacters(message)
    .replace(/\s+/g, " ")
    .replace(/[\p{Cc}\p{Cf}]/gu, "")
    .trim();
  const sentence = visible.length > MESSAGE_LIMIT ? `${visible.slice(0, MESSAGE_LIMIT - 1)}…` : visible;
  return `[agent-runs] ${sentence.replace(/\p{Cs}/gu, "\ufffd")}`;
}

/**
 * The log of one run. Concurrent calls are written one after the other. None rejects: a line that the host refused is
 * counted, and reported as a gap once it accepts lines again.
 */
export class RunLog {
  readonly #onLog: OnLog;
  readonly #heartbeatInterval: number;
  #queue: Promise<void> = Promise.resolve();
  #lost = 0;
  #timer: NodeJS.Timeout | undefined;
  #closed = false;
  #session = "";
  #lastLine = "";
  /** The phase of the run, for heartbeats. */
  phase = "preparing";
  /** Number of the agent's lines written so far. */
  lines = 0;

  constructor(onLog: OnLog, heartbeatInterval: number = HEARTBEAT_MS) {
    this.#onLog = onLog;
    this.#heartbeatInterval = heartbeatInterval;
    this.#restartTimer();
  }

  /** Writes one status line; on stderr what went wrong. */
  status(message: string, stream: "stdout" | "stderr" = "stdout"): Promise<void> {
    return this.#enqueue(async () => await this.#write(stream, statusLine(message)));
  }

  /** Writes one call for a line of the agent. */
  call({ attempt, sequence, stream, text }: LogCall): Promise<void> {
    return this.#enqueue(async () => {
      await this.#write(stream, text);
      const line = `${attempt}.${sequence}`;
      if (line !== this.#lastLine) this.lines += 1;
      this.#lastLine = line;
    });
  }

  /** Writes the agent's session id the first time. */
  session(sessionId: string, model: string): Promise<void> {
    if (this.#session) return Promise.resolve();
    this.#session = sessionId;
    return this.status(`session ${sessionId}${model ? ` of ${model}` : ""}`);
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

  async #write(stream: "stdout" | "stderr", text: string): Promise<void> {
    if (this.#closed) return;
    this.#restartTimer();
    try {
      if (this.#lost > 0) {
        const missing = `${this.#lost} lines are missing here: Paperclip refused them; the transcript has them`;
        await this.#onLog("stderr", `${statusLine(missing)}\n`);
        this.#lost = 0;
      }
      await this.#onLog(stream, `${text}\n`);
    } catch {
      this.#lost += 1;
    }
  }

  #restartTimer(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimer(() => void this.status(`no new output; the run is ${this.phase}`), this.#heartbeatInterval);
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
    void this.#log.status(seconds > 0 ? `${message} (for ${seconds} s)` : message);
  }

  recovered(): void {
    if (this.#since === undefined) return;
    const seconds = Math.round((Date.now() - this.#since) / 1000);
    this.#since = undefined;
    this.#lastReport = 0;
    void this.#log.status(`${this.#recoveredMessage} after ${seconds} s`);
  }
}
