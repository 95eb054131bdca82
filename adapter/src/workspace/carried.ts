/**
 * A folder that is carried: it goes out before a run starts, and what the agent has done in it comes back afterwards.
 * Whatever fails here, the work stays in the workspace store, and `agent-runs workspace RUN --into DIR` writes it somewhere.
 */

import { realpath, stat } from "node:fs/promises";
import { join } from "node:path";
import { ConfigurationError } from "../errors.ts";
import type { OutageLog, RunLog } from "../log.ts";
import { type AdapterExecutionContext, objectOf } from "../paperclip.ts";
import type { PaperclipHelpers } from "../paperclip-helpers.ts";
import type { Settings } from "../settings.ts";
import { runName, workspaceToken } from "../tokens.ts";
import { Aborted, throwIfAborted } from "../waits.ts";
import { gitFolder, gitOf, repositories, takeCommits, withTemporary } from "./git.ts";
import { applyChanges } from "./merge.ts";
import { limitsOf, type Options, Store, StoreError } from "./store.ts";
import { absent, Changed, type Limits, matcher, ROOT, type Scan, scan } from "./tree.ts";

/** For a service that need not be there. */
const OPTIONAL_PATIENCE_MS = 10_000;
const SCANS = 3;
const STORELESS =
  "is carried, for which the service at AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL needs AGENT_RUNS_WORKSPACE_STORE";
const NAMED = 5;

/** The folder could not be sent: nothing was started. */
export class NotSent extends Error {
  override readonly name = "NotSent";
  /** The service does not answer. */
  readonly transient: boolean;
  constructor(error: unknown) {
    super(error instanceof Changed ? `${error.message} changed each time it was read` : reasonOf(error));
    this.transient = error instanceof StoreError && error.code === "unavailable";
  }
}

/** What did not come back, and where it is. */
export class NotReturned extends Error {
  override readonly name = "NotReturned";
}

/** The limits of a carried folder; undefined if this agent's is not carried, by its configuration or the service's. */
async function limitsFor(config: unknown, base: string, options: Options): Promise<Limits | undefined> {
  const { workspace } = objectOf(config);
  if (workspace !== "carried" && !["", null, undefined].includes(workspace as "")) return undefined;
  if (workspace !== "carried")
    return await limitsOf(base, { ...options, patience: OPTIONAL_PATIENCE_MS }).catch(unknown);
  const limits = await limitsOf(base, options).catch(notSent);
  if (limits === undefined) throw new ConfigurationError({ field: "config.workspace", remedy: STORELESS });
  return limits;
}

/** A service that does not answer is the transcripts' only, as far as can be known. */
function unknown(error: unknown): undefined {
  if (!(error instanceof StoreError)) throw error;
}

type Host = Pick<AdapterExecutionContext, "agent" | "config" | "context">;
type Parts = { settings: Settings; helpers: PaperclipHelpers; log: RunLog; outage: OutageLog };

/** The folder of a run; undefined if Paperclip names none. Rejects as `out` does. */
export async function carriedFolder(host: Host, parts: Parts, signal?: AbortSignal): Promise<Carried | undefined> {
  const base = parts.settings.transcriptsUrl?.replace(/\/+$/, "");
  const { workspace, workspaceIgnore } = objectOf(host.config);
  const { cwd } = objectOf(objectOf(host.context).paperclipWorkspace);
  if (workspace === "carried" && base === undefined)
    throw new ConfigurationError({ field: "config.workspace", remedy: STORELESS });
  if (base === undefined || typeof cwd !== "string" || cwd === "") return undefined;
  const limits = await limitsFor(host.config, base, { outage: parts.outage, signal });
  return new Carried(base, cwd, limits, matcher(workspaceIgnore), host, parts);
}

function notSent(error: unknown): never {
  if (error instanceof ConfigurationError || error instanceof Aborted) throw error;
  throw new NotSent(error);
}

/** Of Git what it said. */
function reasonOf(error: unknown): string {
  const { stderr, message } = error as Error & { stderr?: string };
  return stderr?.trim() || message;
}

/** The last use of each folder. */
const inUse = new Map<string, Promise<unknown>>();

/** Calls `work` with the folder's path without links, once no other work is done in it. */
async function alone<T>(cwd: string, work: (folder: string) => Promise<T>): Promise<T> {
  const folder = await realpath(cwd).catch(absent);
  if (folder === undefined || !(await stat(folder)).isDirectory()) {
    const remedy = `names ${JSON.stringify(cwd)}, which is no folder: make it, or choose another one for the project`;
    throw new ConfigurationError({ field: "context.paperclipWorkspace.cwd", remedy });
  }
  const result = (inUse.get(folder) ?? Promise.resolve()).then(() => work(folder));
  const ended: Promise<void> = result.then(
    () => undefined,
    () => undefined,
  );
  inUse.set(folder, ended);
  void ended.then(() => inUse.get(folder) === ended && inUse.delete(folder));
  return await result;
}

