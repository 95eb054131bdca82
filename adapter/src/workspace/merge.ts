/**
 * The way back of a folder's files: what the agent has changed since the folder went out is applied to the local folder as
 * it is now. What was changed in both stays as it is locally, and the agent's is put beside it.
 *
 * Every path is looked at again right before it is replaced, so that no newer local change is lost; and nothing is written
 * below a link. Doing it again changes nothing.
 */

import { chmod, lstat, mkdir, realpath, rename, rm, rmdir, symlink, unlink } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import type { Blocks } from "./git.ts";
import {
  absent,
  digest,
  type Entry,
  entryAt,
  type File,
  type Found,
  isAt,
  isGits,
  ROOT,
  same,
  writeContent,
} from "./tree.ts";

/** Characters of a name that a suffix is added to; a name has 255 bytes at most. */
const NAME = 50;

export interface Change {
  /** The local folder, without links in its path. */
  root: string;
  /** The trees that went out and came back. */
  base: ReadonlyMap<string, Entry>;
  theirs: ReadonlyMap<string, Entry>;
  /** Of the names of what is put beside a local file. */
  suffix: string;
  ignored(path: string): boolean;
  blocks: Blocks;
}

export interface Applied {
  files: number;
  bytes: number;
  /** Paths that were changed in both. */
  conflicts: string[];
}

export async function applyChanges({ root, base, theirs, suffix, ignored, blocks }: Change): Promise<Applied> {
  const conflicts = new Set<string>();
  const isOurs = (path: string) => path !== ROOT && !isGits(path) && !ignored(path);
  const direct = (path: string) => join(root, path.slice(ROOT.length + 1));
  const beside = (place: string, n: number) => {
    const [name, number] = [basename(place), n > 1 ? `-${n}` : ""];
    const short = Buffer.byteLength(name) > 200 ? Array.from(name).slice(0, NAME).join("") : name;
    return join(dirname(place), `${short}.${suffix}${number}`);
  };

  /** Whether there is a folder for this, and no link leads to it. */
  const hasFolder = async (place: string): Promise<boolean> =>
    (await realpath(`${dirname(place)}/.`).catch(() => undefined)) === dirname(place);
  /** What is there now; nothing below a link. */
  const oursAt = async (place: string, path: string): Promise<Found> =>
    (await hasFolder(place)) ? await entryAt(place, path) : undefined;

  /** The folder at `place`, or beside what else is there. */
  async function folder(place: string, path: string): Promise<string> {
    const wanted = theirs.get(path);
    const mode = wanted?.kind === "dir" ? wanted.mode : 0o755;
    for (let n = 0; ; n++) {
      const candidate = n === 0 ? place : beside(place, n);
      const found = await lstat(candidate).catch(absent);
      if (found?.isDirectory()) return candidate;
      if (found !== undefined) continue;
      await mkdir(candidate);
      await chmod(candidate, mode | 0o700);
      return candidate;
    }
  }
  async function placeOf(path: string): Promise<string> {
    const above = dirname(path);
    if (above === ROOT || (await hasFolder(direct(path)))) return direct(path);
    return join(await folder(await placeOf(above), above), basename(path));
  }

  async function remove(was: Entry): Promise<void> {
    const place = direct(was.path);
    const ours = await oursAt(place, was.path);
    if (was.kind === "dir" && ours?.kind === "dir") await rmdir(place).catch(kept);
    else if (was.kind === "dir") return;
    else if (same(ours, was)) await unlink(place);
    else if (ours !== undefined && ours.kind !== theirs.get(was.path)?.kind) conflicts.add(was.path);
  }

  async function addFolder(entry: Entry & { kind: "dir" }): Promise<void> {
    const was = base.get(entry.path);
    if (was?.kind === "dir") return; // it may have been removed locally
    const place = await folder(await placeOf(entry.path), entry.path);
    if (place !== direct(entry.path)) conflicts.add(entry.path);
  }

  async function add(entry: Exclude<Entry, { kind: "dir" }>, content: AsyncGenerator<Buffer, void>): Promise<void> {
    const { path } = entry;
    const was = base.get(path)?.kind === "dir" ? undefined : base.get(path);
    const temporary = join(dirname(await placeOf(path)), `.${suffix}-${digest(Buffer.from(path)).slice(0, 16)}`);
    let isThere = true;
    try {
      if (entry.kind === "file") await writeContent(temporary, entry, content);
      else {
        await rm(temporary, { force: true });
        await symlink(entry.target, temporary);
      }
      for (let n = 0; ; n++) {
        const own = await placeOf(path);
        const place = n === 0 ? own : beside(own, n);
        const ours = await oursAt(place, path);
        const conflict = n > 0 || own !== direct(path);
        if (conflict) conflicts.add(path);
        if (same(ours, entry)) return;
        if (!same(ours, conflict ? undefined : was)) continue;
        await rename(temporary, place);
        isThere = false;
        return;
      }
    } finally {
      if (isThere) await rm(temporary, { force: true });
    }
  }

  const gone = [...base.values()].filter(({ path, kind }) => {
    const now = theirs.get(path)?.kind;
    return isOurs(path) && (now === undefined || (now === "dir") !== (kind === "dir"));
  });
  for (const was of gone.reverse()) await remove(was);

  const changed = [...theirs.values()].filter((entry) => isOurs(entry.path) && !same(entry, base.get(entry.path)));
  for (const entry of changed) if (entry.kind === "dir") await addFolder(entry);
  const missing: Exclude<Entry, { kind: "dir" }>[] = [];
  for (const entry of changed)
    if (entry.kind !== "dir" && !((await hasFolder(direct(entry.path))) && (await isAt(direct(entry.path), entry))))
      missing.push(entry);
  const files = missing.filter((entry): entry is File => entry.kind === "file");
  const content = blocks(files);
  for (const entry of missing) await add(entry, content);

  for (const { path, ...entry } of changed.reverse()) {
    if (entry.kind !== "dir") continue;
    const ours = await oursAt(direct(path), path);
    if (ours?.kind === "dir" && (same(ours, base.get(path)) || ours.mode === (entry.mode | 0o700)))
      await chmod(direct(path), entry.mode);
  }
  return { files: missing.length, bytes: files.reduce((sum, { size }) => sum + size, 0), conflicts: [...conflicts] };
}

/** A folder that has something in it is kept. */
function kept(error: NodeJS.ErrnoException): void {
  if (!["ENOENT", "ENOTEMPTY", "EEXIST"].includes(error.code ?? "")) throw error;
}
