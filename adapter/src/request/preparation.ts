/**
 * Turns Paperclip's execution context into a run request that may enter a history. Same rules as
 * `agent_runs/paperclip/preparation.py`.
 *
 * The context is validated in one go. What is secret or prose goes into two fields that are sealed later; what only
 * means something on Paperclip's host is dropped. Pure: no file, no key, no clock.
 */

import type { PromptSource, RunConfig, RunRequest, Secrets, WakeContext } from "../contracts.ts";
import { narrowSkills } from "../skills.ts";
import { type AgentConfig, safeConfig, type ValidContext, validated } from "./context.ts";
import { isObject, objectOr, own, type Plain, type PlainObject, tidied } from "./plain.ts";
import { InvalidRequest } from "./problems.ts";
import { truthy } from "./python.ts";
import { resume, type Session, workingDirectory } from "./session.ts";
import { wakePayload } from "./wake.ts";

/** Bytes of one `*_JSON` variable. A larger one is left out: the agent can ask Paperclip's API for the same facts. */
export const BULKY_LIMIT = 96 * 1024;

/** Variables of `config.env` that describe Paperclip's own host. Source: Paperclip 2026.916.1, seen live. */
const HOST_ONLY = new Set([
  "GH_CONFIG_DIR",
  "PAPERCLIP_GITHUB_HOST_HOME",
  "PAPERCLIP_GITHUB_AUTH_MODE",
  "PAPERCLIP_GIT_METADATA_ROOTS",
  "PAPERCLIP_RUNNER_NETWORK_ROOTS",
  "PAPERCLIP_RUNNER_NETWORK_ACCESS",
  "PAPERCLIP_GITHUB_BROKER_URL",
  "PAPERCLIP_GITHUB_BROKER_TOKEN",
]);
const SCRATCH = new Set([
  "PAPERCLIP_SCRATCH_DIR",
  "PAPERCLIP_RUN_SCRATCH_DIR",
  "PAPERCLIP_TASK_SCRATCH_DIR",
  "PAPERCLIP_TMPDIR",
]);
const TEMPORARY = new Set(["TMPDIR", "TEMP", "TMP"]);
const SECRET_NAME = new RegExp(
  "^(env|headers|mcpservers|paperclipruntimetools|paperclipmanagedmcp|paperclipsecrets|runtimemcp|[^\\n]*cookie" +
    "|[^\\n]*(token|secret|password|passwd|credential|api_?key|private_?key|authorization|bearer|kubeconfig)[^\\n]*)\\n?$",
  "iu",
);
/** What the prompt carries elsewhere. */
const BULKY = new Set([
  "executionContinuation",
  "paperclipTaskMarkdown",
  "paperclipTaskMarkdownCompact",
  "paperclipEnvironment",
  "paperclipSessionHandoffMarkdown",
  "realization",
  "workspaceRealization",
]);
const LOGIN = /(?<=:\/\/)[^\s/?#@]+@/g;

/** A request that is not sealed yet, and sentences for people about what was left out of it. */
export interface Preparation {
  readonly request: Pick<RunRequest, "runId" | "agent" | "runtime" | "config" | "context" | "notes">;
  readonly secrets: Secrets;
  readonly prompt: PromptSource;
  readonly notes: readonly string[];
}

/**
 * The request of an execution context, as JSON or as Paperclip hands it over.
 *
 * @throws InvalidRequest that names every wrong field by its Paperclip path with the remedy, and quotes no value.
 */
export function preparation(raw: unknown): Preparation {
  if (!isObject(raw)) throw new InvalidRequest("the execution context must be a JSON object");
  const tidy = tidied(raw);
  const context = validated(tidy);
  const { config, runId } = context;
  const directory = workingDirectory(context.context.paperclipWorkspace?.cwd, config.cwd);
  const resumed = resume(withoutLoginIn(context.session), directory, config.resumeLastSession ?? true);
  const variables = bounded(paperclipVariables(context, tidy));
  const notes = [...(resumed.reason ? [resumed.reason] : []), ...variables.notes];
  const runtime = given({ sessionParams: resumed.session, taskKey: context.taskKey });
  const wake = wakeContext(context, tidy);
  return {
    request: {
      runId,
      agent: context.agent,
      config: narrowedConfig(config),
      ...ifSaid({ runtime, context: wake, notes }),
    },
    secrets: {
      runId,
      ...ifSaid({
        authToken: context.authToken,
        ...environment(config, tidy),
        paperclipEnv: variables.kept,
        mcpServers: config.mcpServers,
      }),
    },
    prompt: promptSource(context, tidy),
    notes,
  };
}

/** The configuration without secrets and prose, and with those skills only that this run needs. */
function narrowedConfig(config: AgentConfig): RunConfig {
  const { paperclipRuntimeSkills, paperclipSkillSync, ...safe } = safeConfig(config);
  const { skills, sync } = narrowSkills(paperclipRuntimeSkills ?? [], paperclipSkillSync ?? {});
  return { ...safe, ...ifSaid({ paperclipRuntimeSkills: skills }), paperclipSkillSync: sync };
}

/** The wake's identifiers; a password is removed from an address, and the whole address sealed. */
function wakeContext({ context }: ValidContext, tidy: PlainObject): WakeContext {
  const { paperclipWorkspace: workspace = {}, issueIds, ...wake } = context;
  const primary = wake.paperclipRuntimePrimaryUrl;
  return {
    ...wake,
    ...given({
      issueWorkMode: wake.issueWorkMode ?? workMode(tidy),
      paperclipRuntimePrimaryUrl: primary && withoutLogin(primary),
    }),
    ...ifSaid({
      issueIds,
      paperclipWorkspace: { ...workspace, ...given({ repoUrl: workspace.repoUrl && withoutLogin(workspace.repoUrl) }) },
    }),
  };
}

function workMode(tidy: PlainObject): string | undefined {
  const raw = objectOr(tidy.context);
  const issues = [own(raw, "paperclipIssue"), own(objectOr(own(raw, "paperclipWake")), "issue")];
  const modes = issues.map((issue) => prose(own(objectOr(issue), "workMode")));
  return modes.find((mode) => mode !== "");
}

function withoutLogin(address: string): string {
  return address.replace(LOGIN, "");
}

function withoutLoginIn(session: Session | undefined): Session | undefined {
  return session?.repoUrl ? { ...session, repoUrl: withoutLogin(session.repoUrl) } : session;
}

/** The agent's own variables. A temporary folder that Paperclip made on its host is dropped, one of a user stays. */
function environment(config: AgentConfig, tidy: PlainObject): Pick<Secrets, "env" | "secretEnv"> {
  const all: Record<string, string> = config.env ?? {};
  const scratch = new Set([
    ...[...SCRATCH].map((name) => own(all, name)),
    own(objectOr(own(objectOr(tidy.context), "paperclipScratch")), "dir"),
  ]);
  const dropped = (name: string, value: string) =>
    HOST_ONLY.has(name) ||
    SCRATCH.has(name) ||
    name === "PAPERCLIP_API_KEY" ||
    (TEMPORARY.has(name) && scratch.has(value));
  const env = Object.fromEntries(Object.entries(all).filter(([name, value]) => !dropped(name, value)));
  const bound = boundToSecrets(tidy);
  return {
    env,
    secretEnv: Object.keys(env)
      .filter((name) => bound.has(name))
      .sort(),
  };
}

/** Variables whose values are Paperclip's secrets: by the run's manifest, and by the agent's own bindings. */
function boundToSecrets(tidy: PlainObject): Set<unknown> {
  const manifest = own(objectOr(own(objectOr(tidy.context), "paperclipSecrets")), "manifest");
  const listed = Array.isArray(manifest) ? manifest.map((entry) => own(objectOr(entry), "envKey")) : [];
  const bindings = objectOr(own(objectOr(own(objectOr(tidy.agent), "adapterConfig")), "env"));
  const bound = Object.entries(bindings).filter(([, binding]) => own(objectOr(binding), "type") === "secret_ref");
  return new Set([...listed, ...bound.map(([name]) => name)]);
}

function paperclipVariables(context: ValidContext, tidy: PlainObject): Record<string, string> {
  const raw = objectOr(tidy.context);
  const config = objectOr(tidy.config);
  const isExternal = own(config, "instructionsBundleMode") === "external";
  const { paperclipWorkspace, paperclipRuntimePrimaryUrl } = context.context;
  const addresses = Object.entries({
    PAPERCLIP_WORKSPACE_REPO_URL: paperclipWorkspace?.repoUrl,
    PAPERCLIP_RUNTIME_PRIMARY_URL: paperclipRuntimePrimaryUrl,
  }).filter(([, address]) => address !== undefined && address !== withoutLogin(address));
  const found: Record<string, string | undefined> = {
    ...Object.fromEntries(addresses),
    PAPERCLIP_WAKE_PAYLOAD_JSON: wakePayload(own(raw, "paperclipWake")),
    PAPERCLIP_WORKSPACES_JSON: listing(own(raw, "paperclipWorkspaces")),
    PAPERCLIP_RUNTIME_SERVICE_INTENTS_JSON: listing(own(raw, "paperclipRuntimeServiceIntents")),
    PAPERCLIP_RUNTIME_SERVICES_JSON: listing(own(raw, "paperclipRuntimeServices")),
    AGENT_HOME: isExternal ? prose(own(config, "instructionsRootPath")) : undefined,
    ...runtimeTools(context.runtimeTools),
  };
  const present = Object.entries(found).filter((entry): entry is [string, string] => Boolean(entry[1]));
  return Object.fromEntries(present.map(([name, value]) => [name, value.replaceAll("\0", "")]));
}

function listing(value: unknown): string | undefined {
  return Array.isArray(value) && value.length > 0 ? JSON.stringify(value) : undefined;
}

/** The variables of Paperclip's own `buildRuntimeToolsEnv`. */
function runtimeTools(tools: ValidContext["runtimeTools"]): Record<string, string | undefined> {
  if (tools === undefined) return {};
  const rest = (name: string) => {
    const address = own(tools.rest ?? {}, name);
    return typeof address === "string" ? address : undefined;
  };
  return {
    PAPERCLIP_RUNTIME_TOOLS_MCP_URL: tools.mcpEndpoint,
    PAPERCLIP_RUNTIME_TOOLS_TOKEN: tools.bearerToken,
    PAPERCLIP_RUNTIME_TOOLS_EXPIRES_AT: tools.expiresAt,
    PAPERCLIP_RUNTIME_TOOLS_CONNECTIONS_SEARCH_URL: rest("connectionsSearch"),
    PAPERCLIP_RUNTIME_TOOLS_CONNECTION_REQUEST_URL: rest("connectionRequest"),
    PAPERCLIP_RUNTIME_TOOLS_AVAILABLE: tools.tools?.join(","),
    PAPERCLIP_RUNTIME_TOOLS_GUIDANCE: tools.guidance,
  };
}

function bounded(env: Record<string, string>): { kept: Record<string, string>; notes: string[] } {
  const sized = Object.entries(env).map(([name, value]) => ({ name, value, size: Buffer.byteLength(value) }));
  const fits = sized.filter(({ size }) => size <= BULKY_LIMIT);
  const large = sized.filter(({ size }) => size > BULKY_LIMIT);
  return {
    kept: Object.fromEntries(fits.map(({ name, value }) => [name, value])),
    notes: large.map(
      ({ name, size }) =>
        `${name} is left out: ${size} bytes, ${BULKY_LIMIT} are possible; the agent can ask Paperclip's API instead`,
    ),
  };
}

function promptSource(context: ValidContext, tidy: PlainObject): PromptSource {
  const raw = objectOr(tidy.context);
  return {
    runId: context.runId,
    ...ifSaid({
      wake: context.wakePrompt,
      taskMarkdown: prose(own(raw, "paperclipTaskMarkdown")),
      sessionHandoff: prose(own(raw, "paperclipSessionHandoffMarkdown")),
      bootstrapTemplate: context.config.bootstrapPromptTemplate,
      promptTemplate: context.config.promptTemplate,
      agent: templateData(objectOr(tidy.agent)),
      context: templateData(raw),
    }),
  };
}

function prose(value: unknown): string {
  return typeof value === "string" ? value.trim() : "";
}

/** `value` without secrets, by the names of their fields, and without what the prompt carries elsewhere. */
function templateData<T extends Plain>(value: T): T;
function templateData(value: Plain): Plain {
  if (Array.isArray(value)) return value.map((item) => templateData(item));
  if (typeof value === "string") return withoutLogin(value);
  if (!isObject(value)) return value;
  const kept = Object.entries(value as PlainObject).filter(([name]) => !BULKY.has(name) && !SECRET_NAME.test(name));
  return Object.fromEntries(kept.map(([name, item]) => [name, templateData(item)]));
}

/** The fields that are there. */
function given<T extends object>(fields: T): Partial<T> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as Partial<T>;
}

/** The fields with a value: absent and empty ones are the contracts' defaults. */
function ifSaid<T extends object>(fields: T): Partial<T> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => truthy(value))) as Partial<T>;
}
