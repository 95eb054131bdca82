/** Which format a run's log gets: JSON lines for a Paperclip whose transcript view parses them, else text for people. */

import type { LogFormat } from "./log.ts";

/**
 * Versions of Paperclip in which no browser loads a parser of an external adapter: the worker program that its UI runs
 * parsers in assigns to `self.caches`, which has no setter in a browser, and ends. Read in the UI's assets of this version
 * and seen in Chromium 156. A version that is not listed may load one.
 */
const WITHOUT_PARSERS: ReadonlySet<string> = new Set(["2026.916.1"]);

/**
 * The format for this Paperclip.
 *
 * @param setting `json` or `text` decides; everything else counts as `auto`, and a wrong value is refused elsewhere.
 * @param version of the Paperclip that runs this process; undefined when it is not known.
 */
export function logFormatFor(setting: string | undefined, version: string | undefined): LogFormat {
  const chosen = setting?.trim();
  if (chosen === "json" || chosen === "text") return chosen;
  return version !== undefined && WITHOUT_PARSERS.has(version) ? "text" : "json";
}
