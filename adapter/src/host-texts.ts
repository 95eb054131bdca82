/**
 * What only Paperclip's process can render or read for a run, so that a worker needs neither its helpers nor its disk.
 * Whatever fails gives a note instead.
 */

import type { HostTexts, ToolServer, WakePrompt } from "../generated/contracts.ts";
import type { AdapterExecutionContext, JsonObject } from "./paperclip.ts";
import { objectOf } from "./paperclip-api.ts";
import type { PaperclipHelpers } from "./paperclip-helpers.ts";
import { allowedRoot, readText, UnreadableFile } from "./safe-files.ts";
import type { Settings } from "./settings.ts";
import { skillTexts } from "./skills.ts";
import { withAbort } from "./waits.ts";

/** Bytes of an instructions file; prompt and skills share a Secret of 1 MiB with it. */
const INSTRUCTIONS_LIMIT = 512 * 1024;
const TOOL_SERVERS_LIMIT = 64;
const TOOL_SERVERS_TIMEOUT_MS = 5000;
/** Characters. */
const NOTE_LIMIT = 500;

/** The texts, the tool servers and Paperclip's addresses, for one wake. */
export async function hostTexts(
  ctx: AdapterExecutionContext,
  settings: Pick<Settings, "paperclipApiUrl">,
  helpers: PaperclipHelpers,
  environment: NodeJS.ProcessEnv,
): Promise<HostTexts & { wakePrompt: WakePrompt; notes: string[] }> {
  const [config, context] = [objectOf(ctx.config), objectOf(ctx.context)];
  const rootOf = allowedRoot(environment);
  const wake = wakePrompt(context, helpers);
  const [tools, instructions, skills] = await Promise.all([
    toolServers(ctx.runtimeMcp),
    instructionsText(config.instructionsFilePath, rootOf),
    skillTexts(config, helpers, rootOf),
  ]);
  const notes = [wake.note, tools.note, instructions.note, ...skills.notes].filter((note) => note !== undefined);
  return {
    wakePrompt: wake.prompt,
    heartbeatTemplate: context.conversationMode === true ? helpers.conversationTemplate : helpers.promptTemplate,
    repairWake: isRepair(context, helpers),
    instructions: instructions.text,
    skills: skills.texts,
    toolServers: tools.servers,
    ...addresses(settings, environment),
    notes: notes.map((note) => [...note].slice(0, NOTE_LIMIT).join("")),
  };
}

/** Where Paperclip is: as its own process knows it, and as pods reach it by our setting. */
export function addresses(
  settings: Pick<Settings, "paperclipApiUrl">,
  environment: NodeJS.ProcessEnv,
): Pick<HostTexts, "address" | "podsAddress"> {
  const address = environment.PAPERCLIP_API_URL || environment.PAPERCLIP_RUNTIME_API_URL || undefined;
  return { address, podsAddress: settings.paperclipApiUrl };
}

/** The wake as Paperclip renders it, for a fresh session and for a resumed one: only the worker knows which it will be. */
function wakePrompt(context: JsonObject, helpers: PaperclipHelpers): { prompt: WakePrompt; note?: string } {
  const markdown = context.paperclipTaskMarkdown;
  const options = {
    conversationMode: context.conversationMode === true,
    // The task's text follows in a section of its own.
    suppressIssueDescription: typeof markdown === "string" && markdown.trim() !== "",
  };
  const render = (resumedSession: boolean) =>
    helpers.renderWakePrompt?.(context.paperclipWake, { ...options, resumedSession }) ?? "";
  try {
    return { prompt: { fresh: render(false), resumed: render(true) } };
  } catch {
    const note = "Paperclip's own renderer failed on this wake; the agent gets the task without Paperclip's wake text";
    return { prompt: {}, note };
  }
}

function isRepair(context: JsonObject, helpers: PaperclipHelpers): boolean {
  try {
    return helpers.isRecoveryWake?.(context.paperclipWake) ?? false;
  } catch {
    return false;
  }
}

/** The configured file's text. Sibling files stay on the host; the prompt names the folder at which relative paths start. */
async function instructionsText(
  path: unknown,
  rootOf: (path: string) => string,
): Promise<{ text?: string; note?: string }> {
  if (typeof path !== "string" || path.trim() === "") return {};
  try {
    return { text: await readText(path, { root: rootOf(path), limit: INSTRUCTIONS_LIMIT }) };
  } catch (error) {
    if (!(error instanceof UnreadableFile)) throw error;
    return { text: "", note: `instructionsFilePath not readable: ${error.message}` };
  }
}

async function toolServers(
  access: AdapterExecutionContext["runtimeMcp"],
): Promise<{ servers: ToolServer[]; note?: string }> {
  const getServers = access?.getServers;
  if (typeof getServers !== "function") return { servers: [] };
  try {
    const asked = (async () => await getServers.call(access))();
    const offered = await withAbort(asked, AbortSignal.timeout(TOOL_SERVERS_TIMEOUT_MS));
    return { servers: offered.slice(0, TOOL_SERVERS_LIMIT).flatMap(toolServer) };
  } catch {
    return { servers: [], note: "Paperclip did not name its tool servers; the agent does without" };
  }
}

function toolServer(offered: unknown): ToolServer[] {
  const { name, url, token } = objectOf(offered);
  if (typeof name !== "string" || typeof url !== "string") return [];
  return [{ name, url, ...(typeof token === "string" ? { token } : {}) }];
}
