/**
 * Finds runs that this Paperclip has lost (it was killed, stopped, or its lease ran out) while their workflow lives on,
 * and sees to it that the task's next wake comes by itself and takes them over.
 *
 * What is done depends on what Paperclip made of the lost run:
 *
 * - It holds the task (`executionBlocker`). The hold is released by evidence, and only by true evidence: that the agent
 *   has stopped, and what became of its work. As long as the agent works there is none, because the API has no word for
 *   "it goes on and can be joined", so the hold stays; it is released once the run has its outcome, which then waits for
 *   the new wake. `completed` is said of a success, `not_performed` when no agent ever started, `mixed` of the rest.
 * - It keeps no hold (invocations reported as `opencode_local`). Then nothing has to be claimed, and the agent is woken
 *   for the task, also while the run goes on: the new run joins it.
 *
 * Needs board rights: a board API key, or a server in `local_trusted` mode. Without, it ends at once. Everything is
 * bounded and idempotent, and nothing here rejects. Source: Paperclip 2026.916.1, its recovery routes, read and observed.
 */

import type { Outcome } from "./contracts.ts";
import { type Answer, HostApi, hostApi, objectOf } from "./host-api.ts";
import { outcomeOf } from "./outcome.ts";
import { neverStarted } from "./result.ts";
import { type Settings, settingsFrom } from "./settings.ts";
import { shutdown } from "./shutdown.ts";
import { once, runOf, type Temporal, type TemporalSettings, temporalFor } from "./temporal.ts";
import { sleep } from "./waiting.ts";

const AFTER_LOAD_MS = 5000;
/** Paperclip takes up to five minutes after a quick restart to notice that it has lost a run. */
const YOUNG_MS = 10 * 60_000;
const OFTEN_MS = 10_000;
const SELDOM_MS = 60_000;
const OUTCOME_MS = 10_000;
const AT_ONCE = 200;
const RELEASES = 5;
/** Between wakes: Paperclip, whose database client has ten connections, was seen to hang when ten runs started at once. */
const BREATH_MS = 1000;
const LOST_CODES: ReadonlySet<unknown> = new Set([
  "process_lost",
  "controller_lease_lost", // our own word, when it was stored after all
  "server_shutdown_interrupted",
  "execution_reconciliation_required",
]);
const OPEN: ReadonlySet<unknown> = new Set(["queued", "running", "scheduled_retry"]);
const CLOSED_ISSUE: ReadonlySet<unknown> = new Set(["done", "cancelled"]);
const FINAL_PHASES: ReadonlySet<unknown> = new Set(["succeeded", "failed", "timed out", "cancelled"]);

/** A workflow that is open: its agent works, or its outcome waits. */
interface OpenRun {
  workflowId: string;
  workflowRunId: string;
  agentId: string;
  /** Paperclip's ids, the first wake's first. */
  runIds: string[];
  decided: boolean;
}

/** What became of one look at a lost run. */
export type Step = "released" | "woken" | "still working" | "nothing to do" | "refused" | "unknown";

export interface Told {
  runId: string;
  step: Step;
}

/** One Paperclip and one Temporal. */
export class Reconciler {
  readonly #temporal: Temporal;
  readonly #api: HostApi;
  readonly #breath: number;
  /** How often a lost run's hold was released: Paperclip's own recovery may lay it again before a new run has begun. */
  readonly #released = new Map<string, number>();
  /** Lost runs that need no further look. */
  readonly #done = new Set<string>();
  /** Runs that this Paperclip does not know. */
  readonly #foreign = new Set<string>();

  constructor(temporal: Temporal, api: HostApi, breath: number = BREATH_MS) {
    this.#temporal = temporal;
    this.#api = api;
    this.#breath = breath;
  }

