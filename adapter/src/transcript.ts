/**
 * Reads a run's transcript from the transcript service: every line of every attempt once, in order, as it comes.
 *
 * The twin of `client/transcripts.py`. Live lines come by SSE and resume after the last sequence seen. When the run has
 * its outcome, what is still missing is read to its end as NDJSON, so that nothing waits for an `end` that a lost writer
 * never wrote. The consumer is awaited for each line and a slow one slows the socket: what is held is one network
 * chunk, or one line if that is longer. While the service is away the reader keeps trying; once the outcome is known it
 * does so for `PATIENCE_MS` more (less for a service that refuses us or was never seen), and then names what it could not
 * have.
 */

import { createParser } from "eventsource-parser";
import type { OutputReceipt } from "./contracts.ts";
import { longJson } from "./long-json.ts";
import { UnusableTokenKey } from "./tokens.ts";
import { BackOff, GivenUp, linked, type Outage } from "./waiting.ts";

/** Without a byte for so long a connection is dead: the service shows a sign of life every 15 s. */
const SILENCE_MS = 60_000;
/** For the service to begin an answer, which it does before it looks for lines. */
const ANSWER_MS = 15_000;
/** For the service to come back once the run is over. A wrong address or key would hold up every run, hence the others. */
const PATIENCE_MS = 10 * 60_000;
const NEVER_SEEN_MS = 2 * 60_000;
const REFUSED_MS = 30_000;
/** Characters of one event: a line of 16 MiB, which the pod's runner cuts at, as escaped JSON. */
const EVENT_LIMIT = 128 * 1024 * 1024;

/** One line of output. */
export interface Line {
  attempt: number;
  sequence: number;
  stream: string;
  /** When it was written, ISO 8601. */
  at: string;
  /** Text without its newline; bytes that are no UTF-8 are shown as U+FFFD. */
  text: string;
}

/** Where a transcript is and who is told what. */
export interface TranscriptSource {
  /** Base URL of the service. */
  base: string;
  /** Paperclip's id of the run whose transcript it is: of a joined run the first one's. */
  runId: string;
  token(): Promise<string>;
  outage?: Outage;
  patience?: number;
  silence?: number;
}

export interface TranscriptReader {
  line(line: Line): Promise<void>;
  /** The attempt is whole; its receipt says what could not be had. */
  sealed?(attempt: number, receipt: OutputReceipt | null): Promise<void>;
}

/** How a run ended, as far as a reader cares: how many attempts there were. */
export interface Decided {
  attempts: number;
}

/** The transcript could not be read to its end, though the run is over. */
export class TranscriptIncomplete extends Error {
  readonly attempt: number;
  readonly after: number;
  constructor(attempt: number, after: number, why: string) {
    super(`the transcript of attempt ${attempt} could not be read beyond line ${after}: ${why}`);
    this.attempt = attempt;
    this.after = after;
  }
}

/** The service refuses our token, or what we ask. */
class Refused extends Error {}

/**
 * Gives every line to `reader`, until the run is over and its transcript is read.
 *
 * @param decided resolves when the run has its outcome; rejects when it will have none, which ends this as well.
 *
 * Rejects with `GivenUp`, `TranscriptIncomplete`, or as `decided` does.
 */
export async function follow(
  source: TranscriptSource,
  reader: TranscriptReader,
  decided: Promise<Decided>,
  signal?: AbortSignal,
): Promise<void> {
  const over = new AbortController();
  let end: { decided: Decided } | { error: unknown } | undefined;
  const settled = decided.then(
    (value) => {
      end = { decided: value };
      over.abort();
    },
    (error: unknown) => {
      end = { error };
      over.abort();
    },
  );
  const cursor: Cursor = { attempt: 1, after: 0, reached: false };
  const backOff = new BackOff();
  while (end === undefined) {
    if (signal?.aborted) throw new GivenUp(signal.reason);
    const before = cursor.after;
    try {
      const sealed = await linked([signal, over.signal], (controller) => live(source, reader, cursor, controller));
      source.outage?.recovered();
      if (sealed === undefined) {
        if (cursor.after > before) backOff.reset();
        await pause(backOff, signal, over.signal);
        continue;
      }
      await reader.sealed?.(cursor.attempt, sealed.receipt);
      cursor.attempt += 1;
      cursor.after = 0;
      backOff.reset();
    } catch (error) {
      if (error instanceof ConsumerFailed) throw error.cause;
      if (signal?.aborted) throw new GivenUp(signal.reason);
      if (over.signal.aborted) break;
      if (cursor.after > before) backOff.reset();
      source.outage?.failed(gone(source, error));
      await pause(backOff, signal, over.signal);
    }
  }
  await settled;
  if (end === undefined || "error" in end) throw (end as { error: unknown }).error;
  await rest(source, reader, cursor, end.decided.attempts, signal);
}