export class Carried {
  readonly #base: string;
  readonly #cwd: string;
  readonly #limits: Limits | undefined;
  readonly #ignored: (path: string) => boolean;
  readonly #host: Host;
  readonly #parts: Parts;

  constructor(
    base: string,
    cwd: string,
    limits: Limits | undefined,
    ignored: (path: string) => boolean,
    host: Host,
    parts: Parts,
  ) {
    this.#base = base;
    this.#cwd = cwd;
    this.#limits = limits;
    this.#ignored = ignored;
    this.#host = host;
    this.#parts = parts;
  }

  get goesOut(): boolean {
    return this.#limits !== undefined;
  }

  #store(runId: string, signal?: AbortSignal): Store {
    const { id, companyId } = this.#host.agent;
    const token = () => workspaceToken(runName(id, runId), companyId, this.#parts.settings);
    return new Store(this.#base, token, { signal, outage: this.#parts.outage });
  }

  /** Sends the folder, before the run of this id starts. Rejects with `ConfigurationError`, `NotSent` or `Aborted`. */
  async out(runId: string, signal?: AbortSignal): Promise<void> {
    const store = this.#store(runId, signal);
    const limits = this.#limits ?? { bytes: null, entries: null };
    const { files, bytes, sent } = await alone(this.#cwd, (folder) => this.#send(folder, store, limits)).catch(notSent);
    await this.#parts.log.status(`the workspace went out: ${files} files, ${bytes} bytes, of which ${sent} were sent`);
  }

  async #send(folder: string, store: Store, limits: Limits, left = SCANS): Promise<Scan & { sent: number }> {
    try {
      return await withTemporary(async (temporary) => {
        const git = (place: string, path: string) => gitFolder(gitOf(this.#parts.helpers), place, path, temporary);
        const scanned = await scan(folder, this.#ignored, limits, git);
        return { ...scanned, sent: await store.send(scanned) };
      });
    } catch (error) {
      if (error instanceof Changed && left > 1) return await this.#send(folder, store, limits, left - 1);
      throw error;
    }
  }

  /** Takes back what the agent of this run has done, unless that is done. Rejects with `NotReturned` or `Aborted`. */
  async back(runId: string, signal?: AbortSignal): Promise<void> {
    const store = this.#store(runId, signal);
    const problems = await this.#takeBack(store, runId, signal).catch((error: unknown) => {
      throwIfAborted(signal);
      return [reasonOf(error)];
    });
    if (problems.length === 0) return;
    const more = problems.length > NAMED ? `, and ${problems.length - NAMED} more` : "";
    const command = `agent-runs workspace ${runId} --into DIR`;
    throw new NotReturned(
      `${problems.slice(0, NAMED).join(", ")}${more}. \`${command}\` writes all that the agent left`,
    );
  }

  /** What did not come back as the agent left it. */
  async #takeBack(store: Store, runId: string, signal?: AbortSignal): Promise<string[]> {
    const last = await store.last();
    if (last === undefined || last.kind === "out" || last.kind === "returned") return [];
    const begun = last.kind === "begin" ? [await store.last("end"), await store.last("checkpoint")] : [last];
    const end = begun.filter((each) => each !== undefined).sort((a, b) => b.number - a.number)[0];
    const out = await store.last("out");
    if (end === undefined || out === undefined) return [];
    return await alone(this.#cwd, async (root) => {
      const [base, theirs] = [out.tree, end.tree];
      const git = repositories(theirs).map((path) => ({ path, folder: join(root, path.slice(ROOT.length + 1)) }));
      const theirBlocks = (names: readonly string[]) => store.blocks(end.number, names);
      const baseBlocks = (names: readonly string[]) => store.blocks(out.number, names);
      const failed: string[] = [];
      const take = async (known: boolean) => {
        for (const { path, folder } of git) {
          if (this.#ignored(path) || base.has(`${path}/.git`) !== known) continue;
          throwIfAborted(signal);
          const change = { git: gitOf(this.#parts.helpers), base, theirs, baseBlocks, theirBlocks };
          const same = (await realpath(folder).catch(absent)) === folder;
          const taken = same ? takeCommits(change, path, folder) : Promise.reject(new Error("the folder is not there"));
          await taken.catch((error: unknown) => {
            throwIfAborted(signal);
            failed.push(`the commits of ${JSON.stringify(path)} (${reasonOf(error)})`);
          });
        }
      };
      await take(true);
      const suffix = `agent-${runId.slice(0, 8)}`;
      const change = { root, base, theirs, suffix, ignored: this.#ignored, blocks: theirBlocks };
      const { files, bytes, conflicts } = await applyChanges(change);
      await take(false);
      if (failed.length === 0) await store.returned(end.number);
      const entries = conflicts.map((path) => JSON.stringify(path.slice(ROOT.length + 1)));
      const note = entries.length > 0 ? `; ${entries.length} were changed here, too: *.${suffix}` : "";
      await this.#parts.log.status(`the workspace came back: ${files} files, ${bytes} bytes${note}`);
      return [...failed, ...entries.map((path) => `${path} was changed here and by the agent, whose is beside it`)];
    });
  }
}
