/**
 * The one way to read a file that an agent's configuration names, from the disk of Paperclip's host.
 *
 * Paperclip's process can read files that agents must not see (its master key), and agents can write to the data
 * volume: a path, or a link that an agent planted there, must not lead out of it into a prompt.
 */
import { constants } from "node:fs";
import { type FileHandle, open, realpath } from "node:fs/promises";
import { homedir } from "node:os";
import { dirname, join, resolve, sep } from "node:path";

/** A file that cannot be had. The message names it and the cause, never its content. */
export class Unreadable extends Error {
  override readonly name = "Unreadable";
}

/**
 * The UTF-8 text of the regular file at `path`, without a byte order mark.
 *
 * @param path absolute.
 * @param within the folder where it must really be, links resolved.
 * @param limit in bytes.
 * @throws Unreadable: missing, outside `within`, not a regular file, larger than `limit`, or not UTF-8.
 */
export async function readText(path: string, { within, limit }: { within: string; limit: number }): Promise<string> {
  if (path.includes("\0")) throw new Unreadable("a path with a NUL character");
  const real = await resolved(path);
  if (!isInside(real, await resolved(within))) throw new Unreadable(`${path}: leads out of ${within}`);
  const content = await bytes(real, limit);
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(content);
  } catch {
    throw new Unreadable(`${path}: not UTF-8`);
  }
}

/**
 * Where a configured file must really be: what is below Paperclip's home, which agents can write to, stays below it;
 * anything else was chosen by an operator and stays in its folder.
 */
export function confinement(environment: NodeJS.ProcessEnv): (path: string) => string {
  const home = resolve(environment.PAPERCLIP_HOME || join(homedir(), ".paperclip"));
  return (path) => (isInside(resolve(path), home) ? home : dirname(resolve(path)));
}

function isInside(path: string, folder: string): boolean {
  return path === folder || path.startsWith(folder.endsWith(sep) ? folder : folder + sep);
}

async function resolved(path: string): Promise<string> {
  return realpath(path).catch((error: unknown) => {
    throw new Unreadable(`${path}: ${cause(error)}`);
  });
}

async function bytes(real: string, limit: number): Promise<Buffer> {
  // Without waiting, so that a named pipe cannot hold us; links were resolved, a new one is a trick.
  const flags = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;
  const file = await open(real, flags).catch((error: unknown) => {
    throw new Unreadable(`${real}: ${cause(error)}`);
  });
  try {
    return await wholeContent(file, real, limit);
  } finally {
    await file.close();
  }
}

async function wholeContent(file: FileHandle, real: string, limit: number): Promise<Buffer> {
  const found = await file.stat();
  if (!found.isFile()) throw new Unreadable(`${real}: not a regular file`);
  if (found.size > limit) throw new Unreadable(`${real}: larger than ${limit} bytes`);
  const buffer = Buffer.alloc(found.size);
  let filled = 0;
  while (filled < buffer.length) {
    const { bytesRead } = await file.read(buffer, filled, buffer.length - filled, filled);
    if (bytesRead === 0) break;
    filled += bytesRead;
  }
  return buffer.subarray(0, filled);
}

const CAUSES: Record<string, string> = {
  ENOENT: "No such file or directory",
  EACCES: "Permission denied",
  ENOTDIR: "Not a directory",
  EISDIR: "Is a directory",
  ELOOP: "links in a circle",
  ENAMETOOLONG: "File name too long",
};

function cause(error: unknown): string {
  const code = (error as NodeJS.ErrnoException).code ?? "unknown";
  return CAUSES[code] ?? code;
}
