/**
 * Finds runs that this Paperclip has lost (it was killed, stopped, or its lease expired) while their workflow is open, and
 * makes Paperclip wake their tasks, so that the new wake joins the workflow.
 *
 * It depends on Paperclip's state of the task of the lost run:
 *
 * - Paperclip holds the task (`executionBlocker`). It releases the hold for evidence that the agent has stopped, and of
 *   the result of its work. While the agent works there is no such evidence, because the API cannot express that a run is
 *   open and can be joined; so the hold stays until the run has its outcome, which then waits for the new wake.
 * - Paperclip does not hold the task (invocations reported as `opencode_local`). Then no evidence is needed, and the agent
 *   is woken for the task, also while the run is open: the new wake joins it.
 *
 * This needs board rights: a board API key, or a server in `local_trusted` mode; without them it ends at once. All of it
 * is bounded and idempotent, and nothing here rejects. Source: Paperclip 2026.916.1, its recovery routes, read and observed.
 */

import type { Outcome } from "../generated/contracts.ts";
import { shutdownSignal } from "./abort.ts";
import { FINAL_PHASES } from "./attach.ts";
import { fetchOutcome } from "./outcome.ts";
import { type JsonObject, objectOf } from "./paperclip.ts";
import { isUnanswered, OPEN_RUN_STATES, PaperclipApi } from "./paperclip-api.ts";
import { settingsFrom } from "./settings.ts";
import { attribute, attributes, type Temporal, temporalFor, WORKFLOW_TYPE } from "./temporal.ts";
import { sleep } from "./waits.ts";

const START_DELAY_MS = 5000;
/** Paperclip takes up to five minutes after a quick restart to notice that it has lost a run. */
const FAST_POLL_PERIOD_MS = 10 * 60_000;
const FAST_POLL_MS = 10_000;
const SLOW_POLL_MS = 60_000;
const OUTCOME_TIMEOUT_MS = 10_000;
const OPEN_RUN_LIMIT = 200;
const MAX_RELEASES = 5;
/** Between two wakes: Paperclip, whose database client has ten connections, was seen to hang when ten runs started at once. */
const WAKE_INTERVAL_MS = 1000;
const LOST_CODES: ReadonlySet<unknown> = new Set([
  "process_lost",
  "controller_lease_lost", // the plugin's own code, when Paperclip stored its result
  "server_shutdown_interrupted",
  "execution_reconciliation_required",
]);
const CLOSED_ISSUE: ReadonlySet<unknown> = new Set(["done", "cancelled"]);

/** A workflow that is open: its agent works, or it keeps its outcome. */
interface OpenRun {
  workflowId: string;
  workflowRunId: string;
  agentId: string;
  /** Paperclip's id of its last wake. */
  runId: string;
  hasOutcome: boolean;
}

/** What one round did for a lost run. */
export type Step = "released" | "woken" | "still working" | "nothing to do" | "refused" | "unknown";

/** Reconciles the lost runs of one Paperclip with the workflows of one Temporal namespace. */
export class Reconciler {
  readonly #temporal: Temporal;
  readonly #api: PaperclipApi;
  readonly #wakeInterval: number;
  /** How often a lost run's hold was released: Paperclip's own recovery may restore it before a new run has begun. */
  readonly #released = new Map<string, number>();
  /** Lost runs that are done, and runs that this Paperclip does not know. */
  readonly #done = new Set<string>();

  constructor(temporal: Temporal, api: PaperclipApi, wakeInterval: number = WAKE_INTERVAL_MS) {
    this.#temporal = temporal;
    this.#api = api;
    this.#wakeInterval = wakeInterval;
  }

