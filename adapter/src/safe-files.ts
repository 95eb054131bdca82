/**
 * Reads files that an agent's configuration names, from the disk of Paperclip's host; nothing else may read them.
 *
 * Paperclip's process can read files that agents must not see (its master key), and agents can write to the data
 * volume: neither a path nor a link that an agent planted there may lead out of it into a prompt.
 */
import { constants } from "node:fs";
import { open, realpath } from "node:fs/promises";
import { homedir } from "node:os";
import { dirname, join, resolve, sep } from "node:path";

/** A file that cannot be read. The message names it and the cause, never its content. */
export class UnreadableFile extends Error {
  override readonly name = "UnreadableFile";
}

/** O_NONBLOCK: opening a named pipe must not wait. O_NOFOLLOW: links are resolved already, a new one is an attack. */
const FLAGS = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;

/**
 * The UTF-8 text of the regular file at `path`, without a byte order mark.
 *
 * @param root the folder that must contain it once links are resolved.
 * @param limit in bytes.
 * @throws UnreadableFile: missing, not below `root`, not a regular file, larger than `limit`, or not UTF-8.
 */
export async function readText(path: string, { root, limit }: { root: string; limit: number }): Promise<string> {
  if (path.includes("\0")) throw new UnreadableFile("a path with a NUL character");
  const real = await resolved(path);
  if (!isInside(real, await resolved(root))) throw new UnreadableFile(`${path}: leads out of ${root}`);
  const content = await readBytes(real, limit);
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(content);
  } catch {
    throw new UnreadableFile(`${path}: not UTF-8`);
  }
}

/**
 * The folder that must contain a configured file: for a path below Paperclip's home, to which agents can write, that home;
 * any other path was chosen by an operator, and its own folder must contain it.
 */
export function allowedRoot(environment: NodeJS.ProcessEnv): (path: string) => string {
  const home = resolve(environment.PAPERCLIP_HOME || join(homedir(), ".paperclip"));
  return (path) => (isInside(resolve(path), home) ? home : dirname(resolve(path)));
}

function isInside(path: string, folder: string): boolean {
  return path === folder || path.startsWith(folder.endsWith(sep) ? folder : folder + sep);
}

async function resolved(path: string): Promise<string> {
  return await realpath(path).catch((error: unknown) => {
    throw new UnreadableFile(`${path}: ${causeOf(error)}`);
  });
}

async function readBytes(real: string, limit: number): Promise<Buffer> {
  const file = await open(real, FLAGS).catch((error: unknown) => {
    throw new UnreadableFile(`${real}: ${causeOf(error)}`);
  });
  try {
    const found = await file.stat();
    if (!found.isFile()) throw new UnreadableFile(`${real}: not a regular file`);
    if (found.size > limit) throw new UnreadableFile(`${real}: larger than ${limit} bytes`);
    // one read is not all of it on every file system, and a growing file is cut at its first size
    const buffer = Buffer.alloc(found.size);
    let filled = 0;
    let read: number;
    do {
      read = (await file.read(buffer, filled, buffer.length - filled, filled)).bytesRead;
      filled += read;
    } while (read > 0 && filled < buffer.length);
    return buffer.subarray(0, filled);
  } finally {
    await file.close();
  }
}

const CAUSES: Record<string, string> = {
  ENOENT: "No such file or directory",
  EACCES: "Permission denied",
  ENOTDIR: "Not a directory",
  ELOOP: "links in a circle",
};

function causeOf(error: unknown): string {
  const code = (error as NodeJS.ErrnoException).code ?? "unknown";
  return CAUSES[code] ?? code;
}
