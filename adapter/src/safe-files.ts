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
import { getSystemErrorMap } from "node:util";

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
    if (!(await file.stat()).isFile()) throw new UnreadableFile(`${real}: not a regular file`);
    const pieces: Buffer[] = [];
    // one byte more than the limit at most, however fast the file grows
    for await (const piece of file.createReadStream({ autoClose: false, end: limit })) pieces.push(piece);
    const content = Buffer.concat(pieces);
    if (content.length > limit) throw new UnreadableFile(`${real}: larger than ${limit} bytes`);
    return content;
  } finally {
    await file.close();
  }
}

function causeOf(error: unknown): string {
  const { errno = 0, code = "unknown" } = error as NodeJS.ErrnoException;
  return getSystemErrorMap().get(errno)?.[1] ?? code;
}
