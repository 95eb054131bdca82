/**
 * "Test environment": asks everything that a run needs, all at once, and says for each what to do if it is missing.
 *
 * Only diagnosis: Paperclip blocks no run by it. It never throws, and no answer takes longer than `PATIENCE_MS`.
 */

import { type Host, host } from "./host.ts";
import type { EnvironmentCheck, EnvironmentTestContext, EnvironmentTestResult, JsonObject } from "./paperclip.ts";
import { apiUrl } from "./request/api-url.ts";
import { configProblems } from "./request/config.ts";
import { sealerFrom } from "./sealing.ts";
import { ConfigurationError, type Settings, settingsFrom } from "./settings.ts";
import { once, saidBy, temporalFor } from "./temporal.ts";
import { mint } from "./tokens.ts";

type Level = EnvironmentCheck["level"];

const PATIENCE_MS = 8000;
const WORKFLOW_TASKS = 1;
const ACTIVITY_TASKS = 2;
/** A run that nobody has: the service answers 404 to who may ask, 401 or 403 to others. */
const NOBODYS_RUN = "environment-test";

/** Asks Temporal, the worker's queue, the transcript service, the keys, and checks the agent's configuration. */
export async function testEnvironment(context: EnvironmentTestContext): Promise<EnvironmentTestResult> {
  const checks = await allChecks(context.config ?? {}, process.env).catch((error: unknown) => [
    check("environment_test_failed", "error", `The test itself failed: ${said(error)}`, "Report this as a bug."),
  ]);
  const worst = (level: Level) => checks.some((each) => each.level === level);
  return {
    adapterType: context.adapterType,
    status: worst("error") ? "fail" : worst("warn") ? "warn" : "pass",
    checks,
    testedAt: new Date().toISOString(),
  };
}

async function allChecks(config: JsonObject, environment: NodeJS.ProcessEnv): Promise<EnvironmentCheck[]> {
  const ownFields = configProblems(config).map(({ field, remedy }) =>
    check("agent_configuration", "error", `${field} ${remedy}`, "Correct it in the agent's configuration."),
  );
  let settings: Settings;
  try {
    settings = settingsFrom(environment, config);
  } catch (error) {
    if (!(error instanceof ConfigurationError)) throw error;
    return [
      check("settings", "error", error.message, "Correct it in the environment of Paperclip's server."),
      ...ownFields,
    ];
  }
  const asked = [temporal(settings), sealing(settings), transcripts(settings), paperclip(settings, config), helpers()];
  return [...ownFields, ...(await Promise.all(asked)).flat()];
}

async function temporal(settings: Settings): Promise<EnvironmentCheck[]> {
  const found = temporalFor(settings);
  const { address, namespace } = settings.temporal;
  const service = found.client.workflowService;
  try {
    await once(found, () => service.describeNamespace({ namespace }), { within: PATIENCE_MS });
  } catch (error) {
    return [
      check(
        "temporal_unreachable",
        "error",
        `Temporal does not answer for namespace ${namespace} at ${address}: ${saidBy(error)}`,
        "Set AGENT_RUNS_TEMPORAL_ADDRESS, _TEMPORAL_NAMESPACE, _TEMPORAL_TLS and _TEMPORAL_API_KEY; runs wait until it answers.",
      ),
    ];
  }
  const reachable = check("temporal_reachable", "info", `Temporal answers at ${address}, namespace ${namespace}`);
  return [reachable, await pollers(settings)];
}

