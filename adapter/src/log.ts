/**
 * Writes a run's log in Paperclip: the calls that the transcript service has made of the agent's output, and our status
 * lines between them. Each call is awaited before the next: their order is the only order. A status line is one call, below
 * 8000 bytes of UTF-8 with its newline, a sentence that begins with `[agent-runs]`. Nothing that an agent prints can be
 * mistaken for one, which is the service's part (`agent_runs/web/paperclip_log.py`).
 */

import { stripVTControlCharacters } from "node:util";
import type { AdapterExecutionContext } from "./paperclip.ts";
import type { LogCall } from "./transcript.ts";

/** After so long without a line a heartbeat is written. */
const HEARTBEAT_MS = 5 * 60_000;
const OUTAGE_REPEAT_MS = 60_000;
const MESSAGE_LIMIT = 2000;

type Stream = LogCall["stream"];
type OnLog = AdapterExecutionContext["onLog"];

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
  readonly #heartbeat: NodeJS.Timeout;
  #queue: Promise<void> = Promise.resolve();
  #lost = 0;
  #closed = false;
  #session = "";
  /** The phase of the run, for heartbeats. */
  phase = "preparing";
  /** Calls of the agent's output that were written so far. */
  calls = 0;

  constructor(onLog: OnLog, heartbeatInterval: number = HEARTBEAT_MS) {
    this.#onLog = onLog;
    const write = () => void this.status(`no new output; the run is ${this.phase}`);
    this.#heartbeat = setTimeout(write, heartbeatInterval);
    this.#heartbeat.unref();
  }

  /** Writes one status line; on stderr what went wrong. */
  status(message: string, stream: Stream = "stdout"): Promise<void> {
    return this.#enqueue(() => this.#write(stream, statusLine(message)));
  }

  call({ stream, text }: LogCall): Promise<void> {
    return this.#enqueue(async () => {
      await this.#write(stream, text);
      this.calls += 1;
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
    clearTimeout(this.#heartbeat);
  }

  #enqueue(work: () => Promise<void>): Promise<void> {
    if (this.#closed) return Promise.resolve();
    this.#queue = this.#queue.then(work);
    return this.#queue;
  }

  async #write(stream: Stream, text: string): Promise<void> {
    if (this.#closed) return;
    this.#heartbeat.refresh(); // also starts it again once it has ended
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
