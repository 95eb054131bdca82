/**
 * Paperclip's own helpers, so that an agent's texts and skills are those of the Paperclip it works for.
 *
 * An adapter cannot import `@paperclipai/adapter-utils` by name: it is resolved from the adapter's own folder, where it
 * is not installed, and it forbids `require`. The server's own copy is found from the program that runs. A helper that is
 * missing or cannot be loaded is left out. Source: Paperclip 2026.916.1, observed.
 */
import { readFile, realpath } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import type { JsonObject } from "./paperclip.ts";

const PACKAGE = "@paperclipai/adapter-utils";

/** What is used of the helpers, by their own names; those that this Paperclip does not have are undefined. */
export interface PaperclipHelpers {
  /** Renders the wake's prose for an agent. */
  renderPaperclipWakePrompt?(wake: unknown, options: JsonObject): string;
  /** The wake as JSON, for `PAPERCLIP_WAKE_PAYLOAD_JSON`; null if there is nothing worth waking for. */
  stringifyPaperclipWakePayload?(wake: unknown): string | null;
  /** Whether the wake asks for a repair; the agent then gets no heartbeat template. */
  isPaperclipRecoveryWakePayload?(wake: unknown): boolean;
  /** Keys of the skills that an agent desires; a name of no skill is its own key. */
  resolvePaperclipDesiredSkillNames?(config: JsonObject, offered: readonly object[]): string[];
  /** The skills page of an agent whose skills are not installed anywhere. */
  buildRuntimeMountedSkillSnapshot?(options: JsonObject): JsonObject;
  /** Runs Git in a folder; rejects with its output as `stderr`. */
  runLocalGit?(folder: string, args: readonly string[], options: GitOptions): Promise<{ stdout: string }>;
  resetLocalGitIndexToHead?(input: { localDir: string }): Promise<void>;
  /** The address without a login; null if it cannot be known to have none. */
  sanitizeGitRemoteUrl?(url: string): string | null;
  /** The heartbeat template of an agent without one of its own. */
  readonly DEFAULT_PAPERCLIP_AGENT_PROMPT_TEMPLATE?: string;
  /** The same in a conversation. */
  readonly DEFAULT_PAPERCLIP_CONVERSATION_PROMPT_TEMPLATE?: string;
  /** Version of the helpers' package, which is the server's. */
  readonly version?: string;
  /** Where Paperclip looks for the skills that come with it. */
  readonly bundledSkills?: readonly string[];
}

interface GitOptions {
  /** Milliseconds. */
  timeout: number;
  maxBuffer: number;
}

let cached: Promise<PaperclipHelpers> | undefined;

/** The helpers of the Paperclip that runs this process; loaded once. Never throws. */
export function paperclipHelpers(): Promise<PaperclipHelpers> {
  cached ??= loadHelpers(process.argv[1]);
  return cached;
}

/** The helpers of the program at `entry`; none when they cannot be loaded. */
export async function loadHelpers(entry: string | undefined): Promise<PaperclipHelpers> {
  if (!entry) return {};
  // The entry may be a link in `.bin`; the packages are next to its target.
  const program = await realpath(entry).catch(() => entry);
  const folders = [entry, program].flatMap((path) => createRequire(pathToFileURL(path)).resolve.paths(PACKAGE) ?? []);
  for (const folder of new Set(folders)) {
    const helpers = await loadFrom(join(folder, PACKAGE));
    if (helpers === undefined) continue;
    // as its `company-skills.js` does: for an installation by npm, for an image, for its sources
    const server = join(folder, "@paperclipai", "server");
    const places = [server, join(program, "../.."), join(program, "../../.."), process.cwd()];
    return { ...helpers, bundledSkills: places.map((place) => join(place, "skills")) };
  }
  return {};
}

async function loadFrom(folder: string): Promise<PaperclipHelpers | undefined> {
  try {
    const { version } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
    const load = (name: string) => import(pathToFileURL(join(folder, "dist", `${name}.js`)).href);
    const git = await load("git-workspace-sync").catch(() => ({}));
    return { ...git, ...(await load("server-utils")), version };
  } catch {
    return undefined;
  }
}