async function pollers(settings: Settings): Promise<EnvironmentCheck> {
  const { taskQueue } = settings;
  const found = temporalFor(settings);
  const polled = async (taskQueueType: number) => {
    const question = { namespace: settings.temporal.namespace, taskQueue: { name: taskQueue }, taskQueueType };
    const answer = await once(found, () => found.client.workflowService.describeTaskQueue(question), {
      within: PATIENCE_MS,
    });
    return (answer.pollers?.length ?? 0) > 0;
  };
  try {
    const kinds = await Promise.all([polled(WORKFLOW_TASKS), polled(ACTIVITY_TASKS)]);
    if (kinds.every(Boolean)) return check("worker_polls", "info", `A worker polls task queue ${taskQueue}`);
  } catch (error) {
    return check("worker_unknown", "warn", `Task queue ${taskQueue} cannot be looked at: ${saidBy(error)}`);
  }
  return check(
    "worker_missing",
    "error",
    `No worker polls task queue ${taskQueue}`,
    "Start one (agent-runs worker) with the same AGENT_RUNS_TASK_QUEUE; runs wait until one is there.",
  );
}

async function sealing(settings: Settings): Promise<EnvironmentCheck[]> {
  try {
    const { kid } = await sealerFrom(settings);
    return [check("sealing_key", "info", `Secrets are sealed with key ${kid}`)];
  } catch (error) {
    return [check("sealing_key_unusable", "error", said(error), "Give it the output of `agent-runs sealing-key`.")];
  }
}

async function transcripts(settings: Settings): Promise<EnvironmentCheck[]> {
  const base = settings.transcriptsUrl;
  if (base === undefined) {
    const remedy =
      "Set AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL to where the worker serves transcripts (AGENT_RUNS_TRANSCRIPTS_LISTEN).";
    return [
      check("transcripts_unset", "error", "Nothing says where transcripts are, so run logs would stay empty", remedy),
    ];
  }
  let token: string;
  try {
    token = await mint(NOBODYS_RUN, settings);
  } catch (error) {
    return [check("transcripts_key_unusable", "error", said(error), "Give it the worker's own transcripts-key.json.")];
  }
  try {
    const url = `${base.replace(/\/+$/, "")}/runs/${NOBODYS_RUN}/attempts`;
    const signal = AbortSignal.timeout(PATIENCE_MS);
    const answer = await fetch(url, { headers: { authorization: `Bearer ${token}` }, signal });
    await answer.body?.cancel();
    return [answered(base, answer.status)];
  } catch (error) {
    const remedy = "Check AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL and the service; runs go on without it, their logs wait.";
    return [
      check(
        "transcripts_unreachable",
        "error",
        `The transcript service does not answer at ${base}: ${said(error)}`,
        remedy,
      ),
    ];
  }
}

function answered(base: string, status: number): EnvironmentCheck {
  if (status === 404 || status === 200)
    return check("transcripts_reachable", "info", `Transcripts are served at ${base}`);
  if (status === 401 || status === 403) {
    const remedy = "AGENT_RUNS_TRANSCRIPTS_KEY_FILE must be the same file here and at the worker.";
    return check("transcripts_key_refused", "error", `The transcript service at ${base} refuses our token`, remedy);
  }
  return check(
    "transcripts_odd",
    "warn",
    `The transcript service at ${base} answers ${status}`,
    "Look at the worker's log.",
  );
}

async function paperclip(settings: Settings, config: JsonObject): Promise<EnvironmentCheck[]> {
  const { url, note } = apiUrl(settings, config, process.env);
  if (note) return [check("paperclip_url", "warn", note, "Set AGENT_RUNS_PAPERCLIP_API_URL, here or at the worker.")];
  return [check("paperclip_url", "info", `Agents reach Paperclip at ${url}`)];
}

async function helpers(): Promise<EnvironmentCheck[]> {
  const found: Host = await host();
  if (found.renderWakePrompt) return [];
  const message = "Paperclip's own prompt helpers were not found; wake texts are left to the worker";
  return [check("host_helpers", "warn", message, "Start Paperclip from its installed package.")];
}

function check(code: string, level: Level, message: string, hint?: string): EnvironmentCheck {
  return { code, level, message, ...(hint ? { hint } : {}) };
}

function said(error: unknown): string {
  if (!(error instanceof Error)) return "unknown error";
  const cause = error.cause instanceof Error ? `: ${error.cause.message}` : "";
  return `${error.message}${cause}`.slice(0, 300);
}