  /** Checks every open run once; the step for each lost one. Rejects with `Aborted`, or when Temporal does not answer. */
  async round(signal?: AbortSignal): Promise<{ runId: string; step: Step }[]> {
    const steps: { runId: string; step: Step }[] = [];
    for (const run of await this.#openRuns()) {
      const { runId } = run;
      if (this.#done.has(runId)) continue;
      const step = await this.#reconcileRun(run);
      if (step === undefined) continue;
      steps.push({ runId, step });
      if (this.#isDone(runId, step)) this.#done.add(runId);
      if (step === "woken" || step === "released") await sleep(this.#wakeInterval, signal);
    }
    return steps;
  }

  #isDone(runId: string, step: Step): boolean {
    if (step !== "released") return step !== "still working" && step !== "unknown";
    const times = (this.#released.get(runId) ?? 0) + 1;
    this.#released.set(runId, times);
    return times >= MAX_RELEASES;
  }

  async #openRuns(): Promise<OpenRun[]> {
    const openRuns: OpenRun[] = [];
    const query = `WorkflowType = '${WORKFLOW_TYPE}' AND ExecutionStatus = 'Running'`;
    await this.#temporal.callOnce(async () => {
      for await (const run of this.#temporal.list({ query, pageSize: OPEN_RUN_LIMIT })) {
        const agentId = attribute(run, "AgentId");
        const runId = [...attributes(run, "PaperclipRunId"), ...attributes(run, "JoinedRunIds")].at(-1);
        const hasOutcome = FINAL_PHASES.has(attribute(run, "RunPhase") ?? "");
        if (agentId === undefined || runId === undefined) continue;
        openRuns.push({ workflowId: run.workflowId, workflowRunId: run.runId, agentId, runId, hasOutcome });
        if (openRuns.length >= OPEN_RUN_LIMIT) break;
      }
    });
    return openRuns;
  }

  /** undefined: this Paperclip has not lost the run. */
  async #reconcileRun(run: OpenRun): Promise<Step | undefined> {
    const { runId } = run;
    const { status, body } = await this.#api.run(runId);
    if (status === 404) this.#done.add(runId);
    if (status !== 200) return undefined;
    const ended = body.status === "failed" || body.status === "interrupted";
    const lost = ended && (LOST_CODES.has(body.errorCode) || resultDropped(body, run.workflowRunId));
    const issueId = objectOf(body.contextSnapshot).issueId ?? body.nativeIssueId;
    if (!lost || body.agentId !== run.agentId) return undefined;
    if (typeof issueId !== "string") return "nothing to do"; // a timer's wake: Paperclip sends the next one itself
    const issue = await this.#api.request(`/issues/${encodeURIComponent(issueId)}`);
    if (issue.status !== 200) return isUnanswered(issue) ? "unknown" : "nothing to do";
    if (issue.body.assigneeAgentId !== run.agentId || CLOSED_ISSUE.has(issue.body.status)) return "nothing to do";
    const wake = () => this.#wake(run, issueId, String(body.companyId));
    if (issue.body.executionBlocker == null) return await wake();
    const blocker = objectOf(issue.body.executionBlocker);
    if (blocker.runId !== runId || typeof blocker.recoveryActionId !== "string") return "nothing to do";
    const step = await this.#release(run, issueId, blocker.recoveryActionId);
    if (step === "released") await wake();
    return step;
  }

  /** Wakes the agent for a task that is not held, unless Paperclip has an open run of it. */
  async #wake({ agentId, runId }: OpenRun, issueId: string, companyId: string): Promise<Step> {
    const agent = encodeURIComponent(agentId);
    const list = `/companies/${encodeURIComponent(companyId)}/heartbeat-runs?agentId=${agent}&limit=50`;
    const runs = await this.#api.request(list);
    if (runs.status !== 200 || !Array.isArray(runs.body.list)) return "unknown";
    const ofTask = runs.body.list.map(objectOf).filter((each) => objectOf(each.contextSnapshot).issueId === issueId);
    if (ofTask.some(({ status }) => OPEN_RUN_STATES.has(status))) return "nothing to do";
    const answer = await this.#api.request(`/agents/${agent}/wakeup`, {
      source: "automation",
      triggerDetail: "system",
      reason: "agent_run_is_open",
      payload: { issueId },
      idempotencyKey: `agent-runs-rejoin:${runId}:${this.#released.get(runId) ?? 0}`,
    });
    if (isUnanswered(answer)) return "unknown";
    return answer.status < 300 && answer.body.status !== "skipped" ? "woken" : "refused";
  }

  /** Releases the hold of a run whose agent has stopped. */
  async #release(run: OpenRun, issueId: string, actionId: string): Promise<Step> {
    if (!run.hasOutcome) return "still working";
    const handle = this.#temporal.runOf(run);
    const signal = AbortSignal.timeout(OUTCOME_TIMEOUT_MS);
    const outcome = await fetchOutcome(handle, { signal }).catch(() => undefined);
    if (outcome === undefined) return "unknown";
    if (!outcome.agentStopped) return "nothing to do"; // a person has to decide
    const answer = await this.#api.request(`/issues/${encodeURIComponent(issueId)}/recovery-actions/resolve`, {
      actionId,
      outcome: "restored",
      sourceIssueStatus: "todo",
      executionReconciliation: {
        runId: run.runId,
        providerStopped: true,
        actionOutcome: outcome.actionOutcome ?? "mixed",
        outcomeEvidence: evidenceFor(run, outcome),
      },
    });
    if (isUnanswered(answer)) return "unknown";
    return answer.status < 300 ? "released" : "refused";
  }
}

