/**
 * Paperclip's "Test environment": checks everything that a run needs, in parallel, with a remedy for what is missing. A
 * worker checks the agent's configuration, by the rules of a run.
 *
 * Only diagnosis: Paperclip blocks no run because of it. It never throws, and no call takes longer than `TIMEOUT_MS`.
 */

import { randomUUID } from "node:crypto";
import { join } from "node:path";
import { WorkflowFailedError } from "@temporalio/client";
import type { CheckReport, CheckStart, Finding } from "../generated/contracts.ts";
import { ConfigurationError } from "./errors.ts";
import { surroundings } from "./host-texts.ts";
import { type EnvironmentTestContext, type EnvironmentTestResult, objectOf } from "./paperclip.ts";
import { paperclipHelpers } from "./paperclip-helpers.ts";
import { paperclipHome } from "./safe-files.ts";
import { sealerFrom } from "./sealing.ts";
import { type Settings, settingsFrom } from "./settings.ts";
import { Code, codeOf, serverMessage, temporalFor } from "./temporal.ts";
import { mint, runUrl } from "./tokens.ts";

type Level = Finding["level"];

const TIMEOUT_MS = 8000;
const CHECK_WORKFLOW = "AgentCheckWorkflow";
const WORKFLOW_TASKS = 1;
/** The id of no run: the service answers 404 to a valid token and 401 or 403 to any other. */
const PROBE_RUN = "environment-test";

export async function testEnvironment(context: EnvironmentTestContext): Promise<EnvironmentTestResult> {
  const checks = await allChecks(context).catch((error: unknown) => [withoutChecks(error)]);
  const worst = (level: Level) => checks.some((each) => each.level === level);
  return {
    adapterType: context.adapterType,
    status: worst("error") ? "fail" : worst("warn") ? "warn" : "pass",
    checks,
    testedAt: new Date().toISOString(),
  };
}

function withoutChecks(error: unknown): Finding {
  const remedy = "Correct the setting in the environment of Paperclip's server.";
  if (error instanceof ConfigurationError) return check("settings", "error", error.message, remedy);
  const message = `The test itself failed: ${serverMessage(error)}`;
  return check("environment_test_failed", "error", message, "Report this bug.");
}

async function allChecks(context: EnvironmentTestContext): Promise<Finding[]> {
  const settings = settingsFrom(process.env, objectOf(context.config));
  const checks = [temporal(settings, context), sealing(settings), transcripts(settings), helpers()];
  return (await Promise.all(checks)).flat();
}

/** Temporal and the workers; when there is one, also what it finds in the agent's configuration. */
async function temporal(settings: Settings, context: EnvironmentTestContext): Promise<Finding[]> {
  const { taskQueue, temporal } = settings;
  const place = `at ${temporal.address}, namespace ${temporal.namespace}`;
  const remedy = "Start Temporal, or set TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TEMPORAL_TLS and TEMPORAL_API_KEY.";
  return await tried(check("temporal_unreachable", "error", `Temporal does not answer ${place}`, remedy), async () => {
    const polled = await isPolled(settings);
    const reachable = check("temporal_reachable", "info", `Temporal answers ${place}`);
    const polls = check("worker_polls", "info", `A worker polls task queue ${taskQueue}`);
    if (polled) return [reachable, polls, ...(await configuration(settings, context))];
    const start = "Start a worker (`agent-runs worker`) with the same AGENT_RUNS_TASK_QUEUE. Runs wait until then.";
    return [reachable, check("worker_missing", "error", `No worker polls task queue ${taskQueue}`, start)];
  });
}

/** Whether a worker polls the task queue for workflow tasks; every worker of ours then polls for activities as well. */
async function isPolled(settings: Settings): Promise<boolean> {
  const found = temporalFor(settings);
  const { taskQueue, temporal } = settings;
  const request = { namespace: temporal.namespace, taskQueue: { name: taskQueue }, taskQueueType: WORKFLOW_TASKS };
  const call = () => found.workflowService.describeTaskQueue(request);
  return ((await found.callOnce(call, { timeout: TIMEOUT_MS })).pollers?.length ?? 0) > 0;
}

