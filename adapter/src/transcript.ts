/**
 * Reads a run's output from the transcript service, as ready calls of Paperclip's log: every call of every attempt once, in
 * order, as it is written. `agent_runs/web/paperclip_log.py` is the rule of how a line becomes calls.
 *
 * A cut connection resumes after the last call that was written. Open attempts are followed; once the run has its outcome,
 * what is stored is read to its end, so that nothing waits for a writer that was lost. Each call is awaited and a slow
 * log slows the socket: at most one network chunk is held. While the service does not answer it is retried; once the
 * outcome is known, for at most `COMPLETION_TIMEOUT_MS` since the last call (less for a service that refuses us or never
 * answered), and then the missing part is named.
 */

import { createParser, type EventSourceMessage } from "eventsource-parser";
import { ConfigurationError } from "./errors.ts";
import type { LogFormat } from "./settings.ts";
import { runUrl } from "./tokens.ts";
import { Aborted, BackOff, type OutageListener, withLinkedSignal } from "./waits.ts";

/** A connection without a byte for so long is dead: the service sends a comment every 15 s. */
const CONNECTION_SILENCE_MS = 60_000;
/** For the service to begin its response, which it does before it reads any lines. */
const RESPONSE_TIMEOUT_MS = 15_000;
/** For the service to answer again after the run has ended. */
const COMPLETION_TIMEOUT_MS = 10 * 60_000;
/** Shorter for a service that never answered, and for one that refuses: a wrong address or key would delay every run. */
const UNREACHED_TIMEOUT_MS = 2 * 60_000;
const REFUSED_TIMEOUT_MS = 30_000;
/** Characters of one event: a call of 8000 bytes as JSON. */
const EVENT_LIMIT = 128 * 1024;

/** One call of Paperclip's log. */
export interface LogCall {
  attempt: number;
  stream: "stdout" | "stderr";
  /** Without the newline at its end. */
  text: string;
  /** The agent's session, once per connection. */
  session?: string;
}

/** Where a transcript is, and what gets it. */
export interface Transcript {
  /** Base URL of the service. */
  base: string;
  /** Its name (`runName`); of a joined run with the id of the wake that started it. */
  run: string;
  format: LogFormat;
  token(): Promise<string>;
  /** Must not reject. */
  write(call: LogCall): Promise<void>;
  /** Called with a tool that begins, for people, and with nothing when one ends. */
  toolAtWork?(tool: string): void;
  outage?: OutageListener;
  /** Milliseconds for the service to answer again after the run has ended. */
  timeout?: number;
  /** Milliseconds without a byte after which a connection is dead. */
  silence?: number;
}

/** The transcript could not be read to its end, although the run has ended. */
export class TranscriptIncomplete extends Error {}

/** A connection failed, in our own words: the message may be shown. */
class ReadError extends Error {}

/** The service refuses our token or our request. */
class Refused extends ReadError {}

/** The service ended the response before the end of the attempt, as it does when it stops. */
class CutShort extends ReadError {}

/** The last call that was written. */
interface Cursor {
  attempt: number;
  sequence: number;
  part: number;
  /** When it was written, or the run ended after that; milliseconds since the epoch. */
  movedAt: number;
  /** The service has answered at least once. */
  reached: boolean;
}

/**
 * Passes on every call, until the run has ended and its transcript is read.
 *
 * @param attempts how many the run made, once it has its outcome; rejects when it will have none, which ends this as well.
 *
 * Rejects with `Aborted`, `TranscriptIncomplete`, or as `attempts` does.
 */
export async function follow(transcript: Transcript, attempts: Promise<number>, signal?: AbortSignal): Promise<void> {
  const cursor = { attempt: 1, sequence: 0, part: 0, movedAt: 0, reached: false };
  const backOff = new BackOff();
  const over = new AbortController();
  const abortOpen = () => over.abort();
  attempts.then(abortOpen, abortOpen);
  while (!over.signal.aborted) await tryAttempt(transcript, cursor, backOff, signal, over.signal);
  const last = await attempts;
  cursor.movedAt = Date.now();
  while (cursor.attempt <= last) {
    const error = await tryAttempt(transcript, cursor, backOff, signal);
    if (error === undefined || Date.now() - cursor.movedAt < timeoutFor(transcript, cursor, error)) continue;
    const place = `attempt ${cursor.attempt} could not be read beyond line ${cursor.sequence}`;
    throw new TranscriptIncomplete(`the transcript of ${place}: ${reasonOf(error)}`);
  }
}

/**
 * Reads an attempt to its end, or until something goes wrong: then this resolves to the error after a pause.
 *
 * @param over aborted when the run has its outcome; without it what is stored is read.
 */
async function tryAttempt(
  transcript: Transcript,
  cursor: Cursor,
  backOff: BackOff,
  signal: AbortSignal | undefined,
  over?: AbortSignal,
): Promise<unknown> {
  const before = idOf(cursor);
  const stored = over === undefined;
  try {
    await withLinkedSignal([signal, over], (controller) => readAttempt(transcript, cursor, stored, controller));
    Object.assign(cursor, { attempt: cursor.attempt + 1, sequence: 0, part: 0, movedAt: Date.now() });
    backOff.reset();
    return undefined;
  } catch (error) {
    if (idOf(cursor) !== before) backOff.reset();
    if (!signal?.aborted && !over?.aborted) {
      if (stored || !(error instanceof CutShort)) transcript.outage?.failed(outageMessage(transcript, error));
      await withLinkedSignal([signal, over], (linked) => backOff.wait(linked.signal)).catch(() => undefined);
    }
    if (signal?.aborted) throw new Aborted(signal.reason);
    return error;
  }
}

