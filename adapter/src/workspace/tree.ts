/**
 * A tree: a folder at one moment, as entries in the order of their paths. Same rules as `agent_runs/workspace/tree.py`;
 * docs/adr/0035 has the reasons.
 */

import { createHash } from "node:crypto";
import { constants } from "node:fs";
import { type FileHandle, lstat, open, readdir, readlink, unlink } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { deflate, inflate } from "node:zlib";
import { ConfigurationError } from "../errors.ts";

/** Bytes of a file's block; its last one is shorter. */
export const BLOCK = 1024 * 1024;
/** The first part of the paths of a working directory; the others are the agent's session. */
export const ROOT = "workspace";
const MAX_PATH = 4096;
/** Folders above an entry: a checkpoint leaves out what is deeper. */
const MAX_DEPTH = 128;
const FILES_AT_ONCE = 8;
const NAMED = 5;
/** What a person has chosen the folder by. */
export const FIELD = "context.paperclipWorkspace.cwd";
/** Opening a named pipe must not wait; a link is not followed. */
const FLAGS = constants.O_RDONLY | constants.O_NONBLOCK | constants.O_NOCTTY | constants.O_NOFOLLOW;

export type Folder = { kind: "dir"; path: string; mode: number };
export type File = { kind: "file"; path: string; mode: number; modified: number; size: number; blocks: string[] };
export type Link = { kind: "link"; path: string; target: string };
export type Entry = Folder | File | Link;
/** What no tree has: a socket, a device. */
type Other = { kind: "other"; path: string; reason: string };
export type Found = Entry | Other | undefined;

/** Of one tree; null: none. */
export type Limits = { bytes: number | null; entries: number | null };

/** A file changed while it was read: begin again. */
export class Changed extends Error {}

/** Whether both are the same but for their time. */
export function same(one: Found, other: Found): boolean {
  if (one?.kind === "file" && other?.kind === "file")
    return one.mode === other.mode && one.blocks.join() === other.blocks.join();
  if (one?.kind === "dir" && other?.kind === "dir") return one.mode === other.mode;
  if (one?.kind === "link" && other?.kind === "link") return one.target === other.target;
  return one === undefined && other === undefined;
}

/** Whether `path` is in Git's own folder, also where the file system takes both spellings for one. */
export function isGits(path: string): boolean {
  return path.toLowerCase().split("/").includes(".git");
}

export function digest(content: Uint8Array): string {
  return createHash("sha256").update(content).digest("hex");
}

/** What is at `place` now, with its content's blocks; undefined for nothing. A link is not followed. */
export async function entryAt(place: string, path: string): Promise<Found> {
  const entry = await statedAt(place, path);
  return entry?.kind === "file" ? await hashed(place, entry) : entry;
}

/** Whether exactly this is at `place`. A file of another size or mode is not read. */
export async function isAt(place: string, entry: Entry): Promise<boolean> {
  const found = await statedAt(place, entry.path);
  if (found?.kind !== "file" || entry.kind !== "file") return same(found, entry);
  return found.mode === entry.mode && found.size === entry.size && same(await hashed(place, found), entry);
}

async function statedAt(place: string, path: string): Promise<Found> {
  const found = await lstat(place, { bigint: true }).catch(absent);
  if (found === undefined) return undefined;
  const [mode, size] = [Number(found.mode & 0o777n), Number(found.size)];
  if (found.isDirectory()) return { kind: "dir", path, mode };
  if (found.isFile()) return { kind: "file", path, mode, modified: Number(found.mtimeNs / 1000n), size, blocks: [] };
  if (!found.isSymbolicLink()) return { kind: "other", path, reason: "a socket, named pipe or device" };
  const target = textOf(await readlink(place, { encoding: "buffer" }));
  return target === undefined ? { kind: "other", path, reason: "a link to no UTF-8" } : { kind: "link", path, target };
}

