/** Key files: a JWK or a JWK set each. The worker makes them, this side only reads: a key of its own would open nothing. */

import { readFile } from "node:fs/promises";
import type { JWK } from "jose";
import { ConfigurationError } from "./settings.ts";

/** @throws ConfigurationError: the file that the setting `field` names cannot be read. */
export async function keyFile(path: string, field: string, copied: string): Promise<string> {
  return await readFile(path, "utf8").catch(({ code }: NodeJS.ErrnoException) => {
    const remedy = `start the worker once, which creates it, or copy ${copied} there, readable for Paperclip's server`;
    throw new ConfigurationError([{ field, remedy: `names ${path}, which cannot be read (${code}): ${remedy}` }]);
  });
}

/** The key, or the first one of a set. Throws anything for what is neither. */
export function firstKey(text: string): JWK {
  const parsed = JSON.parse(text);
  return Array.isArray(parsed.keys) ? parsed.keys[0] : parsed;
}