  /** Looks at every open run once. Rejects with `GivenUp`, or when Temporal does not answer. */
  async round(signal?: AbortSignal): Promise<Told[]> {
    const told: Told[] = [];
    for (const run of await this.#open()) {
      const runId = run.runIds.at(-1);
      if (runId === undefined || this.#done.has(runId) || this.#foreign.has(runId)) continue;
      const step = await this.#look(run, runId);
      if (step === undefined) continue;
      told.push({ runId, step });
      if (this.#settled(runId, step)) this.#done.add(runId);
      if (step === "woken" || step === "released") await sleep(this.#breath, signal);
    }
    return told;
  }

  #settled(runId: string, step: Step): boolean {
    if (step !== "released") return step !== "still working" && step !== "unknown";
    const times = (this.#released.get(runId) ?? 0) + 1;
    this.#released.set(runId, times);
    return times >= RELEASES;
  }

  async #open(): Promise<OpenRun[]> {
    const found: OpenRun[] = [];
    const query = "WorkflowType = 'AgentRunWorkflow' AND ExecutionStatus = 'Running'";
    await once(this.#temporal, async () => {
      for await (const run of this.#temporal.client.list({ query, pageSize: AT_ONCE })) {
        const { AgentId, PaperclipRunId, JoinedRunIds, RunPhase } = run.searchAttributes as {
          [name: string]: string[];
        };
        const [agentId] = AgentId ?? [];
        if (agentId !== undefined) {
          const runIds = [...(PaperclipRunId ?? []), ...(JoinedRunIds ?? [])];
          const address = { workflowId: run.workflowId, workflowRunId: run.runId };
          found.push({ ...address, agentId, runIds, decided: FINAL_PHASES.has(RunPhase?.[0]) });
        }
        if (found.length >= AT_ONCE) break;
      }
    });
    return found;
  }

  /** undefined: this Paperclip has not lost the run. */
  async #look(run: OpenRun, runId: string): Promise<Step | undefined> {
    const { status, body } = await this.#api.ask(`/heartbeat-runs/${encodeURIComponent(runId)}`);
    if (status === 404) this.#foreign.add(runId);
    if (status !== 200) return undefined;
    const ended = body.status === "failed" || body.status === "interrupted";
    const lost = ended && (LOST_CODES.has(body.errorCode) || resultDropped(body, run.workflowRunId));
    const issueId = objectOf(body.contextSnapshot).issueId ?? body.nativeIssueId;
    if (!lost || body.agentId !== run.agentId) return undefined;
    if (typeof issueId !== "string") return "nothing to do"; // a timer's wake: the next one comes by itself
    const issue = await this.#api.ask(`/issues/${encodeURIComponent(issueId)}`);
    if (issue.status !== 200) return issue.status === 0 ? "unknown" : "nothing to do";
    if (issue.body.assigneeAgentId !== run.agentId || CLOSED_ISSUE.has(issue.body.status)) return "nothing to do";
    const blocker = objectOf(issue.body.executionBlocker);
    if (issue.body.executionBlocker == null) return await this.#wake(run, runId, issueId, String(body.companyId));
    if (blocker.runId !== runId || typeof blocker.recoveryActionId !== "string") return "nothing to do";
    const step = await this.#release(run, runId, issueId, blocker.recoveryActionId);
    if (step === "released") await this.#wake(run, runId, issueId, String(body.companyId));
    return step;
  }

  /** Wakes the agent for a task that nothing holds, unless Paperclip has a run of it on its way. */
  async #wake(run: OpenRun, runId: string, issueId: string, companyId: string): Promise<Step> {
    const agent = encodeURIComponent(run.agentId);
    const runs = await this.#api.ask(
      `/companies/${encodeURIComponent(companyId)}/heartbeat-runs?agentId=${agent}&limit=50`,
    );
    if (runs.status !== 200 || !Array.isArray(runs.body.list)) return "unknown";
    const onItsWay = runs.body.list.map(objectOf).some(({ status, contextSnapshot }) => {
      return OPEN.has(status) && objectOf(contextSnapshot).issueId === issueId;
    });
    if (onItsWay) return "nothing to do";
    const answer = await this.#api.ask(`/agents/${agent}/wakeup`, {
      source: "automation",
      triggerDetail: "system",
      reason: "agent_run_goes_on",
      payload: { issueId },
      idempotencyKey: `agent-runs-rejoin:${runId}:${this.#released.get(runId) ?? 0}`,
    });
    if (answer.status === 0) return "unknown";
    return answer.status < 300 && answer.body.status !== "skipped" ? "woken" : "refused";
  }

  /** Releases the hold of a run whose agent has stopped. */
  async #release(run: OpenRun, runId: string, issueId: string, actionId: string): Promise<Step> {
    if (!run.decided) return "still working";
    const handle = runOf(this.#temporal, run.workflowId, run.workflowRunId);
    const signal = AbortSignal.timeout(OUTCOME_MS);
    const outcome = await outcomeOf(this.#temporal, handle, { signal }).catch(() => undefined);
    if (outcome === undefined) return "unknown";
    if (!agentStopped(outcome)) return "nothing to do"; // a person has to look
    const answer = await this.#api.ask(`/issues/${encodeURIComponent(issueId)}/recovery-actions/resolve`, {
      actionId,
      outcome: "restored",
      sourceIssueStatus: "todo",
      executionReconciliation: {
        runId,
        providerStopped: true,
        actionOutcome: actionOutcomeOf(outcome),
        outcomeEvidence: evidenceFor(run, runId, outcome),
      },
    });
    if (answer.status === 0 || answer.status >= 500) return "unknown";
    return answer.status < 300 ? "released" : "refused";
  }
}

