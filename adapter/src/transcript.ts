/**
 * Reads a run's transcript from the transcript service: every line of every attempt once, in order, as it is written.
 *
 * Same rules as `agent_runs/client/transcripts.py`. Open attempts are read by SSE, which resumes after the last sequence
 * that was read. Once the run has its outcome, the rest is read to its end as NDJSON, so that nothing waits for an `end`
 * event that a lost writer never wrote. The reader is awaited for each line and a slow one slows the socket: at most one
 * network chunk is held, or one line if that is longer. While the service does not answer it is retried; once the outcome
 * is known, for at most `COMPLETION_TIMEOUT_MS` (less for a service that refuses us or never answered), and then the
 * missing part is named.
 */

import { createParser } from "eventsource-parser";
import type { OutputReceipt } from "./contracts.ts";
import { parseJsonInSlices } from "./sliced-json.ts";
import { UnusableTokenKey } from "./tokens.ts";
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
/** Characters of one event: a line of 16 MiB, which the pod's runner cuts at, as escaped JSON. */
const EVENT_LIMIT = 128 * 1024 * 1024;

const SILENT = "no data for too long";

/** One line of output. */
export interface Line {
  attempt: number;
  sequence: number;
  stream: string;
  /** When it was written, ISO 8601. */
  at: string;
  /** Text without its newline; bytes that are not UTF-8 become U+FFFD. */
  text: string;
}

/** Where a transcript is, and who hears of outages. */
export interface TranscriptSource {
  /** Base URL of the service. */
  base: string;
  /** Paperclip's id of the run; for a joined run the id of the wake that started it. */
  runId: string;
  token(): Promise<string>;
  outage?: OutageListener;
  /** Milliseconds for the service to answer again after the run has ended. */
  timeout?: number;
  /** Milliseconds without a byte after which a connection is dead. */
  silence?: number;
}

/** What gets the lines. */
export interface TranscriptReader {
  line(line: Line): Promise<void>;
  /** The attempt has no further lines; its receipt lists the gaps. */
  sealed?(attempt: number, receipt: OutputReceipt | null): Promise<void>;
}

/** What the reader has to know of the outcome: how many attempts there were. */
export interface RunEnd {
  attempts: number;
}

/** The transcript could not be read to its end, although the run has ended. */
export class TranscriptIncomplete extends Error {
  readonly attempt: number;
  readonly after: number;
  constructor(attempt: number, after: number, reason: string) {
    super(`the transcript of attempt ${attempt} could not be read beyond line ${after}: ${reason}`);
    this.attempt = attempt;
    this.after = after;
  }
}

/** The service refuses our token or our request. */
class Refused extends Error {}

/**
 * Passes every line to `reader`, until the run has ended and its transcript is read.
 *
 * @param outcome resolves when the run has its outcome; rejects when it will have none, which ends this as well.
 *
 * Rejects with `Aborted`, `TranscriptIncomplete`, or as `outcome` does.
 */