/** Whether Paperclip failed after our return, for example by a deadlock of its database: its error code, without our result. */
function resultDropped(body: JsonObject, workflowRunId: string): boolean {
  return body.errorCode === "adapter_failed" && objectOf(body.resultJson).workflowRunId !== workflowRunId;
}

function evidenceFor({ runId, workflowId, workflowRunId }: OpenRun, { failure, receipt }: Outcome): string {
  const lines = receipt && `${receipt.lines ?? 0} lines stored, receipt ${receipt.state ?? "unverified"}`;
  return (
    `Paperclip lost run ${runId}; its agent continued in Kubernetes and has ended: ${failure?.code ?? "succeeded"}.` +
    `${lines ? ` Output: ${lines}.` : ""} Source: Temporal workflow ${workflowId}, run ${workflowRunId}, which keeps the ` +
    `outcome and gives it to the next run of this task instead of starting the work again.`
  );
}

/** Keeps a second reconciler from running when Paperclip reloads this module. */
const RUNNING = Symbol.for("paperclip-adapter-opencode-k8s.reconciler");
const host = globalThis as { [RUNNING]?: AbortController };

/** Starts the reconciler some seconds after the adapter was loaded. Returns at once; never throws. */
export function scheduleReconciler(): void {
  host[RUNNING]?.abort();
  host[RUNNING] = new AbortController();
  // wrong settings are reported by every run and by the environment test
  void reconcileUntilAborted(host[RUNNING]).catch(() => undefined);
}

async function reconcileUntilAborted(stop: AbortController): Promise<void> {
  const { signal } = stop;
  await sleep(START_DELAY_MS, signal);
  const settings = settingsFrom(process.env);
  if (!settings.reconcile) return;
  shutdownSignal().addEventListener("abort", () => stop.abort(), { once: true });
  const reconciler = new Reconciler(temporalFor(settings), await boardApi(settings.boardApiKey, signal));
  const began = Date.now();
  for (;;) {
    const steps = await reconciler.round(signal).catch(() => []);
    const waiting = steps.some(({ step }) => step === "still working" || step === "unknown");
    await sleep(waiting || Date.now() - began < FAST_POLL_PERIOD_MS ? FAST_POLL_MS : SLOW_POLL_MS, signal);
  }
}

/** Resolves once the server has an address, answers, and we have board rights. Rejects when we have none. */
async function boardApi(key: string | undefined, signal: AbortSignal): Promise<PaperclipApi> {
  for (;;) {
    const api = new PaperclipApi(key);
    const { status, body } = await api.request("/health");
    if (status === 200) {
      if (key !== undefined || body.deploymentMode === "local_trusted") return api;
      throw new Error("no board rights");
    }
    await sleep(FAST_POLL_MS, signal);
  }
}
