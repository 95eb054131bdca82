/**
 * One wake of an agent: prepare, attach, stream, hand over. Everything that lasts is in Temporal and in the transcript
 * store, so this can be lost at any moment; the next wake of the task takes the run over.
 *
 * Nothing is created before the request is whole. From the attach on, the only ends are the run's own outcome, an
 * operator's cancel, and the loss of Paperclip's lease, which leaves the run alone. An outage of Temporal or of the
 * transcript service is a pause, told in the log.
 */

import { type Arrival, attach, attachWhenFree, type Progress, startedAfterAll, type Ticket } from "./attach.ts";
import { type Abort, ANSWER_MS, abortOf, stopped, wasCancelled } from "./cancel.ts";
import type { Cancelled, Outcome } from "./contracts.ts";
import { deliveredBefore, handOver } from "./handover.ts";
import { host } from "./host.ts";
import { RunLog, Trouble } from "./log.ts";
import { EndedWithoutOutcome, outcomeOf } from "./outcome.ts";
import type { AdapterExecutionContext, AdapterExecutionResult } from "./paperclip.ts";
import { reconcileSoon } from "./reconcile.ts";
import { InvalidRequest, type Prepared, prepare, sealToken } from "./request.ts";
import { cancelledBeforeStart, failedResult, resultOf } from "./result.ts";
import { sealerFrom } from "./sealing.ts";
import { ConfigurationError, type Settings, settingsFrom } from "./settings.ts";
import { letGo, shutdown } from "./shutdown.ts";
import {
  attribute,
  CREDENTIALS,
  once,
  type Run,
  runOf,
  saidBy,
  type Talk,
  type Temporal,
  temporalFor,
} from "./temporal.ts";
import { mint } from "./tokens.ts";
import { follow, type Line, TranscriptIncomplete } from "./transcript.ts";
import { GivenUp, linked, sleep, turn } from "./waiting.ts";
import { warmedUp } from "./warm-up.ts";

const OWN_TYPE = "opencode_k8s";
/** For the last lines of a cancelled run, so that the answer comes in time. */
const LAST_LINES_MS = ANSWER_MS - 3000;
const LAST_LINES_LEAST_MS = 2000;
/** Between looks at a run that writes nothing. */
const LOOK_MS = 5000;

/** What an execution is made of. */
export interface Parts {
  settings: Settings;
  temporal: Temporal;
  prepared: Prepared;
  /** The wake's own tokens, sealed for it; undefined when it has none. */
  sealToken(): Promise<string | undefined>;
}

/** Runs one wake. Rejects only if Paperclip's own dispatch gate refuses it. */
export async function execute(ctx: AdapterExecutionContext): Promise<AdapterExecutionResult> {
  return await executeWith(ctx, async () => {
    await warmedUp();
    const settings = settingsFrom(process.env, ctx.config);
    reconcileSoon(settings);
    const sealer = await sealerFrom(settings);
    await turn(); // what is prepared, connected and asked for the first time takes some ms each
    const prepared = await prepare(ctx, settings, sealer, await host());
    await turn();
    return {
      settings,
      temporal: temporalFor(settings),
      prepared,
      sealToken: async () =>
        ctx.authToken ? await sealToken(sealer, ctx.runId, ctx.authToken, ctx.runtimeTools?.bearerToken) : undefined,
    };
  });
}

/**
 * The same with parts of the caller's making; `making` may reject with what is wrong with the request.
 *
 * @param down aborted when the process is told to stop.
 */
export async function executeWith(
  ctx: AdapterExecutionContext,
  making: () => Promise<Parts>,
  down: () => AbortSignal = shutdown,
): Promise<AdapterExecutionResult> {
  const log = new RunLog(ctx.onLog);
  const recovery = typeof ctx.onCancellationReady === "function";
  try {
    let parts: Parts;
    try {
      parts = await making();
    } catch (error) {
      return await unusable(error, log, recovery);
    }
    return await linked([ctx.signal, down()], ({ signal }) => new Execution(ctx, parts, log, recovery, signal).run());
  } finally {
    await log.close();
  }
}

async function unusable(error: unknown, log: RunLog, recovery: boolean): Promise<AdapterExecutionResult> {
  const ours = error instanceof InvalidRequest || error instanceof ConfigurationError;
  const said = ours ? error.message : `the request could not be prepared: ${nameOf(error)}`;
  await log.status("failure", said);
  const nextStep =
    "Correct what is named, in the agent's configuration or in Paperclip's environment, and wake it again.";
  return failedResult({ code: "invalid_request", message: said, nextStep, neverStarted: true }, recovery);
}