async function hashed(place: string, entry: File): Promise<Found> {
  const file = await open(place, FLAGS).catch(absent);
  if (file === undefined) return undefined;
  try {
    const { size: limit } = await file.stat(); // a file that grows all the time has an end, too
    let size = 0;
    const blocks: string[] = [];
    for (let content: Buffer; size < limit; size += content.length) {
      content = await readBlock(file, size, limit);
      if (content.length === 0) break;
      blocks.push(digest(content));
    }
    return { ...entry, size, blocks };
  } finally {
    await file.close();
  }
}

async function readBlock(file: FileHandle, position: number, end: number): Promise<Buffer> {
  const block = Buffer.allocUnsafe(Math.min(BLOCK, end - position));
  let filled = 0;
  for (let read = 1; read > 0 && filled < block.length; filled += read)
    read = (await file.read(block, filled, block.length - filled, position + filled)).bytesRead;
  return block.subarray(0, filled);
}

/** A block, and where it is in its file. */
export type Block = { name: string; at: number; size: number };
/** A block of a scanned folder. */
export type Source = Block & { place: string };

export function blocksOf({ blocks, size }: File): Block[] {
  return blocks.map((name, n) => ({ name, at: n * BLOCK, size: Math.min(BLOCK, size - n * BLOCK) }));
}

/** Rejects with `Changed` if the file has changed since it was scanned. */
export async function contentOf({ name, place, at, size }: Source): Promise<Buffer> {
  const file = await open(place, FLAGS);
  try {
    const content = await readBlock(file, at, at + size);
    if (digest(content) !== name) throw new Changed(place);
    return content;
  } finally {
    await file.close();
  }
}

export interface Scan {
  entries: Entry[];
  sources: Map<string, Source>;
  files: number;
  bytes: number;
}

/**
 * The tree of a folder.
 *
 * @param gitFolder the folder that goes out instead of the `.git` in a folder of this path.
 * @throws ConfigurationError naming what cannot be carried, and a limit that the folder exceeds.
 */
export async function scan(
  root: string,
  ignored: (path: string) => boolean,
  limits: Limits,
  gitFolder: (folder: string, path: string) => Promise<string>,
): Promise<Scan> {
  const [found, refused]: [{ place: string; entry: Entry }[], Other[]] = [[], []];
  const add = async (place: string, path: string): Promise<void> => {
    const tooLong = Buffer.byteLength(path) > MAX_PATH || path.split("/").length > MAX_DEPTH + 1;
    const entry = tooLong ? other(path, "a path that is too long") : await statedAt(place, path);
    if (entry === undefined) return;
    if (entry.kind === "other") return void refused.push(entry);
    if (found.push({ place, entry }) > (limits.entries ?? Number.POSITIVE_INFINITY))
      throw tooLarge("entries", limits.entries);
    if (entry.kind !== "dir") return;
    const names = await readdir(place, { encoding: "buffer" }).catch((error: NodeJS.ErrnoException) => error);
    if (names instanceof Error) return void refused.push(other(path, `${names.code}`));
    for (const name of names.sort(Buffer.compare)) {
      const text = textOf(name);
      const below = `${path}/${text ?? name.toString()}`;
      if (ignored(below)) continue;
      if (text === undefined) refused.push(other(below, "a name that is no UTF-8"));
      else await add(text === ".git" && !isGits(path) ? await gitFolder(place, path) : join(place, text), below);
    }
  };
  await add(root, ROOT);
  await inParallel(found, FILES_AT_ONCE, async (each) => {
    if (each.entry.kind !== "file") return;
    const { place, entry } = each;
    const file = await hashed(place, entry).catch((error) => other(entry.path, error.code));
    if (file?.kind === "file") each.entry = file;
    else if (file?.kind === "other") refused.push(file);
    else throw new Changed(entry.path);
  });
  if (refused.length > 0) {
    const names = refused.slice(0, NAMED).map(({ path, reason }) => `${JSON.stringify(path)} (${reason})`);
    const more = refused.length > NAMED ? ` and ${refused.length - NAMED} more` : "";
    const remedy = `holds what cannot be carried: ${names.join(", ")}${more}: remove it, or leave it out with config.workspaceIgnore`;
    throw new ConfigurationError({ field: FIELD, remedy });
  }
  const sources = new Map<string, Source>();
  let [files, bytes] = [0, 0];
  for (const { place, entry } of found) {
    if (entry.kind !== "file") continue;
    files += 1;
    bytes += entry.size;
    for (const block of blocksOf(entry)) sources.set(block.name, { ...block, place });
  }
  if (bytes > (limits.bytes ?? Number.POSITIVE_INFINITY)) throw tooLarge("bytes", limits.bytes);
  return { entries: found.map(({ entry }) => entry), sources, files, bytes };
}