/** What is stored beyond the cursor, of every attempt that is left. */
async function rest(
  source: TranscriptSource,
  reader: TranscriptReader,
  cursor: Cursor,
  attempts: number,
  signal: AbortSignal | undefined,
): Promise<void> {
  const began = Date.now();
  const backOff = new BackOff();
  while (cursor.attempt <= attempts) {
    if (signal?.aborted) throw new GivenUp(signal.reason);
    const before = cursor.after;
    try {
      await linked([signal], (controller) => stored(source, reader, cursor, controller));
      source.outage?.recovered();
      cursor.attempt += 1;
      cursor.after = 0;
      backOff.reset();
    } catch (error) {
      if (error instanceof ConsumerFailed) throw error.cause;
      if (signal?.aborted) throw new GivenUp(signal.reason);
      if (cursor.after > before) backOff.reset();
      if (Date.now() - began >= patienceFor(source, cursor, error))
        throw new TranscriptIncomplete(cursor.attempt, cursor.after, reasonOf(error));
      source.outage?.failed(gone(source, error));
      await backOff.wait(signal);
    }
  }
}

interface Cursor {
  attempt: number;
  /** The sequence of the last line given. */
  after: number;
  /** The service has answered us at least once. */
  reached: boolean;
}

/** A reader threw: its own affair, and no reason to connect again. */
class ConsumerFailed extends Error {}

/** Lines as they come. The receipt once the attempt is sealed; undefined when the service lets us go. */
async function live(
  source: TranscriptSource,
  reader: TranscriptReader,
  cursor: Cursor,
  controller: AbortController,
): Promise<{ receipt: OutputReceipt | null } | undefined> {
  const resumed: { [name: string]: string } = cursor.after > 0 ? { "Last-Event-ID": String(cursor.after) } : {};
  const accept = { Accept: "text/event-stream", ...resumed };
  return await answered(source, "events", cursor, accept, controller, async (response, pieces) => {
    if (response.status === 204) return { receipt: null }; // sealed, and nothing beyond what we have
    cursor.reached = true;
    source.outage?.recovered();
    const events: { event?: string; data: string }[] = [];
    let broken: Error | undefined;
    const parser = createParser({
      onEvent: (event) => events.push(event),
      onError: (error) => {
        if (error.type === "max-buffer-size-exceeded") broken = error;
      },
      maxBufferSize: EVENT_LIMIT,
    });
    for await (const piece of pieces) {
      parser.feed(piece);
      if (broken) throw broken;
      for (const event of events.splice(0)) {
        if (event.event === "end") return { receipt: receiptOf(event.data) };
        if (event.event === undefined || event.event === "message") await give(reader, cursor, event.data);
      }
    }
    return undefined;
  });
}

async function stored(
  source: TranscriptSource,
  reader: TranscriptReader,
  cursor: Cursor,
  controller: AbortController,
): Promise<void> {
  const accept = { Accept: "application/x-ndjson" };
  await answered(source, "transcript", cursor, accept, controller, async (response, pieces) => {
    cursor.reached = true;
    if (response.status === 404) return; // nothing was stored of this attempt
    let begun: string[] = [];
    for await (const piece of pieces) {
      const ends = piece.split("\n");
      for (const end of ends.slice(0, -1)) {
        await give(reader, cursor, begun.join("") + end);
        begun = [];
      }
      const left = ends[ends.length - 1];
      if (left) begun.push(left);
    }
    if (begun.length > 0) throw new Error("cut in the middle of a line");
  });
}

/** Gives one line on, unless it has been given before. */
async function give(reader: TranscriptReader, cursor: Cursor, data: string): Promise<void> {
  const told = await longJson(data, "data");
  const line = lineOf(told, cursor.attempt);
  if (line === undefined || line.sequence <= cursor.after) return;
  try {
    await reader.line(line);
  } catch (error) {
    throw new ConsumerFailed("the reader failed", { cause: error });
  }
  cursor.after = line.sequence;
}