/** How following a run ended. */
type Ending =
  | { kind: "outcome"; outcome: Outcome; cancelled?: { by: Cancelled; at: Date } }
  | { kind: "unconfirmed" }
  | { kind: "lease lost" };

class Execution {
  readonly #ctx: AdapterExecutionContext;
  readonly #settings: Settings;
  readonly #temporal: Temporal;
  readonly #prepared: Prepared;
  readonly #sealToken: () => Promise<string | undefined>;
  readonly #log: RunLog;
  readonly #recovery: boolean;
  readonly #signal: AbortSignal;
  readonly #outage: Trouble;

  constructor(ctx: AdapterExecutionContext, parts: Parts, log: RunLog, recovery: boolean, signal: AbortSignal) {
    this.#ctx = ctx;
    this.#settings = parts.settings;
    this.#temporal = parts.temporal;
    this.#prepared = parts.prepared;
    this.#sealToken = parts.sealToken;
    this.#log = log;
    this.#recovery = recovery;
    this.#signal = signal;
    this.#outage = new Trouble(log, "Temporal answers again");
  }

  async run(): Promise<AdapterExecutionResult> {
    for (const note of this.#prepared.notes) await this.#log.status("note", note);
    await this.#ctx.onCancellationReady?.();
    const early = abortOf(this.#signal);
    if (early !== undefined) return await this.#neverStarted(early);
    await this.#announce();
    await this.#ctx.onDispatch?.();
    await turn();
    const ticket = await this.#attached();
    if (!("workflowRunId" in ticket)) return ticket;
    return await this.#delivered(ticket);
  }

  // before there is a run

  /** Tells Paperclip what is about to be invoked. Its own trouble with that is no reason to fail. */
  async #announce(): Promise<void> {
    const { request, environmentForLogs, prompt, promptMetrics, notes } = this.#prepared;
    const resumes = request.runtime?.sessionParams != null;
    // the host keeps no hold over what it knows as a conversation; internal, hence only where it knows recovery
    const adapterType = this.#recovery ? this.#settings.reportAs : OWN_TYPE;
    await attempted(
      this.#ctx.onMeta?.({
        adapterType,
        command: "opencode",
        cwd: request.context?.paperclipWorkspace?.cwd ?? request.config.cwd ?? undefined,
        commandArgs: ["run", "--format", "json", "--model", request.config.model],
        commandNotes: ["runs in Kubernetes, as a Temporal workflow", ...notes],
        env: environmentForLogs,
        prompt: resumes ? prompt.resumed : prompt.fresh,
        promptMetrics,
        context: { temporal: this.#temporal.address, taskQueue: this.#temporal.taskQueue, agentRunId: request.runId },
      }),
    );
    await this.#progress("adapter_startup", "Asking Temporal for the agent");
  }

