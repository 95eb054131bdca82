/** The agent's instructions file, read from the disk of Paperclip's host. */
import { readText, Unreadable } from "./reading.ts";

/** Bytes of an instructions file; prompt and skills share a Secret of 1 MiB with it. */
export const INSTRUCTIONS_LIMIT = 512 * 1024;

/**
 * The text of the configured file, and a sentence if it cannot be had: the run goes on without it.
 *
 * Sibling files stay on the host; the prompt says which folder relative paths start at.
 *
 * @param path `config.instructionsFilePath`; undefined: the agent has none.
 */
export async function instructionsText(
  path: string | undefined,
  within: (path: string) => string,
): Promise<{ text?: string; note?: string }> {
  if (path === undefined) return {};
  try {
    return { text: await readText(path, { within: within(path), limit: INSTRUCTIONS_LIMIT }) };
  } catch (error) {
    if (error instanceof Unreadable) return { text: "", note: `instructionsFilePath not readable: ${error.message}` };
    throw error;
  }
}