export async function follow(
  source: TranscriptSource,
  reader: TranscriptReader,
  outcome: Promise<RunEnd>,
  signal?: AbortSignal,
): Promise<void> {
  const over = new AbortController();
  let end: { run: RunEnd } | { error: unknown } | undefined;
  const settled = outcome.then(
    (run) => {
      end = { run };
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
    if (signal?.aborted) throw new Aborted(signal.reason);
    const before = cursor.after;
    try {
      const sealed = await withLinkedSignal([signal, over.signal], (controller) =>
        readOpen(source, reader, cursor, controller),
      );
      source.outage?.recovered();
      if (sealed === undefined) {
        if (cursor.after > before) backOff.reset();
        await waitForRetry(backOff, signal, over.signal);
        continue;
      }
      await reader.sealed?.(cursor.attempt, sealed.receipt);
      cursor.attempt += 1;
      cursor.after = 0;
      backOff.reset();
    } catch (error) {
      if (error instanceof ReaderFailed) throw error.cause;
      if (signal?.aborted) throw new Aborted(signal.reason);
      if (over.signal.aborted) break;
      if (cursor.after > before) backOff.reset();
      source.outage?.failed(outageMessage(source, error));
      await waitForRetry(backOff, signal, over.signal);
    }
  }
  await settled;
  if (end === undefined || "error" in end) throw (end as { error: unknown }).error;
  await readRemaining(source, reader, cursor, end.run.attempts, signal);
}

/** Reads what is stored after the cursor, of every attempt that is left. */
async function readRemaining(
  source: TranscriptSource,
  reader: TranscriptReader,
  cursor: Cursor,
  attempts: number,
  signal: AbortSignal | undefined,
): Promise<void> {
  const began = Date.now();
  const backOff = new BackOff();
  while (cursor.attempt <= attempts) {
    if (signal?.aborted) throw new Aborted(signal.reason);
    const before = cursor.after;
    try {
      await withLinkedSignal([signal], (controller) => readStored(source, reader, cursor, controller));
      source.outage?.recovered();
      cursor.attempt += 1;
      cursor.after = 0;
      backOff.reset();
    } catch (error) {
      if (error instanceof ReaderFailed) throw error.cause;
      if (signal?.aborted) throw new Aborted(signal.reason);
      if (cursor.after > before) backOff.reset();
      if (Date.now() - began >= timeoutFor(source, cursor, error))
        throw new TranscriptIncomplete(cursor.attempt, cursor.after, reasonOf(error));
      source.outage?.failed(outageMessage(source, error));
      await backOff.wait(signal);
    }
  }
}

interface Cursor {
  attempt: number;
  /** The sequence of the last line that the reader got. */
  after: number;
  /** The service has answered at least once. */
  reached: boolean;
}

/** The reader threw, which is no reason to reconnect. */
class ReaderFailed extends Error {}

/** Reads lines as they are written. Resolves to the receipt of a sealed attempt, or to undefined when the service ends. */
async function readOpen(
  source: TranscriptSource,
  reader: TranscriptReader,
  cursor: Cursor,
  controller: AbortController,
): Promise<{ receipt: OutputReceipt | null } | undefined> {
  const resumed: { [name: string]: string } = cursor.after > 0 ? { "Last-Event-ID": String(cursor.after) } : {};
  const accept = { Accept: "text/event-stream", ...resumed };
  return await withResponse(source, "events", cursor, accept, controller, async (response, pieces) => {
    if (response.status === 204) return { receipt: null }; // sealed, and no further lines
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
        if (event.event === undefined || event.event === "message") await deliver(reader, cursor, event.data);
      }
    }
    return undefined;
  });
}

async function readStored(
  source: TranscriptSource,
  reader: TranscriptReader,
  cursor: Cursor,
  controller: AbortController,
): Promise<void> {
  const accept = { Accept: "application/x-ndjson" };
  await withResponse(source, "transcript", cursor, accept, controller, async (response, pieces) => {
    cursor.reached = true;
    if (response.status === 404) return; // nothing of this attempt is stored
    let begun: string[] = [];
    for await (const piece of pieces) {
      const ends = piece.split("\n");
      for (const end of ends.slice(0, -1)) {
        await deliver(reader, cursor, begun.join("") + end);
        begun = [];
      }
      const left = ends[ends.length - 1];
      if (left) begun.push(left);
    }
    if (begun.length > 0) throw new Error("cut in the middle of a line");
  });
}

/** Passes one line to the reader, unless it has had it before. */
async function deliver(reader: TranscriptReader, cursor: Cursor, data: string): Promise<void> {
  const record = await parseJsonInSlices(data, "data");
  const line = lineOf(record, cursor.attempt);
  if (line === undefined || line.sequence <= cursor.after) return;
  try {
    await reader.line(line);
  } catch (error) {
    throw new ReaderFailed("the reader failed", { cause: error });
  }
  cursor.after = line.sequence;
}