/** Reads an attempt to its end: until it is sealed, or what is stored of it. Rejects for everything else. */
async function readAttempt(
  transcript: Transcript,
  cursor: Cursor,
  stored: boolean,
  controller: AbortController,
): Promise<void> {
  const { base, run, format, outage, silence = CONNECTION_SILENCE_MS } = transcript;
  const query = `format=${format}&attempt=${cursor.attempt}&after=${idOf(cursor)}${stored ? "&stored=true" : ""}`;
  const url = `${runUrl(base, run)}/log?${query}`;
  const aborted = new Promise<never>((_, reject) => {
    controller.signal.addEventListener("abort", () => reject(controller.signal.reason), { once: true });
  });
  aborted.catch(() => undefined); // this call may end before its first wait, as without a token
  // not left to fetch, which does not always end its response with the signal: nothing would end the wait
  const withTimeout = async <T>(wait: Promise<T>, limit = silence): Promise<T> => {
    const timer = setTimeout(() => controller.abort(new ReadError("no data for too long")), limit);
    timer.unref();
    return await Promise.race([wait, aborted]).finally(() => clearTimeout(timer));
  };
  try {
    const headers = { Accept: "text/event-stream", Authorization: `Bearer ${await transcript.token()}` };
    const request = fetch(url, { headers, signal: controller.signal, redirect: "error" });
    const response = await withTimeout(request, Math.min(silence, RESPONSE_TIMEOUT_MS));
    const refusal = response.ok ? "" : await withTimeout(response.text());
    const nothingStored = stored && response.status === 404 && refusal.includes("no output is stored");
    if (!response.ok && !nothingStored) throw new Refused(refusalOf(response.status));
    cursor.reached = true;
    outage?.recovered();
    if (nothingStored) return;
    for await (const event of eventsIn(response, withTimeout)) {
      if (event.event === "end") return;
      await deliver(event, transcript, cursor);
    }
    throw new CutShort("the response ended before the transcript");
  } finally {
    controller.abort(); // closes the socket, whatever is left in it
  }
}

async function* eventsIn(response: Response, withTimeout: <T>(wait: Promise<T>) => Promise<T>) {
  const events: EventSourceMessage[] = [];
  const parser = createParser({
    onEvent: (event) => events.push(event),
    onError: (error) => {
      if (error.type === "max-buffer-size-exceeded") throw error;
    },
    maxBufferSize: EVENT_LIMIT,
  });
  const decoder = new TextDecoder();
  const body = response.body?.getReader();
  try {
    while (body !== undefined) {
      const { done, value } = await withTimeout(body.read());
      if (done) return;
      parser.feed(decoder.decode(value as Uint8Array, { stream: true }));
      yield* events.splice(0);
    }
  } finally {
    void body?.cancel().catch(() => undefined);
  }
}

/** Passes on one call, unless it was had before. An event without a text only moves the cursor. */
async function deliver({ id, data }: EventSourceMessage, transcript: Transcript, cursor: Cursor): Promise<void> {
  const [sequence = 0, part = 0] = (id ?? "").split(".").map(Number);
  if (!(sequence > cursor.sequence || (sequence === cursor.sequence && part > cursor.part))) return;
  const { tool, ...call } = JSON.parse(data) as Partial<Omit<LogCall, "attempt">> & { tool?: string };
  if (tool !== undefined) transcript.toolAtWork?.(tool);
  if (call.text !== undefined) await transcript.write({ ...(call as LogCall), attempt: cursor.attempt });
  Object.assign(cursor, { sequence, part, movedAt: Date.now() });
}

function idOf({ sequence, part }: Cursor): string {
  return `${sequence}.${part}`;
}

function refusalOf(status: number): string {
  if (status === 401 || status === 403)
    return "it refuses our token: set AGENT_RUNS_TRANSCRIPTS_KEY_FILE to the key file of the service";
  return `it answers ${status}${status === 404 ? ": check AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL" : ""}`;
}

function outageMessage({ base }: Transcript, error: unknown): string {
  return `the transcript service at ${base} cannot be read (${reasonOf(error)}); no output is lost, retrying`;
}

function timeoutFor({ timeout }: Transcript, cursor: Cursor, error: unknown): number {
  if (timeout !== undefined) return timeout;
  if (error instanceof Refused || error instanceof ConfigurationError) return REFUSED_TIMEOUT_MS;
  return cursor.reached ? COMPLETION_TIMEOUT_MS : UNREACHED_TIMEOUT_MS;
}

/** At most 300 characters and never the token: of a network error only the code is taken. */
function reasonOf(error: unknown): string {
  if (error instanceof ReadError || error instanceof ConfigurationError) return error.message.slice(0, 300);
  const { name, cause } = error as Error & { cause?: { code?: unknown } };
  return typeof cause?.code === "string" ? cause.code : name;
}