async function sealing(settings: Settings): Promise<Finding[]> {
  const remedy = "Set AGENT_RUNS_SEALING_KEY to the output of `agent-runs sealing-key`.";
  return await tried(check("sealing_key_unusable", "error", "Requests cannot be sealed", remedy), async () => [
    check("sealing_key", "info", `Requests are sealed with key ${(await sealerFrom(settings)).kid}`),
  ]);
}

async function configuration(settings: Settings, { companyId, config }: EnvironmentTestContext): Promise<Finding[]> {
  const found = temporalFor(settings);
  const checkId = randomUUID();
  const workflowId = `agent-check:${checkId}`;
  const binding = { purpose: "check", workflowId, companyId, runId: checkId } as const;
  const host = surroundings(settings, process.env, objectOf(config));
  try {
    const workspaces = join(...paperclipHome(process.env), "workspaces");
    const sealed = await (await sealerFrom(settings)).seal({ binding, config: objectOf(config), host, workspaces });
    const input: CheckStart = { checkId, companyId, sealed };
    const start = { workflowId, taskQueue: found.taskQueue, args: [input], workflowExecutionTimeout: "15 s" } as const;
    const call = () => found.execute(CHECK_WORKFLOW, start);
    const report: CheckReport = await found.callOnce(call, { timeout: TIMEOUT_MS });
    return report.findings ?? [];
  } catch (error) {
    const late = codeOf(error) === Code.DEADLINE_EXCEEDED;
    const reason = late ? `no worker answered within ${TIMEOUT_MS / 1000} s` : serverMessage(error);
    const level = error instanceof WorkflowFailedError ? "error" : "warn";
    const remedy =
      "Start a worker (`agent-runs worker`) of this version with the same AGENT_RUNS_TASK_QUEUE and sealing key.";
    return [check("configuration_unchecked", level, `The agent's configuration is not checked: ${reason}`, remedy)];
  }
}

async function transcripts(settings: Settings): Promise<Finding[]> {
  const base = settings.transcriptsUrl;
  const variable = "AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL";
  if (base === undefined) {
    const remedy = `Set ${variable} to the address at which the worker serves transcripts (AGENT_RUNS_TRANSCRIPTS_LISTEN).`;
    return [check("transcripts_unset", "error", "No transcript service is set, so run logs stay empty", remedy)];
  }
  const sameKey = "Set AGENT_RUNS_TRANSCRIPTS_KEY_FILE to the same file here and at the worker.";
  const unusable = check("transcripts_key_unusable", "error", "The transcript service's key cannot be used", sameKey);
  const remedy = `Check ${variable}, and start the service. Runs continue without it, their logs wait.`;
  const unreachable = check("transcripts_unreachable", "error", `No transcript service answers at ${base}`, remedy);
  return await tried(unusable, async () => {
    const headers = { authorization: `Bearer ${await mint(PROBE_RUN, settings)}` };
    return await tried(unreachable, async () => {
      const url = `${runUrl(base, PROBE_RUN)}/attempts`;
      const { status, body } = await fetch(url, { headers, signal: AbortSignal.timeout(TIMEOUT_MS) });
      await body?.cancel();
      const refused = `The transcript service at ${base} refuses our token`;
      if ([401, 403].includes(status)) return [check("transcripts_key_refused", "error", refused, sameKey)];
      if (![200, 404].includes(status)) throw new Error(`status ${status}`);
      return [check("transcripts_reachable", "info", `Transcripts are served at ${base}`)];
    });
  });
}

async function helpers(): Promise<Finding[]> {
  if ((await paperclipHelpers()).renderPaperclipWakePrompt) return [];
  const message = "Paperclip's own prompt helpers were not found; agents get the task without Paperclip's wake text";
  return [check("host_helpers", "warn", message, "Start Paperclip from its installed package.")];
}

function check(code: string, level: Level, message: string, hint?: string): Finding {
  return { code, level, message, hint };
}

/** The checks that `work` gives; when it fails, `failure` with the reason. */
async function tried(failure: Finding, work: () => Promise<Finding[]>): Promise<Finding[]> {
  try {
    return await work();
  } catch (error) {
    return [{ ...failure, message: `${failure.message}: ${serverMessage(error)}` }];
  }
}