/** Sends a request and passes the response to `read`. Rejects for an error response, a cut body, or a long silence. */
async function withResponse<T>(
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
  const silence = source.silence ?? CONNECTION_SILENCE_MS;
  const abort = () => controller.abort(new Error(SILENT));
  const withSilenceTimeout = async <R>(wait: Promise<R>, limit = silence): Promise<R> => {
    const timer = setTimeout(abort, limit);
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
    const response = await withSilenceTimeout(
      fetch(`${url}?${query}`, options),
      Math.min(silence, RESPONSE_TIMEOUT_MS),
    );
    body = response.body?.getReader() as ReadableStreamDefaultReader<Uint8Array> | undefined;
    if (response.status === 401 || response.status === 403) {
      throw new Refused("it refuses our token: set AGENT_RUNS_TRANSCRIPTS_KEY_FILE to the key file of the service");
    }
    if (!response.ok && response.status !== 404) throw new Refused(`it answers ${response.status}`);
    if (what === "events" && response.status === 404)
      throw new Refused("it answers 404: check AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL");
    return await read(response, decodedPieces(body, withSilenceTimeout));
  } finally {
    controller.abort(); // closes the socket, whatever is left in it
    body?.cancel().catch(() => undefined);
  }
}

async function* decodedPieces(
  body: ReadableStreamDefaultReader<Uint8Array> | undefined,
  withSilenceTimeout: <R>(wait: Promise<R>) => Promise<R>,
): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  while (body !== undefined) {
    const { done, value } = await withSilenceTimeout(body.read());
    if (done) return;
    yield decoder.decode(value, { stream: true });
  }
}

function lineOf(record: unknown, attempt: number): Line | undefined {
  if (typeof record !== "object" || record === null) return undefined;
  const { sequence, stream, at, encoding, data } = record as { [name: string]: unknown };
  if (typeof sequence !== "number" || typeof stream !== "string" || typeof data !== "string") return undefined;
  const text = encoding === "base64" ? Buffer.from(data, "base64").toString("utf8") : data;
  return { attempt, sequence, stream, at: typeof at === "string" ? at : "", text };
}

function receiptOf(data: string): OutputReceipt | null {
  const record: unknown = JSON.parse(data);
  if (typeof record !== "object" || record === null) return null;
  const { state, lines, bytes, sha256, gaps } = record as { [name: string]: unknown };
  const gapList = Array.isArray(gaps) ? gaps.map(gapOf) : [];
  return { state, lines, bytes, sha256, gaps: gapList } as OutputReceipt;
}

/** Receipts from the service have Python's names. */
function gapOf(record: unknown): { afterSequence: number; frames: number | null } {
  const gap = record as { [name: string]: unknown };
  const after = gap?.after_sequence ?? gap?.afterSequence;
  return { afterSequence: Number(after ?? 0), frames: typeof gap?.frames === "number" ? gap.frames : null };
}

async function waitForRetry(backOff: BackOff, signal: AbortSignal | undefined, over: AbortSignal): Promise<void> {
  try {
    await withLinkedSignal([signal, over], (controller) => backOff.wait(controller.signal));
  } catch (error) {
    if (signal?.aborted) throw new Aborted(signal.reason);
    if (!(error instanceof Aborted)) throw error;
  }
}

function outageMessage(source: TranscriptSource, error: unknown): string {
  return `the transcript service at ${source.base} cannot be read (${reasonOf(error)}); no output is lost, retrying`;
}

function timeoutFor(source: TranscriptSource, cursor: Cursor, error: unknown): number {
  if (source.timeout !== undefined) return source.timeout;
  if (error instanceof Refused || error instanceof UnusableTokenKey) return REFUSED_TIMEOUT_MS;
  return cursor.reached ? COMPLETION_TIMEOUT_MS : UNREACHED_TIMEOUT_MS;
}

/** At most 300 characters and never the token: of a network error only the code is taken. */
function reasonOf(error: unknown): string {
  if (error instanceof Refused) return error.message;
  const { name, message } = error instanceof Error ? error : { name: "Error", message: "" };
  if (error instanceof UnusableTokenKey || message.startsWith("cut ")) return message.slice(0, 300);
  const cause = error instanceof Error ? error.cause : undefined;
  const code = (cause as { code?: unknown } | undefined)?.code;
  return typeof code === "string" ? code : message === SILENT ? message : name;
}
