/**
 * Paperclip's "Test environment": checks everything that a run needs, in parallel, with a remedy for what is missing.
 *
 * Only diagnosis: Paperclip blocks no run because of it. It never throws, and no check takes longer than
 * `CHECK_TIMEOUT_MS`.
 */

import type { EnvironmentCheck, EnvironmentTestContext, EnvironmentTestResult, JsonObject } from "./paperclip.ts";
import { type PaperclipHelpers, paperclipHelpers } from "./paperclip-helpers.ts";
import { apiUrl } from "./request/api-url.ts";
import { configProblems } from "./request/config.ts";
import { sealerFrom } from "./sealing.ts";
import { ConfigurationError, type Settings, settingsFrom } from "./settings.ts";
import { callOnce, serverMessage, temporalFor } from "./temporal.ts";
import { mint } from "./tokens.ts";

type Level = EnvironmentCheck["level"];

const CHECK_TIMEOUT_MS = 8000;
const WORKFLOW_TASKS = 1;
const ACTIVITY_TASKS = 2;
/** The id of no run: the service answers 404 to a valid token and 401 or 403 to any other. */
const PROBE_RUN_ID = "environment-test";

/** Checks Temporal, the worker's task queue, the transcript service, the keys, and the agent's configuration. */
export async function testEnvironment(context: EnvironmentTestContext): Promise<EnvironmentTestResult> {
  const checks = await allChecks(context.config ?? {}, process.env).catch((error: unknown) => [
    check("environment_test_failed", "error", `The test itself failed: ${errorText(error)}`, "Report this as a bug."),
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
    check("agent_configuration", "error", `${field} ${remedy}`, "Correct the field in the agent's configuration."),
  );
  let settings: Settings;
  try {
    settings = settingsFrom(environment, config);
  } catch (error) {
    if (!(error instanceof ConfigurationError)) throw error;
    return [
      check("settings", "error", error.message, "Correct the setting in the environment of Paperclip's server."),
      ...ownFields,
    ];
  }
  const checks = [temporal(settings), sealing(settings), transcripts(settings), paperclip(settings, config), helpers()];
  return [...ownFields, ...(await Promise.all(checks)).flat()];
}

async function temporal(settings: Settings): Promise<EnvironmentCheck[]> {
  const found = temporalFor(settings);
  const { address, namespace } = settings.temporal;
  const service = found.client.workflowService;
  try {
    await callOnce(found, () => service.describeNamespace({ namespace }), { timeout: CHECK_TIMEOUT_MS });
  } catch (error) {
    return [
      check(
        "temporal_unreachable",
        "error",
        `Temporal does not answer for namespace ${namespace} at ${address}: ${serverMessage(error)}`,
        "Start Temporal, or set TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TEMPORAL_TLS and TEMPORAL_API_KEY. " +
          "Runs wait until Temporal answers.",
      ),
    ];
  }
  const reachable = check("temporal_reachable", "info", `Temporal answers at ${address}, namespace ${namespace}`);
  return [reachable, await pollers(settings)];
}

async function pollers(settings: Settings): Promise<EnvironmentCheck> {
  const { taskQueue } = settings;
  const found = temporalFor(settings);
  const hasPollers = async (taskQueueType: number) => {
    const request = { namespace: settings.temporal.namespace, taskQueue: { name: taskQueue }, taskQueueType };
    const answer = await callOnce(found, () => found.client.workflowService.describeTaskQueue(request), {
      timeout: CHECK_TIMEOUT_MS,
    });
    return (answer.pollers?.length ?? 0) > 0;
  };
  try {
    const kinds = await Promise.all([hasPollers(WORKFLOW_TASKS), hasPollers(ACTIVITY_TASKS)]);
    if (kinds.every(Boolean)) return check("worker_polls", "info", `A worker polls task queue ${taskQueue}`);
  } catch (error) {
    return check(
      "worker_unknown",
      "warn",
      `The workers of task queue ${taskQueue} cannot be listed: ${serverMessage(error)}`,
      "Allow the API key to describe task queues, or check with `agent-runs list` that a worker is running.",
    );
  }
  return check(
    "worker_missing",
    "error",
    `No worker polls task queue ${taskQueue}`,
    "Start a worker (`agent-runs worker`) with the same AGENT_RUNS_TASK_QUEUE. Runs wait until a worker polls it.",
  );
}

async function sealing(settings: Settings): Promise<EnvironmentCheck[]> {
  try {
    const { kid } = await sealerFrom(settings);
    return [check("sealing_key", "info", `Secrets are sealed with key ${kid}`)];
  } catch (error) {
    return [
      check(
        "sealing_key_unusable",
        "error",
        errorText(error),
        "Set AGENT_RUNS_SEALING_KEY to the output of `agent-runs sealing-key`.",
      ),
    ];
  }
}

async function transcripts(settings: Settings): Promise<EnvironmentCheck[]> {
  const base = settings.transcriptsUrl;
  if (base === undefined) {
    const remedy =
      "Set AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL to the address at which the worker serves transcripts " +
      "(AGENT_RUNS_TRANSCRIPTS_LISTEN).";
    return [
      check(
        "transcripts_unset",
        "error",
        "The transcript service's address is not set, so run logs stay empty",
        remedy,
      ),
    ];
  }
  let token: string;
  try {
    token = await mint(PROBE_RUN_ID, settings);
  } catch (error) {
    return [
      check("transcripts_key_unusable", "error", errorText(error), "Set it to the worker's own transcripts-key.json."),
    ];
  }
  try {
    const url = `${base.replace(/\/+$/, "")}/runs/${PROBE_RUN_ID}/attempts`;
    const signal = AbortSignal.timeout(CHECK_TIMEOUT_MS);
    const answer = await fetch(url, { headers: { authorization: `Bearer ${token}` }, signal });
    await answer.body?.cancel();
    return [transcriptsCheck(base, answer.status)];
  } catch (error) {
    const remedy =
      "Check AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL, and start the service. Runs continue without it, their logs wait.";
    return [
      check(
        "transcripts_unreachable",
        "error",
        `The transcript service does not answer at ${base}: ${errorText(error)}`,
        remedy,
      ),
    ];
  }
}

function transcriptsCheck(base: string, status: number): EnvironmentCheck {
  if (status === 404 || status === 200)
    return check("transcripts_reachable", "info", `Transcripts are served at ${base}`);
  if (status === 401 || status === 403) {
    const remedy = "Set AGENT_RUNS_TRANSCRIPTS_KEY_FILE to the same file here and at the worker.";
    return check("transcripts_key_refused", "error", `The transcript service at ${base} refuses our token`, remedy);
  }
  return check(
    "transcripts_unexpected",
    "warn",
    `The transcript service at ${base} answers ${status}`,
    "Check that AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL is the transcript service, and read the worker's log.",
  );
}

async function paperclip(settings: Settings, config: JsonObject): Promise<EnvironmentCheck[]> {
  const { url, note } = apiUrl(settings, config, process.env);
  if (note) return [check("paperclip_url", "warn", note, "Set AGENT_RUNS_PAPERCLIP_API_URL, here or at the worker.")];
  return [check("paperclip_url", "info", `Agents reach Paperclip at ${url}`)];
}

async function helpers(): Promise<EnvironmentCheck[]> {
  const found: PaperclipHelpers = await paperclipHelpers();
  if (found.renderWakePrompt) return [];
  const message = "Paperclip's own prompt helpers were not found; agents get the task without Paperclip's wake text";
  return [check("host_helpers", "warn", message, "Start Paperclip from its installed package.")];
}

function check(code: string, level: Level, message: string, hint?: string): EnvironmentCheck {
  return { code, level, message, ...(hint ? { hint } : {}) };
}

function errorText(error: unknown): string {
  if (!(error instanceof Error)) return "unknown error";
  const cause = error.cause instanceof Error ? `: ${error.cause.message}` : "";
  return `${error.message}${cause}`.slice(0, 300);
}
