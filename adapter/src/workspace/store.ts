/** The workspace service's requests (docs/adr/0035), as Paperclip's side of one run. Each waits through an outage. */

import type { OutageLog } from "../log.ts";
import { objectOf } from "../paperclip.ts";
import { BackOff, throwIfAborted, withLinkedSignal } from "../waits.ts";
import {
  type Block,
  blocksOf,
  contentOf,
  decoded,
  digest,
  type Entry,
  encoded,
  type File,
  inParallel,
  type Limits,
  type Scan,
} from "./tree.ts";

const REQUEST_TIMEOUT_MS = 60_000;
const OUTAGE_LIMIT_MS = 120_000;
/** Digests in one question. */
const ASKED = 10_000;
/** Blocks in one request or answer, and their bytes. Of a request there are two copies in memory. */
const BATCH = 512;
const BATCH_BYTES = 4 * 1024 * 1024;
/** Requests with blocks at once. */
const SENDING = 3;
const ROUNDS = 3;
/** Answers that are requested while one is used. */
const AHEAD = 2;

export type Kind = "out" | "begin" | "checkpoint" | "end" | "returned";

/** An entry of the run's ledger, with its tree. */
export interface Recorded {
  number: number;
  kind: Kind;
  tree: Map<string, Entry>;
}

/** The service refuses, or has not answered for too long. */
export class StoreError extends Error {
  override readonly name = "StoreError";
  readonly code: string;
  readonly status: number;
  constructor(code: string, message: string, status = 0) {
    super(message);
    this.code = code;
    this.status = status;
  }
}

export interface Options {
  signal?: AbortSignal;
  outage?: OutageLog;
  /** Milliseconds without an answer. */
  timeout?: number;
}

type Answer = { headers: Headers; body: Buffer };

/** The limits of a tree; undefined where the service keeps no workspaces. */
export async function limitsOf(base: string, options: Options = {}): Promise<Limits | undefined> {
  try {
    const { body } = await request(`${base}/workspace`, undefined, async () => ({}), options);
    return JSON.parse(body.toString()).limits;
  } catch (error) {
    if (error instanceof StoreError && error.status === 404) return undefined;
    throw error;
  }
}

export class Store {
  readonly #base: string;
  readonly #token: () => Promise<string>;
  readonly #options: Options;

  constructor(base: string, token: () => Promise<string>, options: Options = {}) {
    this.#base = base;
    this.#token = token;
    this.#options = options;
  }

  /** Sends the blocks that the store lacks, then the tree; how many bytes were sent. Rejects with `Changed`. */
  async send({ entries, sources }: Scan): Promise<number> {
    const names = [...sources.keys()];
    const tree = await encoded(entries);
    let sent = 0;
    for (let round = 1; ; round++) {
      const missing = await this.#missing(names);
      const blocks = missing.flatMap((name) => sources.get(name) ?? []);
      await inParallel(batches(blocks), SENDING, async (batch) => {
        const frames: Buffer[] = [];
        for (const block of batch) frames.push(length(block.size), await contentOf(block));
        await this.#ask("blocks", Buffer.concat(frames));
        sent += batch.reduce((sum, { size }) => sum + size, 0);
      });
      try {
        await this.#ask("tree", tree, { "Workspace-Kind": "out" });
        return sent;
      } catch (error) {
        const purged = error instanceof StoreError && error.code === "missing"; // some blocks, since they were asked for
        if (!purged || round === ROUNDS) throw error;
      }
    }
  }

  /** The last entry of the ledger, or of one kind; undefined if there is none. */
  async last(kind?: Kind): Promise<Recorded | undefined> {
    try {
      const { headers, body } = await this.#ask("read", ledgerNumber(0), kind && { "Workspace-Kind": kind });
      const number = Number(headers.get("workspace-number"));
      return { number, kind: headers.get("workspace-kind") as Kind, tree: await decoded(body) };
    } catch (error) {
      if (error instanceof StoreError && error.code === "no_workspace") return undefined;
      throw error;
    }
  }

  /** The blocks of these files of a tree, in their order; the next ones are requested meanwhile. */
  async *blocks(number: number, files: readonly File[]): AsyncGenerator<Buffer, void> {
    const coming: { batch: Block[]; answer: Promise<Map<string, Buffer>> }[] = [];
    const next = async function* (): AsyncGenerator<Buffer, void> {
      const first = coming.shift();
      const blocks = await first?.answer;
      for (const { name } of first?.batch ?? []) yield blocks?.get(name) as Buffer;
    };
    for (const batch of batches(files.flatMap(blocksOf))) {
      const names = [...new Set(batch.map(({ name }) => name))];
      const raw = Buffer.concat([ledgerNumber(number), ...names.map((name) => Buffer.from(name, "hex"))]);
      const answer = this.#ask("read", raw).then(({ body }) => unframed(body, names));
      answer.catch(() => undefined); // handled where it is awaited
      coming.push({ batch, answer });
      if (coming.length > AHEAD) yield* next();
    }
    while (coming.length > 0) yield* next();
  }

