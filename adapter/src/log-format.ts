/** Which format a run's log gets: JSON lines for a Paperclip whose transcript view parses them, else text for people. */

import type { LogFormat } from "./log.ts";
import type { AdapterType } from "./settings.ts";

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
 * @param type in place of Paperclip's own OpenCode adapter the log has that one's parser, in every version.
 */
export function logFormatFor(
  setting: string | undefined,
  version: string | undefined,
  type: AdapterType = "opencode_k8s",
): LogFormat {
  const chosen = setting?.trim();
  if (chosen === "json" || chosen === "text") return chosen;
  if (type === "opencode_local") return "events";
  return version !== undefined && WITHOUT_PARSERS.has(version) ? "text" : "json";
}