/** Whether Paperclip failed after our return, by a deadlock of its database say: its word, without what we returned. */
function resultDropped(body: Answer["body"], workflowRunId: string): boolean {
  return body.errorCode === "adapter_failed" && objectOf(body.resultJson).workflowRunId !== workflowRunId;
}

/** Whether no container of the run is left: it ended by itself, or Kubernetes says that the stopped one is gone. */
export function agentStopped(outcome: Outcome): boolean {
  if (outcome.stop != null) return outcome.stop.agentStopped === true;
  return outcome.failure == null || typeof outcome.resultJson?.podExitCode === "number";
}

export function actionOutcomeOf(outcome: Outcome): "completed" | "not_performed" | "mixed" {
  if (neverStarted(outcome)) return "not_performed";
  return outcome.failure == null ? "completed" : "mixed";
}

function evidenceFor(run: OpenRun, runId: string, outcome: Outcome): string {
  const code = outcome.failure?.code ?? "succeeded";
  const receipt = outcome.receipt;
  const output = receipt
    ? ` Output: ${receipt.lines ?? 0} lines stored, receipt ${receipt.state ?? "unverified"}.`
    : "";
  return (
    `Paperclip lost run ${runId}; its agent ran on in Kubernetes and has ended: ${code}.${output} ` +
    `Source: Temporal workflow ${run.workflowId}, run ${run.workflowRunId}, which keeps the outcome ` +
    `and hands it to the next run of this task instead of starting the work anew.`
  );
}

/** What keeps a reconciler from starting twice, also when Paperclip loads this module anew. */
const RUNNING = Symbol.for("paperclip-adapter-opencode-k8s.reconcilers");

function running(): Map<string, AbortController> {
  const holder = globalThis as { [RUNNING]?: Map<string, AbortController> };
  holder[RUNNING] ??= new Map();
  return holder[RUNNING];
}

/** Called when the adapter is loaded: begins some seconds later, with the settings of Paperclip's own environment. */
export function reconcileAfterLoad(): void {
  for (const earlier of running().values()) earlier.abort();
  running().clear();
  setTimeout(() => {
    try {
      reconcileSoon(settingsFrom(process.env));
    } catch {
      // wrong settings are told by every run and by the environment test
    }
  }, AFTER_LOAD_MS).unref();
}

/** Begins for this Temporal, unless it has begun. Returns at once; never throws. */
export function reconcileSoon(settings: Settings): void {
  const base = hostApi(process.env);
  if (!settings.reconcile || base === undefined) return;
  const { address, namespace } = settings.temporal;
  const key = `${address} ${namespace}`;
  if (running().has(key)) return;
  const stop = new AbortController();
  running().set(key, stop);
  shutdown().addEventListener("abort", () => stop.abort(), { once: true });
  void reconciling(settings, base, stop.signal).catch(() => undefined);
}

async function reconciling(
  settings: TemporalSettings & { boardApiKey?: string },
  base: string,
  signal: AbortSignal,
): Promise<void> {
  const began = Date.now();
  const api = new HostApi(base, settings.boardApiKey);
  await allowed(api, settings.boardApiKey, signal);
  const reconciler = new Reconciler(temporalFor(settings), api);
  for (;;) {
    const told = await reconciler.round(signal).catch((): Told[] => []);
    const waiting = told.some(({ step }) => step === "still working" || step === "unknown");
    await sleep(waiting || Date.now() - began < YOUNG_MS ? OFTEN_MS : SELDOM_MS, signal);
  }
}

/** Resolves once the server answers and we have board rights. Rejects when we never will. */
async function allowed(api: HostApi, key: string | undefined, signal: AbortSignal): Promise<void> {
  for (;;) {
    const { status, body } = await api.ask("/health");
    if (status === 200) {
      if (key !== undefined || body.deploymentMode === "local_trusted") return;
      throw new Error("no board rights");
    }
    await sleep(OFTEN_MS, signal);
  }
}
