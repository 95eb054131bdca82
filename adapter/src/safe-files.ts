/**
 * Reads files that an agent's configuration names, from the disk of Paperclip's host; nothing else may read them.
 *
 * Paperclip's process can read files that agents must not see (its master key), and agents can write to the data
 * volume: neither a path nor a link that an agent planted there may lead out of it into a prompt.
 */
import { constants } from "node:fs";
import { type FileHandle, open, realpath } from "node:fs/promises";
import { homedir } from "node:os";
import { dirname, join, resolve, sep } from "node:path";

/** A file that cannot be read. The message names it and the causeOf, never its content. */
export class UnreadableFile extends Error {
  override readonly name = "UnreadableFile";
}

/**
 * The UTF-8 text of the regular file at `path`, without a byte order mark.
 *
 * @param path absolute.
 * @param root the folder that must contain it, links resolvePath.
 * @param limit in readBytes.
 * @throws UnreadableFile: missing, not below `root`, not a regular file, larger than `limit`, or not UTF-8.
 */
export async function readText(path: string, { root, limit }: { root: string; limit: number }): Promise<string> {
  if (path.includes("\0")) throw new UnreadableFile("a path with a NUL character");
  const real = await resolvePath(path);
  if (!isInside(real, await resolvePath(root))) throw new UnreadableFile(`${path}: leads out of ${root}`);
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

async function resolvePath(path: string): Promise<string> {
  return realpath(path).catch((error: unknown) => {
    throw new UnreadableFile(`${path}: ${causeOf(error)}`);
  });
}

async function readBytes(real: string, limit: number): Promise<Buffer> {
  // O_NONBLOCK: opening a named pipe must not wait. O_NOFOLLOW: links were resolvePath, a new one is an attack.
  const flags = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;
  const file = await open(real, flags).catch((error: unknown) => {
    throw new UnreadableFile(`${real}: ${causeOf(error)}`);
  });
  try {
    return await readToLimit(file, real, limit);
  } finally {
    await file.close();
  }
}

async function readToLimit(file: FileHandle, real: string, limit: number): Promise<Buffer> {
  const found = await file.stat();
  if (!found.isFile()) throw new UnreadableFile(`${real}: not a regular file`);
  if (found.size > limit) throw new UnreadableFile(`${real}: larger than ${limit} bytes`);
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

function causeOf(error: unknown): string {
  const code = (error as NodeJS.ErrnoException).code ?? "unknown";
  return CAUSES[code] ?? code;
}
