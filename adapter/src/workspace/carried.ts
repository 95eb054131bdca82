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
import { type Blocks, gitFolder, gitOf, repositories, takeCommits, withTemporary } from "./git.ts";
import { matcher } from "./ignore.ts";
import { applyChanges } from "./merge.ts";
import { limitsOf, type Recorded, Store, StoreError } from "./store.ts";
import { absent, Changed, FIELD, type Limits, ROOT, scan } from "./tree.ts";

/** For a service that need not keep workspaces. */
const OPTIONAL_TIMEOUT_MS = 10_000;
const SCANS = 3;
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

export interface Carried {
  /** Sends the folder, before the run of this id starts; rejects with `NotSent`. Undefined: it is not carried. */
  out?(runId: string): Promise<void>;
  /** Takes back what the agent of this run has done, unless that is done. Rejects with `NotReturned` or `Aborted`. */
  back(runId: string, signal?: AbortSignal): Promise<void>;
}

type Host = Pick<AdapterExecutionContext, "agent" | "config" | "context">;
type Parts = { settings: Settings; helpers: PaperclipHelpers; log: RunLog; outage: OutageLog; limits?: Limits };

const IN_ADVANCED = /^\s*["']?workspace["']?\s*:\s*["']?(shared|carried|ephemeral)\b/m;

/** What the agent's configuration says, in its own field or in `advanced`. */
function chosen(config: unknown): unknown {
  const { workspace, advanced } = objectOf(config);
  const own = workspace === "auto" ? undefined : workspace;
  return own || (typeof advanced === "string" ? IN_ADVANCED.exec(advanced)?.[1] : objectOf(advanced).workspace);
}

function addressOf({ transcriptsUrl }: Settings): string | undefined {
  return transcriptsUrl?.replace(/\/+$/, "");
}

/**
 * Sets `workspace` to `carried` where the configuration leaves it open and the service keeps workspaces, and returns its
 * limits then. A service that does not answer keeps none, as far as can be known.
 */
export async function withWorkspace<Context extends Host>(
  ctx: Context,
  settings: Settings,
): Promise<{ ctx: Context; limits?: Limits }> {
  const { cwd } = objectOf(objectOf(ctx.context).paperclipWorkspace);
  const base = addressOf(settings);
  if (chosen(ctx.config) || !cwd || base === undefined) return { ctx };
  const limits = await limitsOf(base, { timeout: OPTIONAL_TIMEOUT_MS }).catch(() => undefined);
  return limits ? { ctx: { ...ctx, config: { ...objectOf(ctx.config), workspace: "carried" } }, limits } : { ctx };
}

/**
 * The folder of a run; undefined if Paperclip names none. By the configuration it is carried or not; where that leaves it
 * open, by the limits that `withWorkspace` has returned.
 *
 * Rejects with `ConfigurationError`, `NotSent` or `Aborted`.
 */
