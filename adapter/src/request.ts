/**
 * Everything that must exist before Temporal is asked: the request, sealed, with what only this host can read.
 *
 * Paperclip's context is judged by the twin of the worker's own rules; texts are rendered with Paperclip's own helpers
 * and read from its disk, so that a worker needs neither. Known keys are picked one by one: the context also holds
 * functions, a tracer and shared objects.
 */

import type { PromptSource, RunRequest, WakePrompt } from "./contracts.ts";
import type { Host } from "./host.ts";
import { instructionsText } from "./instructions.ts";
import type { AdapterExecutionContext, JsonObject } from "./paperclip.ts";
import { confinement } from "./reading.ts";
import { apiUrl, hostUrl } from "./request/api-url.ts";
import { isObject } from "./request/plain.ts";
import { preparation } from "./request/preparation.ts";
import { composed } from "./request/prompt.ts";
import { cut } from "./request/python.ts";
import { reachableTools, toolServers } from "./request/tools.ts";
import type { Sealer } from "./sealing.ts";
import type { Settings } from "./settings.ts";
import { selected, skillTexts } from "./skills.ts";

export { InvalidRequest } from "./request/problems.ts";

/** A request that can be sent, and what Paperclip may show of it. */
export interface Prepared {
  readonly request: RunRequest;
  /** For people: what was left out or could not be read. */
  readonly notes: string[];
  /** What the wake is about; only another wake of the same may join the run. */
  readonly task: string | null;
  /** Variables of the agent, values of its own `env` masked. */
  readonly environmentForLogs: Record<string, string>;
  readonly prompt: { fresh: string; resumed: string };
  /** UTF-16 lengths of the sections of the prompt that will be used, under Paperclip's names. */
  readonly promptMetrics: Record<string, number>;
}

const NOTE_LIMIT = 500;
const MASKED = "***REDACTED***";
/** Blank, so that no heartbeat section comes of it; the worker takes an empty one for none of its own. */
const NO_HEARTBEAT = " ";

/**
 * The run's request. What cannot be read is a note, as in the existing adapters; what is wrong is refused.
 *
 * @param environment of Paperclip's process: only where Paperclip is and where its home is.
 * @throws InvalidRequest that names every wrong field by its Paperclip path with the remedy, or says what is too large.
 */
export async function prepare(
  ctx: AdapterExecutionContext,
  settings: Settings,
  sealer: Sealer,
  host: Host,
  environment: NodeJS.ProcessEnv = process.env,
): Promise<Prepared> {
  const address = apiUrl(settings, isObject(ctx.config) ? ctx.config : {}, environment);
  const addresses = { host: hostUrl(environment), pods: address.url };
  const prose = wakeProse(ctx.context, host);
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
  const within = confinement(environment);
  const { instructionsFilePath, paperclipRuntimeSkills, paperclipSkillSync } = base.request.config;
  const selection = selected(paperclipRuntimeSkills ?? [], paperclipSkillSync ?? {});
  const [tools, instructions, skills] = await Promise.all([
    toolServers(ctx, addresses, new Set(Object.keys(base.secrets.mcpServers ?? {}))),
    instructionsText(instructionsFilePath ?? undefined, within),
    skillTexts(selection.skills, within),
  ]);
  const source: PromptSource = {
    ...base.prompt,
    ...withHeartbeat(base.prompt, ctx.context, host),
    instructions: instructions.text,
    skills: skills.texts,
  };
  const secrets = { ...base.secrets, mcpServers: { ...base.secrets.mcpServers, ...tools.servers } };
  const [sealedSecrets, sealedPrompt] = await Promise.all([
    sealer.seal("secrets", secrets),
    sealer.seal("prompt", source),
  ]);
  const told = [prose.note, tools.note, instructions.note, ...selection.warnings, ...skills.notes];
  const notes = [...base.notes, ...told.filter((note) => note !== undefined).map((note) => cut(note, NOTE_LIMIT))];
  const request: RunRequest = { ...base.request, ...(notes.length > 0 ? { notes } : {}), sealedSecrets, sealedPrompt };
  return {
    request,
    notes: address.note === undefined ? notes : [...notes, address.note],
    task: taskOf(request),
    environmentForLogs: environmentForLogs(request, base.secrets.env ?? {}),
    ...shown(source, request),
  };
}

/**
 * What a join brings, sealed for the new run: the token with which the agent goes on speaking to Paperclip.
 *
 * @param toolsToken of Paperclip's connection tools, which is also minted for one run.
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

/** The wake in Paperclip's own words, for a session that goes on and for a fresh one; the worker needs both. */
function wakeProse(context: unknown, host: Host): { wake: WakePrompt; note?: string } {
  if (!isObject(context) || host.renderWakePrompt === undefined) return { wake: {} };
  const options = {
    conversationMode: context.conversationMode === true,
    // The task's text follows in a section of its own.
    suppressIssueDescription:
      typeof context.paperclipTaskMarkdown === "string" && context.paperclipTaskMarkdown.trim() !== "",
  };
  try {
    const render = (resumedSession: boolean) =>
      host.renderWakePrompt?.(context.paperclipWake, { ...options, resumedSession }) ?? "";
    return { wake: { fresh: render(false), resumed: render(true) } };
  } catch {
    return {
      wake: {},
      note: "Paperclip's own renderer failed on this wake; the agent gets the task without its words",
    };
  }
}

/** Paperclip's own heartbeat template for an agent without one; none on a wake that is to repair something. */
function withHeartbeat(source: PromptSource, context: JsonObject, host: Host): Pick<PromptSource, "promptTemplate"> {
  if (source.wake?.fresh && isRecovery(context, host)) return { promptTemplate: NO_HEARTBEAT };
  const usual =
    isObject(context) && context.conversationMode === true ? host.conversationTemplate : host.promptTemplate;
  const promptTemplate = source.promptTemplate ?? usual;
  return promptTemplate === undefined ? {} : { promptTemplate };
}

function isRecovery(context: JsonObject, host: Host): boolean {
  try {
    return host.isRecoveryWake?.(context.paperclipWake) ?? false;
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
    ...Object.fromEntries(Object.keys(env).map((name) => [name, MASKED])),
    ...Object.fromEntries(Object.entries(assigned).filter((entry): entry is [string, string] => Boolean(entry[1]))),
  };
}

function shown(source: PromptSource, request: RunRequest): Pick<Prepared, "prompt" | "promptMetrics"> {
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
