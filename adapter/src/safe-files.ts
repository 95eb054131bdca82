/**
 * Reads the files of Paperclip's host that an agent's configuration names; nothing else may read them.
 *
 * Paperclip's process can read files that agents must not see, and agents can write to its data volume: plant links, and
 * exchange folders while they are read. So a file is opened first, and what is judged is where the opened file is. Source of
 * the folders: Paperclip 2026.916.1, `home-paths.js`, `agent-instructions.js`, `company-skills.js`.
 */
import { constants } from "node:fs";
import { type FileHandle, open, readlink, realpath } from "node:fs/promises";
import { homedir } from "node:os";
import { basename, join, relative, resolve, sep } from "node:path";
import { buffer } from "node:stream/consumers";
import { getSystemErrorMap } from "node:util";
import type { Settings } from "./settings.ts";

/** A file that cannot be read. The message names it and the cause, never its content. */
export class UnreadableFile extends Error {
  override readonly name = "UnreadableFile";
}

/** The UTF-8 text of a regular file without a byte order mark, `limit` bytes at most. Rejects with `UnreadableFile`. */
export type Reader = (path: string, limit: number) => Promise<string>;

/** Opening a named pipe must not wait. Links may be followed: the opened file is judged. */
const FLAGS = constants.O_RDONLY | constants.O_NONBLOCK | constants.O_NOCTTY;
/** In Paperclip's home: keys, logins, the database with its backups and uploads. */
const PAPERCLIPS_OWN = /^(?:secrets|instances\/[^/]+\/(?:secrets|db|data|config\.json[^/]*))(?:\/|$)/;
/** In Paperclip's home: a folder of one agent, with its company if that is in the path, and its id. */
const AGENTS_FOLDER = /^instances\/[^/]+\/(?:companies\/([^/]+)\/agents|workspaces)\/([^/]+)/;

/**
 * Readers of an agent's instructions and of its company's skills. Each reads in its own folders and in those that the
 * operator lists, there neither keys nor another agent's files.
 *
 * @param bundled the folders of the skills that come with Paperclip.
 * @param environment of Paperclip's process, which says where its home is.
 */
export async function fileReaders(
  { id, companyId }: { id: string; companyId: string },
  { readableFolders, sealingKeyFile, transcriptsKeyFile }: Settings,
  bundled: readonly string[],
  environment: NodeJS.ProcessEnv,
): Promise<{ instructions: Reader; skill: Reader }> {
  const { PAPERCLIP_SECRETS_MASTER_KEY_FILE: masterKey = "" } = environment;
  const [named, folderOfInstance] = paperclipHome(environment);
  const home = await real(named);
  const instance = join(home, folderOfInstance);
  // Agents may replace a folder in the home by a link: there, links in a folder's own path are not resolved.
  const folder = async (path: string) => {
    const root = [named, home].find((each) => isInside(resolve(path), each));
    return root === undefined ? await real(path) : join(home, relative(root, path));
  };
  const listed = await Promise.all(readableFolders.map(folder));
  const shipped = await Promise.all(bundled.map(folder));

  /** Why the file at `location`, with so many hard links, must not get into this agent's prompt. */
  async function refusal(location: string, links: number, folders: string[]): Promise<string | undefined> {
    if (!folders.some((each) => isInside(location, each)))
      return "leads out of this agent's own folders and AGENT_RUNS_READABLE_FOLDERS";
    const inHome = relative(home, location);
    const [, company = companyId, agent = id] = AGENTS_FOLDER.exec(inHome) ?? [];
    if (company !== companyId || agent !== id) return "leads into another agent's folder";
    const keys = await Promise.all([sealingKeyFile, transcriptsKeyFile, masterKey].map(real));
    const hidden = keys.includes(location) || PAPERCLIPS_OWN.test(inHome) || basename(location).startsWith(".env");
    if (hidden) return "leads to keys or logins";
    return links > 1 && isInside(location, home) ? "has several names, of which one may be another's file" : undefined;
  }
  async function read(path: string, limit: number, folders: string[]): Promise<string> {
    if (path.includes("\0")) throw new UnreadableFile("a path with a NUL character");
    const file = await open(path, FLAGS).catch((error: unknown) => {
      throw new UnreadableFile(`${path}: ${causeOf(error)}`);
    });
    try {
      const found = await file.stat();
      if (!found.isFile()) throw new UnreadableFile(`${path}: not a regular file`);
      const reason = await refusal(await locationOf(file, path), found.nlink, folders);
      if (reason !== undefined) throw new UnreadableFile(`${path}: ${reason}`);
      return await textOf(file, path, limit);
    } finally {
      await file.close();
    }
  }
  const reader =
    (...folders: string[]): Reader =>
    (path, limit) =>
      read(path, limit, folders);
  return {
    instructions: reader(join(instance, "companies", companyId, "agents", id, "instructions"), ...listed),
    // Paperclip imports a company's skills from its projects, too
    skill: reader(join(instance, "skills", companyId), join(instance, "projects", companyId), ...shipped, ...listed),
  };
}

/** Paperclip's home, and in it the folder of this instance. */
export function paperclipHome({ PAPERCLIP_HOME, PAPERCLIP_INSTANCE_ID }: NodeJS.ProcessEnv): [string, string] {
  const home = resolve((PAPERCLIP_HOME?.trim() || "~/.paperclip").replace(/^~(?=\/|$)/, homedir()));
  return [home, join("instances", PAPERCLIP_INSTANCE_ID?.trim() || "default")];
}

/** Where the opened file is. Only Linux says so; elsewhere its path is resolved, which a rename in between can deceive. */
async function locationOf(file: FileHandle, path: string): Promise<string> {
  return process.platform === "linux" ? await readlink(`/proc/self/fd/${file.fd}`) : await real(path);
}

/** Where `path` leads; of one that leads nowhere the path itself, absolute. */
export async function real(path: string): Promise<string> {
  return await realpath(path).catch(() => resolve(path));
}

function isInside(path: string, folder: string): boolean {
  return path === folder || path.startsWith(folder.endsWith(sep) ? folder : folder + sep);
}

async function textOf(file: FileHandle, path: string, limit: number): Promise<string> {
  // one byte more than the limit at most, however fast the file grows
  const content = await buffer(file.createReadStream({ autoClose: false, end: limit }));
  if (content.length > limit) throw new UnreadableFile(`${path}: larger than ${limit} bytes`);
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(content);
  } catch {
    throw new UnreadableFile(`${path}: not UTF-8`);
  }
}

function causeOf(error: unknown): string {
  const { errno = 0, code = "unknown" } = error as NodeJS.ErrnoException;
  return getSystemErrorMap().get(errno)?.[1] ?? code;
}