export async function carriedFolder(
  { agent, config, context }: Host,
  { settings, helpers, log, outage, limits: known }: Parts,
  signal?: AbortSignal,
): Promise<Carried | undefined> {
  const { workspaceIgnore } = objectOf(config);
  const workspace = chosen(config);
  const { cwd } = objectOf(objectOf(context).paperclipWorkspace);
  const ignored = matcher(workspaceIgnore);
  const asked = workspace === "carried";
  const base = addressOf(settings);
  const limits = asked && base ? await limitsOf(base, { outage, signal }).catch(refuse) : known;
  if (asked && limits === undefined) {
    const remedy =
      "is carried, for which AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL has to name a service with AGENT_RUNS_WORKSPACE_STORE";
    throw new ConfigurationError({ field: "config.workspace", remedy });
  }
  if (base === undefined || typeof cwd !== "string" || cwd === "") return undefined;
  return { out: limits && ((runId) => out(runId, limits)), back };

  function storeOf(runId: string, signal?: AbortSignal): Store {
    const token = () => workspaceToken(runName(agent.id, runId), agent.companyId, settings);
    return new Store(`${base}`, token, { signal, outage });
  }

  async function out(runId: string, limits: Limits): Promise<void> {
    const store = storeOf(runId, signal);
    const send = (folder: string) =>
      withTemporary(async (temporary) => {
        const git = (place: string, path: string) => gitFolder(gitOf(helpers), place, path, temporary);
        const scanned = await scan(folder, ignored, limits, git);
        return { ...scanned, sent: await store.send(scanned) };
      });
    const again = (error: unknown) => error instanceof Changed;
    const sent = alone(`${cwd}`, (folder) => repeated(() => send(folder), again, SCANS));
    const { files, bytes, ...scanned } = await sent.catch(refuse);
    await log.status(`the workspace went out: ${files} files, ${bytes} bytes, of which ${scanned.sent} were sent`);
  }

  async function back(runId: string, signal?: AbortSignal): Promise<void> {
    const store = storeOf(runId, signal);
    const problems = await lastTrees(store)
      .then((trees) => trees && alone(`${cwd}`, (root) => takeBack(root, trees, store, runId, signal)))
      .catch((error: unknown) => {
        throwIfAborted(signal);
        return [reasonOf(error)];
      });
    if (!problems?.length) return;
    const more = problems.length > NAMED ? `, and ${problems.length - NAMED} more` : "";
    const command = `agent-runs workspace ${runId} --into DIR`;
    throw new NotReturned(
      `${problems.slice(0, NAMED).join(", ")}${more}. \`${command}\` writes all that the agent left`,
    );
  }

  /** What did not come back as the agent left it. */
  async function takeBack(root: string, { out, end }: Trees, store: Store, runId: string, signal?: AbortSignal) {
    const [base, theirs] = [out.tree, end.tree];
    const [baseBlocks, theirBlocks] = [out, end].map(({ number }) => store.blocks.bind(store, number)) as [
      Blocks,
      Blocks,
    ];
    const failed: string[] = [];
    const takeAll = async (known: boolean) => {
      for (const path of repositories(theirs)) {
        if (ignored(path) || base.has(`${path}/.git`) !== known) continue;
        const change = { git: gitOf(helpers), base, theirs, baseBlocks, theirBlocks };
        await takeCommits(change, path, join(root, path.slice(ROOT.length + 1))).catch((error: unknown) => {
          throwIfAborted(signal);
          failed.push(`the commits of ${JSON.stringify(path)} (${reasonOf(error)})`);
        });
      }
    };
    await takeAll(true);
    const suffix = `agent-${runId.slice(0, 8)}`;
    const change = { root, base, theirs, suffix, ignored, blocks: theirBlocks };
    const { files, bytes, conflicts } = await applyChanges(change);
    await takeAll(false); // in folders that are here only now
    if (failed.length === 0) await store.returned(end.number);
    const note = conflicts.length > 0 ? `; ${conflicts.length} were changed here, too: *.${suffix}` : "";
    await log.status(`the workspace came back: ${files} files, ${bytes} bytes${note}`);
    const names = conflicts.map((path) => JSON.stringify(path.slice(ROOT.length + 1)));
    return [...failed, ...names.map((name) => `${name} was changed here and by the agent, whose is beside it`)];
  }
}

type Trees = { out: Recorded; end: Recorded };

/** What went out, and the last that the agent left; undefined if it left nothing, or that is back. */
async function lastTrees(store: Store): Promise<Trees | undefined> {
  const last = await store.last();
  if (last === undefined || last.kind === "out" || last.kind === "returned") return undefined;
  const found = last.kind === "begin" ? [await store.last("end"), await store.last("checkpoint")] : [last];
  const end = found.filter((each) => each !== undefined).sort((a, b) => b.number - a.number)[0];
  const out = await store.last("out");
  return out && end && { out, end };
}

function refuse(error: unknown): never {
  throw error instanceof ConfigurationError || error instanceof Aborted ? error : new NotSent(error);
}

/** Of Git what it said. */
function reasonOf(error: unknown): string {
  const { stderr, message } = error as Error & { stderr?: string };
  return stderr?.trim() || message;
}

async function repeated<T>(work: () => Promise<T>, again: (error: unknown) => boolean, times: number): Promise<T> {
  return await work().catch((error) => {
    if (times > 1 && again(error)) return repeated(work, again, times - 1);
    throw error;
  });
}

/** The last use of each folder. */
const inUse = new Map<string, Promise<unknown>>();

/** Calls `work` with the folder's path without links, once no other work is done in it. */
async function alone<T>(cwd: string, work: (folder: string) => Promise<T>): Promise<T> {
  const folder = await realpath(cwd).catch(absent);
  if (folder === undefined || !(await stat(folder)).isDirectory()) {
    const remedy = `names ${JSON.stringify(cwd)}, which is no folder: make it, or choose another one for the project`;
    throw new ConfigurationError({ field: FIELD, remedy });
  }
  const result = (inUse.get(folder) ?? Promise.resolve()).catch(() => undefined).then(() => work(folder));
  inUse.set(folder, result);
  return await result.finally(() => inUse.get(folder) === result && inUse.delete(folder));
}