function other(path: string, reason: string): Other {
  return { kind: "other", path, reason };
}

function tooLarge(what: string, limit: number | null): ConfigurationError {
  const remedy = `has more than the ${limit} ${what} that the operator allows: leave folders out with config.workspaceIgnore`;
  return new ConfigurationError({ field: FIELD, remedy });
}

/** Writes the whole file at `place`, where nobody else writes, from the next blocks of `content`. */
export async function writeContent(
  place: string,
  { blocks, mode }: File,
  content: AsyncGenerator<Buffer, void>,
): Promise<void> {
  const make = () => open(place, "wx", 0o600);
  const file = await make().catch(async (error: NodeJS.ErrnoException) => {
    if (error.code !== "EEXIST") throw error;
    await unlink(place);
    return await make();
  });
  try {
    for (const name of blocks) {
      const { value } = await content.next();
      if (value === undefined) throw new Error(`block ${name} is missing`);
      await file.writeFile(value);
    }
    await file.chmod(mode);
  } finally {
    await file.close();
  }
}

/** As the requests have it: JSON, deflated. */
export async function encoded(entries: readonly Entry[]): Promise<Buffer> {
  return await promisify(deflate)(JSON.stringify({ version: 1, entries }));
}

/** The working directory's entries of an encoded tree, by their paths. Throws for a path that leads out of its folder. */
export async function decoded(raw: Uint8Array): Promise<Map<string, Entry>> {
  const { version, entries } = JSON.parse((await promisify(inflate)(raw)).toString()) as {
    version: 1;
    entries: Entry[];
  };
  if (version !== 1) throw new Error(`a tree of version ${version}: update the plugin`);
  const tree = new Map<string, Entry>();
  for (const entry of entries) {
    const [, folder = "", name = ""] = /^(?:(.*)\/)?([^/]*)$/s.exec(entry.path) ?? [];
    const placed = tree.get(folder)?.kind === "dir" || (folder === "" && entry.kind === "dir");
    if (!placed || ["", ".", ".."].includes(name) || name.includes("\0"))
      throw new Error(`the tree has an unusable path: ${JSON.stringify(entry.path)}`);
    tree.set(entry.path, entry);
  }
  for (const path of tree.keys()) if (path !== ROOT && !path.startsWith(`${ROOT}/`)) tree.delete(path);
  return tree;
}

/** Calls `work` for each item, so many at once; rejects with the first error, once all have ended. */
export async function inParallel<T>(items: Iterable<T>, atOnce: number, work: (item: T) => Promise<void>) {
  const left = items[Symbol.iterator]();
  let failed = false;
  const one = async () => {
    for (let next = left.next(); !next.done && !failed; next = left.next())
      await work(next.value).catch((error) => {
        failed = true;
        throw error;
      });
  };
  const ended = await Promise.allSettled(Array.from({ length: atOnce }, one));
  for (const each of ended) if (each.status === "rejected") throw each.reason;
}

/** Undefined for a file that is not there. */
export function absent(error: NodeJS.ErrnoException): undefined {
  if (error.code !== "ENOENT" && error.code !== "ENOTDIR") throw error;
}

/** Decodes UTF-8; undefined if the bytes are not valid. */
function textOf(name: Buffer): string | undefined {
  const text = name.toString();
  return Buffer.from(text).equals(name) ? text : undefined;
}