/** Asks, and hands the body to `read`. Rejects when the answer is none, when it is cut, or after a long silence. */
async function answered<T>(
  source: TranscriptSource,
  what: "events" | "transcript",
  cursor: Cursor,
  headers: { [name: string]: string },
  controller: AbortController,
  read: (response: Response, pieces: AsyncGenerator<string>) => Promise<T>,
): Promise<T> {
  const url = `${source.base.replace(/\/+$/, "")}/runs/${encodeURIComponent(source.runId)}/${what}`;
  const query = `attempt=${cursor.attempt}&after=${cursor.after}`;
  const authorization = { Authorization: `Bearer ${await source.token()}` };
  const silence = source.silence ?? SILENCE_MS;
  const dead = () => controller.abort(new Error("no sign of life"));
  const watched = async <R>(wait: Promise<R>, limit = silence): Promise<R> => {
    const timer = setTimeout(dead, limit);
    timer.unref();
    return await wait.finally(() => clearTimeout(timer));
  };
  let body: ReadableStreamDefaultReader<Uint8Array> | undefined;
  try {
    const options = {
      headers: { ...headers, ...authorization },
      signal: controller.signal,
      redirect: "error" as const,
    };
    const response = await watched(fetch(`${url}?${query}`, options), Math.min(silence, ANSWER_MS));
    body = response.body?.getReader() as ReadableStreamDefaultReader<Uint8Array> | undefined;
    if (response.status === 401 || response.status === 403) {
      throw new Refused("it refuses our token: AGENT_RUNS_TRANSCRIPTS_KEY_FILE must be the file that it uses");
    }
    if (!response.ok && response.status !== 404) throw new Refused(`it answers ${response.status}`);
    if (what === "events" && response.status === 404) throw new Refused("it answers 404; is this the right address?");
    return await read(response, piecesOf(body, watched));
  } finally {
    controller.abort(); // lets go of the socket, whatever is left in it
    body?.cancel().catch(() => undefined);
  }
}

async function* piecesOf(
  body: ReadableStreamDefaultReader<Uint8Array> | undefined,
  watched: <R>(wait: Promise<R>) => Promise<R>,
): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  while (body !== undefined) {
    const { done, value } = await watched(body.read());
    if (done) return;
    yield decoder.decode(value, { stream: true });
  }
}

function lineOf(told: unknown, attempt: number): Line | undefined {
  if (typeof told !== "object" || told === null) return undefined;
  const { sequence, stream, at, encoding, data } = told as { [name: string]: unknown };
  if (typeof sequence !== "number" || typeof stream !== "string" || typeof data !== "string") return undefined;
  const text = encoding === "base64" ? Buffer.from(data, "base64").toString("utf8") : data;
  return { attempt, sequence, stream, at: typeof at === "string" ? at : "", text };
}

function receiptOf(data: string): OutputReceipt | null {
  const told: unknown = JSON.parse(data);
  if (typeof told !== "object" || told === null) return null;
  const { state, lines, bytes, sha256, gaps } = told as { [name: string]: unknown };
  const named = Array.isArray(gaps) ? gaps.map(gapOf) : [];
  return { state, lines, bytes, sha256, gaps: named } as OutputReceipt;
}

/** The service tells receipts with Python's names. */
function gapOf(told: unknown): { afterSequence: number; frames: number | null } {
  const gap = told as { [name: string]: unknown };
  const after = gap?.after_sequence ?? gap?.afterSequence;
  return { afterSequence: Number(after ?? 0), frames: typeof gap?.frames === "number" ? gap.frames : null };
}

async function pause(backOff: BackOff, signal: AbortSignal | undefined, over: AbortSignal): Promise<void> {
  try {
    await linked([signal, over], (controller) => backOff.wait(controller.signal));
  } catch (error) {
    if (signal?.aborted) throw new GivenUp(signal.reason);
    if (!(error instanceof GivenUp)) throw error;
  }
}

function gone(source: TranscriptSource, error: unknown): string {
  return `the transcript service at ${source.base} cannot be read (${reasonOf(error)}); no output is lost, trying again`;
}

function patienceFor(source: TranscriptSource, cursor: Cursor, error: unknown): number {
  if (source.patience !== undefined) return source.patience;
  if (error instanceof Refused || error instanceof UnusableTokenKey) return REFUSED_MS;
  return cursor.reached ? PATIENCE_MS : NEVER_SEEN_MS;
}

/** Bounded, and never with the token: what a network error says is taken from its code. */
function reasonOf(error: unknown): string {
  if (error instanceof Refused) return error.message;
  const { name, message } = error instanceof Error ? error : { name: "Error", message: "" };
  if (error instanceof UnusableTokenKey || message.startsWith("cut ")) return message.slice(0, 300);
  const cause = error instanceof Error ? error.cause : undefined;
  const code = (cause as { code?: unknown } | undefined)?.code;
  return typeof code === "string" ? code : message === "no sign of life" ? message : name;
}
