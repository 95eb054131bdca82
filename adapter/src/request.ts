/**
 * Prepares the request: validated, sealed, with the texts that only this host can read.
 *
 * Paperclip's context is validated with the worker's own rules; texts are rendered with Paperclip's own helpers and read
 * from its disk, so that a worker needs neither. Known keys are picked one by one: the context also holds functions, a
 * tracer and shared objects.
 */

import type { PromptSource, RunRequest, WakePrompt } from "./contracts.ts";
import { instructionsText } from "./instructions.ts";
import type { AdapterExecutionContext, JsonObject } from "./paperclip.ts";
import type { PaperclipHelpers } from "./paperclip-helpers.ts";
import { apiUrl, hostUrl } from "./request/api-url.ts";
import { isObject } from "./request/plain.ts";
import { preparation } from "./request/preparation.ts";
import { composed } from "./request/prompt.ts";
import { cut } from "./request/python.ts";
import { reachableTools, toolServers } from "./request/tools.ts";
import { allowedRoot } from "./safe-files.ts";
import type { Sealer } from "./sealing.ts";
import type { Settings } from "./settings.ts";
import { readSkills, selectSkills } from "./skills.ts";

export { InvalidRequest } from "./request/problems.ts";

/** A request that can be sent, and what Paperclip may show of it. */
export interface Prepared {
  readonly request: RunRequest;
  /** For people: what was left out or could not be read. */
  readonly notes: string[];
  /** The task of the wake; only another wake of the same task may join the run. */
  readonly task: string | null;
  /** Variables of the agent, values of its own `env` masked. */
  readonly environmentForLogs: Record<string, string>;
  readonly prompt: { fresh: string; resumed: string };
  /** UTF-16 lengths of the sections of the prompt that will be used, under Paperclip's names. */
  readonly promptMetrics: Record<string, number>;
}

const NOTE_LIMIT = 500;
const REDACTED = "***REDACTED***";
/** Blank, so that the heartbeat section is left out; for an empty one the worker uses its default. */
const NO_HEARTBEAT = " ";

/**
 * The run's request. A file that cannot be read gives a note, as in the existing adapters; a wrong field is refused.
 *
 * @param environment of Paperclip's process; only Paperclip's address and home are read.
 * @throws InvalidRequest that names every wrong field by its Paperclip path with the remedy, or what is too large.
 */
export async function prepare(
  ctx: AdapterExecutionContext,
  settings: Settings,
  sealer: Sealer,
  helpers: PaperclipHelpers,
  environment: NodeJS.ProcessEnv = process.env,
): Promise<Prepared> {
  const address = apiUrl(settings, isObject(ctx.config) ? ctx.config : {}, environment);
  const addresses = { helpers: hostUrl(environment), pods: address.url };
  const prose = wakeProse(ctx.context, helpers);
  const base = preparation({
    runId: ctx.runId,
    agent: ctx.agent,
    runtime: ctx.runtime,
    config:
      isObject(ctx.config) && address.url !== undefined ? { ...ctx.config, paperclipApiUrl: address.url } : ctx.config,
    context: ctx.context,
    authToken: ctx.authToken,
    runtimeTools: reachableTools(ctx.runtimeTools, addresses),
    wakePrompt: prose.wake,
  });
  const rootOf = allowedRoot(environment);
  const { instructionsFilePath, paperclipRuntimeSkills, paperclipSkillSync } = base.request.config;
  const selection = selectSkills(paperclipRuntimeSkills ?? [], paperclipSkillSync ?? {});
  const [tools, instructions, skills] = await Promise.all([
    toolServers(ctx, addresses, new Set(Object.keys(base.secrets.mcpServers ?? {}))),
    instructionsText(instructionsFilePath ?? undefined, rootOf),
    readSkills(selection.skills, rootOf),
  ]);
  const source: PromptSource = {
    ...base.prompt,
    ...withHeartbeat(base.prompt, ctx.context, helpers),
    instructions: instructions.text,
    skills: skills.texts,
  };
  const secrets = { ...base.secrets, mcpServers: { ...base.secrets.mcpServers, ...tools.servers } };
  const [sealedSecrets, sealedPrompt] = await Promise.all([
    sealer.seal("secrets", secrets),
    sealer.seal("prompt", source),
  ]);
  const textNotes = [prose.note, tools.note, instructions.note, ...selection.warnings, ...skills.notes];
  const notes = [...base.notes, ...textNotes.filter((note) => note !== undefined).map((note) => cut(note, NOTE_LIMIT))];
  const request: RunRequest = { ...base.request, ...(notes.length > 0 ? { notes } : {}), sealedSecrets, sealedPrompt };
  return {
    request,
    notes: address.note === undefined ? notes : [...notes, address.note],
    task: taskOf(request),
    environmentForLogs: environmentForLogs(request, base.secrets.env ?? {}),
    ...promptForLogs(source, request),
  };
}