  /** The ticket of the run to follow, or the result when there is none. */
  async #attached(): Promise<Ticket | AdapterExecutionResult> {
    const { request, task } = this.#prepared;
    const delivered = (runIds: readonly string[], workflowRunId: string) =>
      deliveredBefore(runIds, workflowRunId, this.#ctx.authToken);
    const arrival: Arrival = { request, task, sealedSecrets: this.#sealToken, delivered };
    const talk = { signal: this.#signal, outage: this.#outage };
    const progress: Progress = { uncertain: false };
    this.#log.phase = "waiting for the agent";
    try {
      const ticket =
        this.#settings.onBusy === "wait"
          ? await attachWhenFree(this.#temporal, arrival, (busy) => void this.#busy(busy, "waiting"), talk, progress)
          : await attach(this.#temporal, arrival, talk, progress);
      return ticket.kind === "busy" ? await this.#refusedByHolder(ticket) : ticket;
    } catch (error) {
      if (!(error instanceof GivenUp)) return await this.#refusedByTemporal(error, progress);
      const why = abortOf(this.#signal) ?? { kind: "cancel", reason: "Run cancelled" };
      if (why.kind === "cancel" && progress.uncertain) {
        const { agent, runId } = request;
        const ticket = await startedAfterAll(this.#temporal, agent.id, runId, { outage: this.#outage });
        if (ticket !== undefined) return ticket;
      }
      return await this.#neverStarted(why);
    }
  }

  async #busy(ticket: Ticket, what: "waiting" | "refused"): Promise<string> {
    const { holder } = ticket;
    const task = holder?.task ? ` on task ${holder.task}` : "";
    const since = holder ? ` since ${holder.since.toISOString()}` : "";
    const note = holder?.note ? `; ${holder.note}` : "";
    const said = `the agent is held by run ${ticket.runId}${task} (${holder?.phase ?? "running"}${since})${note}`;
    const then = what === "waiting" ? "; waiting for its end" : "";
    await this.#log.status("busy", `${said}${then}`, { holder: ticket.runId, task: holder?.task ?? null });
    return said;
  }

  async #refusedByHolder(ticket: Ticket): Promise<AdapterExecutionResult> {
    const message = await this.#busy(ticket, "refused");
    const nextStep = "Wait for the named run to end or cancel it, then wake the agent again.";
    const problem = { code: "k8s_concurrent_run_blocked", message, nextStep, neverStarted: true };
    return failedResult({ ...problem, family: "transient_upstream" }, this.#recovery);
  }

  async #refusedByTemporal(error: unknown, progress: Progress): Promise<AdapterExecutionResult> {
    const message = `Temporal at ${this.#temporal.address} refused the run: ${saidBy(error)}`;
    await this.#log.status("failure", message);
    const nextStep = "Check AGENT_RUNS_TEMPORAL_NAMESPACE, _TLS and _API_KEY, then wake the agent again.";
    const problem = { code: "temporal_refused", message, nextStep, neverStarted: !progress.uncertain };
    return failedResult(problem, this.#recovery);
  }

  async #neverStarted(why: Abort): Promise<AdapterExecutionResult> {
    if (why.kind === "lease lost") return await this.#detached();
    await this.#log.status("cancelling", `${why.reason}: nothing had been started`);
    return cancelledBeforeStart(why.reason, new Date(), this.#recovery);
  }

  // while there is a run

  async #delivered(ticket: Ticket): Promise<AdapterExecutionResult> {
    const run = runOf(this.#temporal, ticket.workflowId, ticket.workflowRunId);
    await this.#welcome(ticket);
    let ending: Ending;
    try {
      ending = await this.#ending(ticket, run);
    } catch (error) {
      return await this.#withoutOutcome(error, ticket);
    }
    if (ending.kind === "lease lost") return await this.#detached(run);
    if (ending.kind === "unconfirmed") return await this.#unconfirmed();
    return await this.#handedOver(ticket, run, ending);
  }

  async #welcome(ticket: Ticket): Promise<void> {
    const address = { workflowId: ticket.workflowId, workflowRunId: ticket.workflowRunId, runId: ticket.runId };
    if (ticket.kind === "started") {
      await this.#log.status("started", `run ${ticket.runId} started`, address);
    } else {
      const state = ticket.closed ? "which has ended; its" : "which goes on; its";
      const said = `joined run ${ticket.runId}, ${state} whole output follows from the first line`;
      await this.#log.status("joined", said, address);
    }
    this.#log.phase = "queued";
  }

  /** Follows the run to its end, or until this process has to let go of it. */
  async #ending(ticket: Ticket, run: Run): Promise<Ending> {
    const detach = new AbortController();
    const stop = new Stop(this.#signal);
    try {
      const outcome = outcomeOf(this.#temporal, run, this.#talk(detach.signal));
      await turn();
      const output = new AbortController();
      const reading = this.#read(ticket, outcome, output.signal);
      reading.catch(() => undefined); // heard when it is waited for
      void this.#watch(run, outcome, detach.signal);
      const abort = await Promise.race([stop.came, settled(outcome).then(() => undefined)]);
      if (abort?.kind === "lease lost") {
        output.abort();
        return { kind: "lease lost" };
      }
      const answer = abort && this.#stop(run, abort.reason, detach.signal);
      if (answer !== undefined) {
        const by = await Promise.race([answer, failureOf(outcome)]);
        if (by === undefined) return { kind: "unconfirmed" };
      }
      const decided = await outcome;
      const last = await this.#drained(reading, stop);
      output.abort();
      if (last?.kind === "lease lost") return { kind: "lease lost" };
      const asked = answer ?? (last && this.#stop(run, last.reason, detach.signal));
      const by = await asked;
      return { kind: "outcome", outcome: decided, cancelled: by && { by, at: new Date() } };
    } finally {
      detach.abort();
      stop.release();
    }
  }

  async #stop(run: Run, reason: string, signal: AbortSignal): Promise<Cancelled | undefined> {
    this.#log.phase = "being stopped";
    await this.#log.status("cancelling", `${reason}: the agent is being stopped`, { reason });
    const grace = this.#prepared.request.config.graceSec ?? 60;
    return await stopped(this.#temporal, run, reason, grace, this.#talk(signal));
  }

  /** While a run goes on nothing is a reason to leave it but its end. */
  #talk(signal: AbortSignal): Talk {
    return { signal, outage: this.#outage, sitOut: CREDENTIALS };
  }

  /** Waits for the transcript, but for a cancelled run not so long that the answer is late. Says if a stop came. */
  async #drained(reading: Promise<void>, stop: Stop): Promise<Abort | undefined> {
    const read = reading.then(() => "read" as const);
    const first = await Promise.race([read, stop.came]);
    if (first === "read") return stop.abort;
    if (first.kind === "lease lost") return first;
    const left = (stop.at ?? Date.now()) + LAST_LINES_MS - Date.now();
    const enough = sleep(Math.max(left, LAST_LINES_LEAST_MS)).then(() => "late" as const);
    if ((await Promise.race([read, enough])) === "late") {
      await this.#log.status("gap", "the last lines are not here yet: the answer to the cancel does not wait for them");
    }
    return first;
  }

  /** The transcript into the log. Resolves also when it could not be read to its end, which the log then says. */
  async #read(ticket: Ticket, outcome: Promise<Outcome>, signal: AbortSignal): Promise<void> {
    const base = this.#settings.transcriptsUrl;
    const { request } = this.#prepared;
    const seen = { attempt: 1 };
    if (base === undefined) {
      const remedy = "set AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL to the transcript service's address";
      await this.#log.status("note", `the agent's output is not shown here: ${remedy}`);
      return;
    }
    const reader = {
      line: async (line: Line) => {
        if (line.attempt !== seen.attempt) {
          seen.attempt = line.attempt;
          await this.#log.status("attempt", `attempt ${line.attempt}`, { attempt: line.attempt });
        }
        await this.#log.session(line, request.config.model);
        await this.#log.line(line);
      },
    };
    const token = () => mint(ticket.runId, this.#settings);
    const outage = new Trouble(this.#log, "the transcript service answers again");
    const decided = outcome.then((known) => ({ attempts: known.attempts?.length ?? 1 }));
    try {
      await follow({ base, runId: ticket.runId, token, outage }, reader, decided, signal);
    } catch (error) {
      if (error instanceof GivenUp || error instanceof EndedWithoutOutcome) return;
      const said =
        error instanceof TranscriptIncomplete ? error.message : `the output cannot be shown: ${nameOf(error)}`;
      await this.#log.status("gap", `${said}; the store still has it`);
    }
  }

  /** Looks at the phase of a run that writes nothing. Best effort: an outage is told elsewhere. */
  async #watch(run: Run, outcome: Promise<Outcome>, signal: AbortSignal): Promise<void> {
    const over = new AbortController();
    void settled(outcome).then(() => over.abort());
    let lines = -1;
    await linked([signal, over.signal], async (controller) => {
      for (;;) {
        if (lines === this.#log.lines) await this.#look(run, controller.signal);
        lines = this.#log.lines;
        await sleep(LOOK_MS, controller.signal);
      }
    }).catch(() => undefined);
  }

  async #look(run: Run, signal: AbortSignal): Promise<void> {
    const found = await once(this.#temporal, () => run.describe(), { signal }).catch(() => undefined);
    const phase = found && attribute(found, "RunPhase");
    if (phase === undefined || phase === this.#log.phase || this.#log.phase === "being stopped") return;
    this.#log.phase = phase;
    await this.#log.status("phase", `the run is ${phase}`, { phase });
    await this.#progress("adapter_startup", `The run is ${phase}`);
  }

  // after the run

  async #handedOver(
    ticket: Ticket,
    run: Run,
    { outcome, cancelled }: { outcome: Outcome; cancelled?: { by: Cancelled; at: Date } },
  ): Promise<AdapterExecutionResult> {
    await this.#progress("finalize", "The run has ended");
    await this.#gaps(outcome);
    const base = this.#settings.transcriptsUrl?.replace(/\/+$/, "");
    const result = resultOf(outcome, {
      recovery: this.#recovery,
      now: new Date(),
      page: base && `${base}/runs/${encodeURIComponent(ticket.runId)}`,
      joinedRunId: ticket.runId === this.#ctx.runId ? undefined : ticket.runId,
      cancelled,
      workflow: { id: ticket.workflowId, runId: ticket.workflowRunId },
    });
    const code = result.errorCode ?? "succeeded";
    const said = result.errorMessage ? `${code}: ${result.errorMessage}` : code;
    await this.#log.status("outcome", said, { code, receipt: outcome.receipt?.state ?? null, lines: this.#log.lines });
    const { runId, authToken: token } = this.#ctx;
    if (abortOf(this.#signal)?.kind === "lease lost") return result;
    await handOver(this.#temporal, run, { runId, workflowRunId: ticket.workflowRunId, token });
    return result;
  }

  async #gaps({ attempts = [] }: Outcome): Promise<void> {
    for (const { attempt, receipt } of attempts) {
      for (const { afterSequence, frames } of receipt?.gaps ?? []) {
        const size = frames == null ? "an unknown number of" : `${frames}`;
        const said = `${size} pieces of output after line ${afterSequence} of attempt ${attempt} could not be had`;
        await this.#log.status("gap", said, { attempt, after: afterSequence, frames: frames ?? null });
      }
    }
  }

  async #withoutOutcome(error: unknown, ticket: Ticket): Promise<AdapterExecutionResult> {
    const ended = error instanceof EndedWithoutOutcome;
    const said = ended ? error.message : `run ${ticket.runId} cannot be followed: ${saidBy(error)}`;
    await this.#log.status("failure", said);
    if (ended && error.neverRan) {
      const nextStep = "Give adapter and worker the same version, then wake the agent again.";
      const message = `the worker could not read the request: ${said}`;
      return failedResult({ code: "invalid_request", message, nextStep, neverStarted: true }, this.#recovery);
    }
    const message = `${said}; whether its agent still works is not known, and the agent's next run ends it first`;
    const nextStep = "Read the Temporal history and the transcript, check the agent's work, then wake it again.";
    return failedResult({ code: "agent_run_failed", message, nextStep }, this.#recovery);
  }

  async #unconfirmed(): Promise<AdapterExecutionResult> {
    const message = "the agent was asked to stop and nobody confirmed that it has; Temporal keeps the request";
    await this.#log.status("failure", message);
    const nextStep = "See whether a worker is running (`agent-runs list`); the agent stops as soon as one is.";
    return failedResult({ code: "cancel_unconfirmed", message, nextStep }, this.#recovery);
  }

  /** Paperclip drops whatever is returned now. Only if it says that the run was cancelled is the agent stopped. */
  async #detached(run?: Run): Promise<AdapterExecutionResult> {
    await letGo(this.#ctx.signal);
    if (run !== undefined) void this.#stopIfCancelled(run);
    const message = "Paperclip's server lost this run; it goes on and can be joined by the task's next wake";
    return failedResult({ code: "controller_lease_lost", message, neverStarted: run === undefined }, this.#recovery);
  }

  async #stopIfCancelled(run: Run): Promise<void> {
    const { runId, authToken } = this.#ctx;
    if (abortOf(this.#ctx.signal)?.kind !== "cancel" && !(await wasCancelled(runId, authToken))) return;
    const grace = this.#prepared.request.config.graceSec ?? 60;
    await stopped(this.#temporal, run, "Run cancelled", grace, {}).catch(() => undefined);
  }

  async #progress(phase: "adapter_startup" | "finalize", message: string): Promise<void> {
    await attempted(this.#ctx.onRuntimeProgress?.({ phase, message }));
  }
}

/** An operator's stop or the loss of the lease, whenever it comes. */
class Stop {
  readonly came: Promise<Abort>;
  readonly release: () => void;
  at: number | undefined;
  abort: Abort | undefined;

  constructor(signal: AbortSignal) {
    let tell: (abort: Abort) => void = () => undefined;
    this.came = new Promise((resolve) => {
      tell = resolve;
    });
    const notice = () => {
      this.at = Date.now();
      this.abort = abortOf(signal);
      if (this.abort !== undefined) tell(this.abort);
    };
    signal.addEventListener("abort", notice, { once: true });
    if (signal.aborted) notice();
    this.release = () => signal.removeEventListener("abort", notice);
  }
}

/** Resolves when `work` has ended, however. */
async function settled(work: Promise<unknown>): Promise<void> {
  await work.then(
    () => undefined,
    () => undefined,
  );
}

/** Never resolves; rejects when `work` does. */
function failureOf(work: Promise<unknown>): Promise<never> {
  return new Promise((_, reject) => {
    work.catch(reject);
  });
}

/** Something of the host's that may fail without meaning anything for the run. */
async function attempted(work: Promise<unknown> | undefined): Promise<void> {
  await work?.catch(() => undefined);
}

function nameOf(error: unknown): string {
  return error instanceof Error
    ? `${error.name} in ${error.stack?.split("\n")[1]?.trim().split("/").pop() ?? "?"}`
    : "?";
}
