/**
 * What only Paperclip's process can render or read for a run, so that a worker needs neither its helpers nor its disk.
 * Whatever fails gives a note instead.
 */

import type { HostTexts, ToolServer, WakePrompt } from "../generated/contracts.ts";
import { type AdapterExecutionContext, type JsonObject, objectOf } from "./paperclip.ts";
import type { PaperclipHelpers } from "./paperclip-helpers.ts";
import { fileReaders, UnreadableFile } from "./safe-files.ts";
import type { Settings } from "./settings.ts";
import { skillsOf } from "./skills.ts";
import { sleep } from "./waits.ts";

/** Bytes of an instructions file; prompt and skills share a Secret of 1 MiB with it. */
const INSTRUCTIONS_LIMIT = 512 * 1024;
/** To a variable, in OpenCode's configuration; Paperclip's own adapter replaces it as well. */
const REFERENCE = /\{env:([A-Za-z_]\w*)\}/g;
const TOOL_SERVERS_LIMIT = 64;
const TOOL_SERVERS_TIMEOUT_MS = 5000;
/** Characters. */
const NOTE_LIMIT = 500;
const RENDERER_FAILED =
  "Paperclip's own renderer failed on this wake; the agent gets the task without Paperclip's wake text";
const REPAIR_UNKNOWN = "Paperclip's own helper failed on this wake; it counts as one that asks for no repair";
const NO_TOOL_SERVERS = "Paperclip did not name its tool servers; the agent does without";

export async function hostTexts(
  ctx: AdapterExecutionContext,
  settings: Settings,
  helpers: PaperclipHelpers,
  environment: NodeJS.ProcessEnv,
): Promise<HostTexts & { wakePrompt: WakePrompt; notes: string[] }> {
  const [config, context] = [objectOf(ctx.config), objectOf(ctx.context)];
  const [path, wake] = [config.instructionsFilePath, context.paperclipWake];
  const files = await fileReaders(ctx.agent, settings, helpers.bundledSkills ?? [], environment);
  const notes: string[] = [];
  /** What `work` gives; when it fails, `fallback` and a note. Nothing of an error is quoted except why a file cannot be read. */
  async function noted<T>(fallback: T, note: string, work: () => T | Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      notes.push(error instanceof UnreadableFile ? `${note}: ${error.message}` : note);
      return fallback;
    }
  }
  return {
    wakePrompt: await noted<WakePrompt>({}, RENDERER_FAILED, () => wakePrompt(context, helpers)),
    wakePayload: await noted(null, RENDERER_FAILED, () => helpers.stringifyPaperclipWakePayload?.(wake) ?? null),
    heartbeatTemplate:
      context.conversationMode === true
        ? helpers.DEFAULT_PAPERCLIP_CONVERSATION_PROMPT_TEMPLATE
        : helpers.DEFAULT_PAPERCLIP_AGENT_PROMPT_TEMPLATE,
    repairWake: await noted(false, REPAIR_UNKNOWN, () => helpers.isPaperclipRecoveryWakePayload?.(wake) ?? false),
    // sibling files stay on the host; the prompt names the folder at which relative paths start
    instructions: await noted("", "instructionsFilePath not readable", () =>
      typeof path === "string" && path.trim() ? files.instructions(path, INSTRUCTIONS_LIMIT) : undefined,
    ),
    ...(await skillsOf(config, helpers, files.skill, notes)),
    toolServers: await noted([], NO_TOOL_SERVERS, () => toolServers(ctx.runtimeMcp)),
    ...surroundings(settings, environment, config),
    // evaluated last: all of the above add to it
    notes: notes.map((note) => [...note].slice(0, NOTE_LIMIT).join("")),
  };
}

/** What the environment of Paperclip's process says: where Paperclip is, also as pods reach it, and OpenCode's providers. */
export function surroundings(
  { paperclipApiUrl: podsAddress }: Pick<Settings, "paperclipApiUrl">,
  environment: NodeJS.ProcessEnv,
  config: JsonObject,
) {
  const address = environment.PAPERCLIP_API_URL || environment.PAPERCLIP_RUNTIME_API_URL || undefined;
  const env = objectOf(config.env);
  const opencodeProviders = environment.PAPERCLIP_OPENCODE_PROVIDERS?.replace(REFERENCE, (reference, name) => {
    const value = env[name] ?? environment[name];
    return typeof value === "string" && value !== "" ? JSON.stringify(value).slice(1, -1) : reference;
  });
  return { address, podsAddress, opencodeProviders };
}

/** The wake as Paperclip renders it, for a fresh session and for a resumed one: only the worker knows which it will be. */
function wakePrompt(context: JsonObject, helpers: PaperclipHelpers): WakePrompt {
  const markdown = context.paperclipTaskMarkdown;
  const options = {
    conversationMode: context.conversationMode === true,
    // The task's text follows in a section of its own.
    suppressIssueDescription: typeof markdown === "string" && markdown.trim() !== "",
  };
  const render = (resumedSession: boolean) =>
    helpers.renderPaperclipWakePrompt?.(context.paperclipWake, { ...options, resumedSession }) ?? "";
  return { fresh: render(false), resumed: render(true) };
}

async function toolServers(access: AdapterExecutionContext["runtimeMcp"]): Promise<ToolServer[]> {
  if (typeof access?.getServers !== "function") return [];
  const asked = access.getServers();
  const late = sleep(TOOL_SERVERS_TIMEOUT_MS).then(() => Promise.reject(new Error("no answer in time")));
  const offered = await Promise.race([asked, late]);
  return offered.slice(0, TOOL_SERVERS_LIMIT).flatMap(toolServer);
}

function toolServer(offered: unknown): ToolServer[] {
  const { name, url, token } = objectOf(offered);
  if (typeof name !== "string" || typeof url !== "string") return [];
  return [{ name, url, ...(typeof token === "string" ? { token } : {}) }];
}
