/**
 * Paperclip's own helpers, so that an agent's texts are those of the Paperclip it works for.
 *
 * An adapter cannot import `@paperclipai/adapter-utils` by name: it is resolved from the adapter's own folder, where it
 * is not, and it forbids `require`. The server's own copy is found from the program that runs. Whatever is missing or
 * fails is done without. Source: Paperclip 2026.916.1, observed.
 */
import { readFile, realpath } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import type { JsonObject } from "./paperclip.ts";

const PACKAGE = "@paperclipai/adapter-utils";

/** What this Paperclip offers; a function that it does not have is not there. */
export interface Host {
  /** The wake's prose for an agent. */
  renderWakePrompt?(wake: unknown, options: JsonObject): string;
  /** Whether the wake is to repair something, for which an agent gets no heartbeat template. */
  isRecoveryWake?(wake: unknown): boolean;
  /** The heartbeat template of an agent without one of its own, and that of a conversation. */
  readonly promptTemplate?: string;
  readonly conversationTemplate?: string;
  /** Of the helpers' package, which is the server's. */
  readonly version?: string;
}

let found: Promise<Host> | undefined;

/** The helpers of the Paperclip that runs this process; looked for once. Never throws. */
export function host(): Promise<Host> {
  found ??= hostOf(process.argv[1]);
  return found;
}

/** The helpers of the program at `entry`; an empty host when there are none. */
export async function hostOf(entry: string | undefined): Promise<Host> {
  for (const folder of await candidates(entry)) {
    const helpers = await loaded(folder);
    if (helpers !== undefined) return helpers;
  }
  return {};
}

async function candidates(entry: string | undefined): Promise<string[]> {
  if (!entry) return [];
  // The entry may be a link in `.bin`; the packages lie beside what it points to.
  const entries = [entry, await realpath(entry).catch(() => entry)];
  const folders = entries.flatMap((path) => createRequire(pathToFileURL(path)).resolve.paths(PACKAGE) ?? []);
  return [...new Set(folders)].map((folder) => join(folder, PACKAGE));
}

async function loaded(folder: string): Promise<Host | undefined> {
  try {
    const manifest: unknown = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
    const module: unknown = await import(pathToFileURL(join(folder, "dist", "server-utils.js")).href);
    return offered(module as JsonObject, manifest as JsonObject);
  } catch {
    return undefined;
  }
}

function offered(module: JsonObject, manifest: JsonObject): Host {
  const render = module.renderPaperclipWakePrompt;
  const isRecovery = module.isPaperclipRecoveryWakePayload;
  return {
    ...(typeof render === "function" ? { renderWakePrompt: (wake, options) => text(render(wake, options)) ?? "" } : {}),
    ...(typeof isRecovery === "function" ? { isRecoveryWake: (wake) => isRecovery(wake) === true } : {}),
    ...textAs("promptTemplate", module.DEFAULT_PAPERCLIP_AGENT_PROMPT_TEMPLATE),
    ...textAs("conversationTemplate", module.DEFAULT_PAPERCLIP_CONVERSATION_PROMPT_TEMPLATE),
    ...textAs("version", manifest.version),
  };
}

function text(value: unknown): string | undefined {
  return typeof value === "string" ? value : undefined;
}

function textAs(name: keyof Host, value: unknown): Partial<Host> {
  return text(value) ? { [name]: value } : {};
}
