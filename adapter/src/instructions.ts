/** The agent's instructions file, read from the disk of Paperclip's host. */
import { readText, UnreadableFile } from "./safe-files.ts";

/** Bytes of an instructions file; prompt and skills share a Secret of 1 MiB with it. */
export const INSTRUCTIONS_LIMIT = 512 * 1024;

/**
 * The text of the configured file, and a note if it cannot be read: the run then has no instructions.
 *
 * Sibling files stay on the host; the prompt names the folder at which relative paths start.
 *
 * @param path `config.instructionsFilePath`; undefined: the agent has none.
 */
export async function instructionsText(
  path: string | undefined,
  rootOf: (path: string) => string,
): Promise<{ text?: string; note?: string }> {
  if (path === undefined) return {};
  try {
    return { text: await readText(path, { root: rootOf(path), limit: INSTRUCTIONS_LIMIT }) };
  } catch (error) {
    if (error instanceof UnreadableFile)
      return { text: "", note: `instructionsFilePath not readable: ${error.message}` };
    throw error;
  }
}