  async returned(number: number): Promise<void> {
    await this.#ask("tree", Buffer.alloc(0), { "Workspace-Kind": "returned", "Workspace-Number": `${number}` });
  }

  async #missing(names: readonly string[]): Promise<string[]> {
    const missing: string[] = [];
    for (let from = 0; from < names.length; from += ASKED) {
      const asked = names.slice(from, from + ASKED).map((name) => Buffer.from(name, "hex"));
      const { body } = await this.#ask("missing", Buffer.concat(asked));
      for (let at = 0; at < body.length; at += 32) missing.push(body.toString("hex", at, at + 32));
    }
    return missing;
  }

  async #ask(what: string, body: Buffer, headers: Record<string, string> = {}): Promise<Answer> {
    const withToken = async () => ({ ...headers, Authorization: `Bearer ${await this.#token()}` });
    return await request(`${this.#base}/workspace/${what}`, body, withToken, this.#options);
  }
}

/** Blocks in the order that they have, each batch of which fits into a request. */
function* batches<T extends Block>(blocks: Iterable<T>): Generator<T[], void> {
  let [batch, names, bytes]: [T[], Set<string>, number] = [[], new Set(), 0];
  for (const block of blocks) {
    const isNew = !names.has(block.name);
    if (isNew && names.size > 0 && (bytes + block.size > BATCH_BYTES || names.size === BATCH)) {
      yield batch;
      [batch, names, bytes] = [[], new Set(), 0];
    }
    batch.push(block);
    names.add(block.name);
    if (isNew) bytes += block.size;
  }
  if (batch.length > 0) yield batch;
}

function unframed(body: Buffer, names: readonly string[]): Map<string, Buffer> {
  let at = 0;
  const blocks = names.map((name): [string, Buffer] => {
    const end = at + 4 + (at + 4 <= body.length ? body.readUInt32BE(at) : 0);
    const block = body.subarray(at + 4, end);
    if (digest(block) !== name)
      throw new StoreError("damaged", "the workspace service sent a block that is another one");
    at = end;
    return [name, block];
  });
  return new Map(blocks);
}

function length(size: number): Buffer {
  const raw = Buffer.alloc(4);
  raw.writeUInt32BE(size);
  return raw;
}

function ledgerNumber(number: number): Buffer {
  const raw = Buffer.alloc(8);
  raw.writeBigUInt64BE(BigInt(number));
  return raw;
}

/** Rejects with `StoreError`, or with `Aborted`. */
async function request(
  url: string,
  body: Buffer | undefined,
  headers: () => Promise<Record<string, string>>,
  { signal, outage, timeout = OUTAGE_LIMIT_MS }: Options,
): Promise<Answer> {
  const backOff = new BackOff();
  for (const until = Date.now() + timeout; ; ) {
    throwIfAborted(signal);
    const init = { method: body ? "POST" : "GET", body, headers: await headers(), redirect: "error" } as const;
    const answer = await withLinkedSignal([signal, AbortSignal.timeout(REQUEST_TIMEOUT_MS)], async (linked) => {
      const response = await fetch(url, { ...init, signal: linked.signal });
      return { status: response.status, headers: response.headers, body: Buffer.from(await response.arrayBuffer()) };
    }).catch((error: Error & { cause?: { code?: string } }) => error.cause?.code ?? error.name);
    throwIfAborted(signal);
    const reason = typeof answer === "string" ? answer : answer.status >= 500 && `it answers ${answer.status}`;
    if (reason) {
      const message = `the workspace service at ${new URL(url).origin} cannot be reached (${reason})`;
      if (Date.now() > until) throw new StoreError("unavailable", message);
      outage?.failed(message);
      await backOff.wait(signal);
      continue;
    }
    if (typeof answer === "string") throw new TypeError(answer);
    outage?.recovered();
    if (answer.status < 300) return answer;
    throw refusalOf(answer);
  }
}

function refusalOf({ status, body }: Answer & { status: number }): StoreError {
  const said = (() => {
    try {
      return objectOf(JSON.parse(body.toString()));
    } catch {
      return {};
    }
  })();
  const code = typeof said.code === "string" ? said.code : `${status}`;
  const remedy = status === 401 ? ": set AGENT_RUNS_TRANSCRIPTS_KEY_FILE to the key file of the service" : "";
  const message = `the workspace service refuses (${code})${remedy}: ${`${said.message ?? ""}`.slice(0, 300)}`;
  return new StoreError(code, message, status);
}