/**
 * The tokens of a wake that joins an open run, sealed: from then on the agent's requests to Paperclip carry them.
 *
 * @param toolsToken of Paperclip's connection tools, which is also issued for one run.
 */
export async function sealToken(
  sealer: Sealer,
  runId: string,
  authToken: string | undefined,
  toolsToken?: string,
): Promise<string> {
  return await sealer.seal("secrets", {
    runId,
    ...(authToken ? { authToken } : {}),
    ...(toolsToken ? { paperclipEnv: { PAPERCLIP_RUNTIME_TOOLS_TOKEN: toolsToken } } : {}),
  });
}

/** The wake's prose as Paperclip renders it, for a resumed session and for a fresh one; the worker needs both. */
function wakeProse(context: unknown, helpers: PaperclipHelpers): { wake: WakePrompt; note?: string } {
  if (!isObject(context) || helpers.renderWakePrompt === undefined) return { wake: {} };
  const options = {
    conversationMode: context.conversationMode === true,
    // The task's text follows in a section of its own.
    suppressIssueDescription:
      typeof context.paperclipTaskMarkdown === "string" && context.paperclipTaskMarkdown.trim() !== "",
  };
  try {
    const render = (resumedSession: boolean) =>
      helpers.renderWakePrompt?.(context.paperclipWake, { ...options, resumedSession }) ?? "";
    return { wake: { fresh: render(false), resumed: render(true) } };
  } catch {
    return {
      wake: {},
      note: "Paperclip's own renderer failed on this wake; the agent gets the task without Paperclip's wake text",
    };
  }
}

/** Paperclip's own heartbeat template for an agent without one; none on a wake that asks for a repair. */
function withHeartbeat(
  source: PromptSource,
  context: JsonObject,
  helpers: PaperclipHelpers,
): Pick<PromptSource, "promptTemplate"> {
  if (source.wake?.fresh && isRecovery(context, helpers)) return { promptTemplate: NO_HEARTBEAT };
  const fallback =
    isObject(context) && context.conversationMode === true ? helpers.conversationTemplate : helpers.promptTemplate;
  const promptTemplate = source.promptTemplate ?? fallback;
  return promptTemplate === undefined ? {} : { promptTemplate };
}

function isRecovery(context: JsonObject, helpers: PaperclipHelpers): boolean {
  try {
    return helpers.isRecoveryWake?.(context.paperclipWake) ?? false;
  } catch {
    return false;
  }
}

function taskOf({ context, runtime }: RunRequest): string | null {
  return context?.taskId || context?.issueId || runtime?.taskKey || null;
}

function environmentForLogs({ agent, runId, config, context }: RunRequest, env: Record<string, string>) {
  const assigned = {
    PAPERCLIP_AGENT_ID: agent.id,
    PAPERCLIP_COMPANY_ID: agent.companyId,
    PAPERCLIP_RUN_ID: runId,
    PAPERCLIP_API_URL: config.paperclipApiUrl,
    PAPERCLIP_TASK_ID: context?.taskId || context?.issueId,
    PAPERCLIP_WAKE_REASON: context?.wakeReason,
    PAPERCLIP_WAKE_COMMENT_ID: context?.wakeCommentId || context?.commentId,
    PAPERCLIP_WORKSPACE_CWD: context?.paperclipWorkspace?.cwd,
  };
  return {
    ...Object.fromEntries(Object.keys(env).map((name) => [name, REDACTED])),
    ...Object.fromEntries(Object.entries(assigned).filter((entry): entry is [string, string] => Boolean(entry[1]))),
  };
}

function promptForLogs(source: PromptSource, request: RunRequest): Pick<Prepared, "prompt" | "promptMetrics"> {
  const run = {
    runId: request.runId,
    agentId: request.agent.id,
    companyId: request.agent.companyId,
    instructionsPath: request.config.instructionsFilePath ?? undefined,
  };
  const [fresh, resumed] = [composed(source, run, false), composed(source, run, true)];
  const used = request.runtime?.sessionParams ? resumed : fresh;
  return { prompt: { fresh: fresh.text, resumed: resumed.text }, promptMetrics: used.metrics };
}
