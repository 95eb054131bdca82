/**
 * One wake of an agent: prepare, attach, copy the transcript, return the outcome. All state is in Temporal and in the
 * transcript store, so this can be lost at any moment; the next wake of the task joins the run.
 *
 * Nothing is created before the request is complete. From the attach on, this ends only with the run's own outcome, an
 * operator's cancel, or the loss of Paperclip's lease, which leaves the run open. An outage of Temporal or of the
 * transcript service is a pause, reported in the log.
 */

import type { Outcome } from "../generated/contracts.ts";
import { attach, attachWhenFree, findUncertainStart, type Progress, type Ticket, type Wake } from "./attach.ts";
import { type Abort, abortOf, CANCEL_ANSWER_MS, graceOf, stopAgent, wasCancelled } from "./cancel.ts";
import { InvalidRequest } from "./invalid-request.ts";
import { type LogFormat, OutageLog, RunLog } from "./log.ts";
import { logFormatFor } from "./log-format.ts";
import { type Cancelled, EndedWithoutOutcome, fetchOutcome } from "./outcome.ts";
import { signalOnceStored, wasDelivered } from "./outcome-delivery.ts";
import type { AdapterExecutionContext, AdapterExecutionResult } from "./paperclip.ts";
import { objectOf } from "./paperclip-api.ts";
import { paperclipHelpers } from "./paperclip-helpers.ts";
import { startReconciler } from "./reconcile.ts";
import { type Prepared, prepare } from "./request.ts";
import { cancelledBeforeStart, failedResult, resultOf, waitsForPerson } from "./result.ts";
import { sealerFrom } from "./sealing.ts";
import { adapterTypeIn, ConfigurationError, type Settings, settingsFrom } from "./settings.ts";
import { shutdownSignal, waitForRelease } from "./shutdown.ts";
import { blockTask } from "./task.ts";
import {
  attribute,
  type CallOptions,
  CREDENTIAL_CODES,
  callOnce,
  type Run,
  runOf,
  serverMessage,
  type Temporal,
  temporalFor,
} from "./temporal.ts";
import { linkTo, mint } from "./tokens.ts";
import { follow, type LogCall, TranscriptIncomplete } from "./transcript.ts";
import { Aborted, sleep, withLinkedSignal, yieldToEventLoop } from "./waits.ts";
import { warmUp } from "./warm-up.ts";

/** For the last lines of a cancelled run, so that the answer comes in time. */
const LAST_LINES_MS = CANCEL_ANSWER_MS - 3000;
const LAST_LINES_LEAST_MS = 2000;
/** Between two reads of the phase of a run that writes nothing. */
const PHASE_POLL_MS = 5000;

/** What an execution needs. */
export interface Parts {
  settings: Settings;
  temporal: Temporal;
  prepared: Prepared;
}

/** Runs one wake. Rejects only if Paperclip's own dispatch gate refuses it. */
export async function execute(ctx: AdapterExecutionContext): Promise<AdapterExecutionResult> {
  const { version } = await paperclipHelpers();
  const format = logFormatFor(process.env.AGENT_RUNS_RUN_LOG_FORMAT, version, adapterTypeIn(process.env));
  const createParts = async () => {
    await warmUp();
    const settings = settingsFrom(process.env, objectOf(ctx.config));
    startReconciler(settings);
    const sealer = await sealerFrom(settings);
    await yieldToEventLoop(); // each of these takes some ms the first time
    const prepared = await prepare(ctx, settings, sealer, await paperclipHelpers());
    await yieldToEventLoop();
    return { settings, temporal: temporalFor(settings), prepared };
  };
  return await executeWith(ctx, createParts, shutdownSignal, format);
}

/**
 * Runs one wake with the parts that `createParts` returns; it may reject with what is wrong with the request.
 *
 * @param onShutdown a signal that is aborted when the process is asked to stop.
 */
export async function executeWith(
  ctx: AdapterExecutionContext,
  createParts: () => Promise<Parts>,
  onShutdown: () => AbortSignal = shutdownSignal,
  format: LogFormat = "json",
): Promise<AdapterExecutionResult> {
  const log = new RunLog(ctx.onLog, format);
  const recovery = typeof ctx.onCancellationReady === "function";
  try {
    let parts: Parts;
    try {
      parts = await createParts();
    } catch (error) {
      return await refuseRequest(error, log, recovery);
    }
    return await withLinkedSignal([ctx.signal, onShutdown()], ({ signal }) =>
      new Execution(ctx, parts, log, recovery, signal).run(),
    );
  } finally {
    await log.close();
  }
}

async function refuseRequest(error: unknown, log: RunLog, recovery: boolean): Promise<AdapterExecutionResult> {
  const ours = error instanceof InvalidRequest || error instanceof ConfigurationError;
  const message = ours ? error.message : `the request could not be prepared: ${nameOf(error)}`;
  await log.status("failure", message);
  const nextStep =
    "Correct the named field, in the agent's configuration or in Paperclip's environment, then wake the agent again.";
  return failedResult({ code: "invalid_request", message, nextStep, neverStarted: true }, recovery);
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
  readonly #log: RunLog;
  readonly #recovery: boolean;
  readonly #signal: AbortSignal;
  readonly #outage: OutageLog;

  constructor(ctx: AdapterExecutionContext, parts: Parts, log: RunLog, recovery: boolean, signal: AbortSignal) {
    this.#ctx = ctx;
    this.#settings = parts.settings;
    this.#temporal = parts.temporal;
    this.#prepared = parts.prepared;
    this.#log = log;
    this.#recovery = recovery;
    this.#signal = signal;
    this.#outage = new OutageLog(log, "Temporal answers again");
  }

  async run(): Promise<AdapterExecutionResult> {
    for (const note of this.#prepared.notes) await this.#log.status("note", note);
    await this.#ctx.onCancellationReady?.();
    const early = abortOf(this.#signal);
    if (early !== undefined) return await this.#endUnstarted(early);
    await this.#reportInvocation();
    await this.#ctx.onDispatch?.();
    await yieldToEventLoop();
    const ticket = await this.#attach();
    if (!("workflowRunId" in ticket)) return ticket;
    return await this.#followRun(ticket);
  }

  // before the attach

  /** Reports the invocation to Paperclip. An error of Paperclip's is no reason to fail. */
  async #reportInvocation(): Promise<void> {
    const { notes, wakeText } = this.#prepared;
    const { cwd } = objectOf(objectOf(this.#ctx.context).paperclipWorkspace);
    // Paperclip does not hold tasks of a type that it knows as a conversation; internal, hence only where it knows recovery
    const adapterType = this.#recovery ? this.#settings.reportAs : this.#settings.adapterType;
    await ignoreFailure(
      this.#ctx.onMeta?.({
        adapterType,
        command: "opencode",
        ...(typeof cwd === "string" ? { cwd } : {}),
        commandNotes: ["runs in Kubernetes, as a Temporal workflow", ...notes],
        prompt: wakeText,
        context: { temporal: this.#temporal.address, taskQueue: this.#temporal.taskQueue, agentRunId: this.#ctx.runId },
      }),
    );
    await this.#progress("adapter_startup", "Asking Temporal for the agent");
  }

  /** The ticket of the run to follow; or the result, when there is no run. */
  async #attach(): Promise<Ticket | AdapterExecutionResult> {
    const delivered = (runIds: readonly string[], workflowRunId: string) =>
      wasDelivered(runIds, workflowRunId, this.#ctx.authToken);
    const wake: Wake = { ...this.#prepared.wake, delivered };
    const options = { signal: this.#signal, outage: this.#outage };
    const progress: Progress = { uncertain: false };
    this.#log.phase = "waiting for the agent";
    try {
      const ticket =
        this.#settings.onBusy === "wait"
          ? await attachWhenFree(this.#temporal, wake, (busy) => void this.#logBusy(busy, "waiting"), options, progress)
          : await attach(this.#temporal, wake, options, progress);
      return ticket.kind === "busy" ? await this.#refuseBusy(ticket) : ticket;
    } catch (error) {
      if (!(error instanceof Aborted)) return await this.#failRefused(error, progress);
      const abort = abortOf(this.#signal) ?? { kind: "cancel", reason: "Run cancelled" };
      if (abort.kind === "cancel" && progress.uncertain) {
        const { agentId, runId } = wake.start;
        const ticket = await findUncertainStart(this.#temporal, agentId, runId, { outage: this.#outage });
        if (ticket !== undefined) return ticket;
      }
      return await this.#endUnstarted(abort);
    }
  }

  async #logBusy(ticket: Ticket, what: "waiting" | "refused"): Promise<string> {
    const { holder } = ticket;
    const task = holder?.task ? ` on task ${holder.task}` : "";
    const since = holder ? ` since ${holder.since.toISOString()}` : "";
    const note = holder?.note ? `; ${holder.note}` : "";
    const message = `the agent is held by run ${ticket.runId}${task} (${holder?.phase ?? "running"}${since})${note}`;
    const then = what === "waiting" ? "; waiting for its end" : "";
    await this.#log.status("busy", `${message}${then}`, { holder: ticket.runId, task: holder?.task ?? null });
    return message;
  }

  async #refuseBusy(ticket: Ticket): Promise<AdapterExecutionResult> {
    const message = await this.#logBusy(ticket, "refused");
    const nextStep = "Wait for the named run to end or cancel it, then wake the agent again.";
    const report = { code: "k8s_concurrent_run_blocked", message, nextStep, neverStarted: true };
    return failedResult({ ...report, family: "transient_upstream" }, this.#recovery);
  }

  async #failRefused(error: unknown, progress: Progress): Promise<AdapterExecutionResult> {
    const message = `Temporal at ${this.#temporal.address} refused the run: ${serverMessage(error)}`;
    await this.#log.status("failure", message);
    const nextStep = "Check TEMPORAL_NAMESPACE, TEMPORAL_TLS and TEMPORAL_API_KEY, then wake the agent again.";
    const report = { code: "temporal_refused", message, nextStep, neverStarted: !progress.uncertain };
    return failedResult(report, this.#recovery);
  }

  async #endUnstarted(abort: Abort): Promise<AdapterExecutionResult> {
    if (abort.kind === "lease lost") return await this.#detach();
    await this.#log.status("cancelling", `${abort.reason}: nothing had been started`);
    return cancelledBeforeStart(abort.reason, new Date(), this.#recovery);
  }

  // while the run is open

  async #followRun(ticket: Ticket): Promise<AdapterExecutionResult> {
    const run = runOf(this.#temporal, ticket.workflowId, ticket.workflowRunId);
    await this.#logTicket(ticket);
    let ending: Ending;
    try {
      ending = await this.#follow(ticket, run);
    } catch (error) {
      return await this.#failWithoutOutcome(error, ticket);
    }
    if (ending.kind === "lease lost") return await this.#detach(run);
    if (ending.kind === "unconfirmed") return await this.#failUnconfirmed();
    return await this.#returnOutcome(ticket, run, ending);
  }

  async #logTicket(ticket: Ticket): Promise<void> {
    const address = { workflowId: ticket.workflowId, workflowRunId: ticket.workflowRunId, runId: ticket.runId };
    if (ticket.kind === "started") {
      await this.#log.status("started", `run ${ticket.runId} started`, address);
    } else {
      const state = ticket.closed ? "which has ended" : "which is open";
      const message = `joined run ${ticket.runId}, ${state}; its whole output follows from the first line`;
      await this.#log.status("joined", message, address);
    }
    this.#log.phase = "queued";
  }

  /** Follows the run to its end, or until this process has to release it. */
  async #follow(ticket: Ticket, run: Run): Promise<Ending> {
    const detach = new AbortController();
    const stop = new AbortWatch(this.#signal);
    try {
      const outcome = fetchOutcome(this.#temporal, run, this.#callOptions(detach.signal));
      await yieldToEventLoop();
      const output = new AbortController();
      const reading = this.#copyTranscript(ticket, outcome, output.signal);
      reading.catch(() => undefined); // handled where it is awaited
      void this.#logPhases(run, outcome, detach.signal);
      const abort = await Promise.race([stop.aborted, waitSettled(outcome).then(() => undefined)]);
      if (abort?.kind === "lease lost") {
        output.abort();
        return { kind: "lease lost" };
      }
      const answer = abort && this.#stopAgent(run, abort.reason, detach.signal);
      if (answer !== undefined) {
        const by = await Promise.race([answer, failureOf(outcome)]);
        if (by === undefined) return { kind: "unconfirmed" };
      }
      const decided = await outcome;
      const lateAbort = await this.#drainTranscript(reading, stop);
      output.abort();
      if (lateAbort?.kind === "lease lost") return { kind: "lease lost" };
      const cancellation = answer ?? (lateAbort && this.#stopAgent(run, lateAbort.reason, detach.signal));
      const by = await cancellation;
      return { kind: "outcome", outcome: decided, cancelled: by && { by, at: new Date() } };
    } finally {
      detach.abort();
      stop.release();
    }
  }

  async #stopAgent(run: Run, reason: string, signal: AbortSignal): Promise<Cancelled | undefined> {
    this.#log.phase = "being stopped";
    await this.#log.status("cancelling", `${reason}: the agent is being stopped`, { reason });
    return await stopAgent(this.#temporal, run, reason, graceOf(this.#ctx.config), this.#callOptions(signal));
  }

  /** While a run is open, refused credentials are retried like an outage. */
  #callOptions(signal: AbortSignal): CallOptions {
    return { signal, outage: this.#outage, retryCodes: CREDENTIAL_CODES };
  }

  /** Waits for the transcript, for a cancelled run only until the answer is due. Resolves to the abort, if one came. */
  async #drainTranscript(reading: Promise<void>, stop: AbortWatch): Promise<Abort | undefined> {
    const read = reading.then(() => "read" as const);
    const first = await Promise.race([read, stop.aborted]);
    if (first === "read") return stop.abort;
    if (first.kind === "lease lost") return first;
    const left = (stop.at ?? Date.now()) + LAST_LINES_MS - Date.now();
    const enough = sleep(Math.max(left, LAST_LINES_LEAST_MS)).then(() => "late" as const);
    if ((await Promise.race([read, enough])) === "late") {
      await this.#log.status(
        "gap",
        "the last lines are missing here: the answer to the cancel does not wait for them; the transcript has them",
      );
    }
    return first;
  }

  /** Copies the transcript into the log. Resolves also when it could not be read to its end; the log then has a gap. */
  async #copyTranscript(ticket: Ticket, outcome: Promise<Outcome>, signal: AbortSignal): Promise<void> {
    const base = this.#settings.transcriptsUrl;
    const { model } = objectOf(this.#ctx.config);
    if (base === undefined) {
      const remedy = "set AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL to the transcript service's address";
      await this.#log.status("note", `the agent's output is not shown here: ${remedy}`);
      return;
    }
    let attempt = 1;
    const write = async (call: LogCall) => {
      if (call.attempt !== attempt) {
        attempt = call.attempt;
        await this.#log.status("attempt", `attempt ${attempt}`, { attempt });
      }
      if (call.session) await this.#log.session(call.session, typeof model === "string" ? model : "");
      await this.#log.call(call);
    };
    const token = () => mint(ticket.runId, this.#settings);
    const outage = new OutageLog(this.#log, "the transcript service answers again");
    const attempts = outcome.then((known) => known.attempts?.length ?? 1);
    try {
      await follow({ base, runId: ticket.runId, format: this.#log.format, token, write, outage }, attempts, signal);
    } catch (error) {
      if (error instanceof Aborted || error instanceof EndedWithoutOutcome) return;
      const message =
        error instanceof TranscriptIncomplete ? error.message : `the output cannot be shown: ${nameOf(error)}`;
      await this.#log.status("gap", `${message}; the transcript store has it`);
    }
  }

  /** Logs the phase of a run while it writes nothing. Best effort: outages are reported elsewhere. */
  async #logPhases(run: Run, outcome: Promise<Outcome>, signal: AbortSignal): Promise<void> {
    const over = new AbortController();
    void waitSettled(outcome).then(() => over.abort());
    let lines = -1;
    await withLinkedSignal([signal, over.signal], async (controller) => {
      for (;;) {
        if (lines === this.#log.lines) await this.#logPhase(run, controller.signal);
        lines = this.#log.lines;
        await sleep(PHASE_POLL_MS, controller.signal);
      }
    }).catch(() => undefined);
  }

  async #logPhase(run: Run, signal: AbortSignal): Promise<void> {
    const described = await callOnce(this.#temporal, () => run.describe(), { signal }).catch(() => undefined);
    const phase = described && attribute(described, "RunPhase");
    if (phase === undefined || phase === this.#log.phase || this.#log.phase === "being stopped") return;
    this.#log.phase = phase;
    await this.#log.status("phase", `the run is ${phase}`, { phase });
    await this.#progress("adapter_startup", `The run is ${phase}`);
  }

  // after the run

  async #returnOutcome(
    ticket: Ticket,
    run: Run,
    { outcome, cancelled }: { outcome: Outcome; cancelled?: { by: Cancelled; at: Date } },
  ): Promise<AdapterExecutionResult> {
    await this.#progress("finalize", "The run has ended");
    await this.#logGaps(outcome);
    const base = this.#settings.transcriptsUrl;
    const result = resultOf(outcome, {
      recovery: this.#recovery,
      page: base && (await linkTo(base, ticket.runId, this.#settings)),
      joinedRunId: ticket.runId === this.#ctx.runId ? undefined : ticket.runId,
      cancelledAt: cancelled?.at,
      taskBlocked: cancelled === undefined && (await this.#blockTask(outcome)),
      workflow: { id: ticket.workflowId, runId: ticket.workflowRunId },
    });
    const code = result.errorCode ?? "succeeded";
    const message = result.errorMessage ? `${code}: ${result.errorMessage}` : code;
    await this.#log.status("outcome", message, {
      code,
      receipt: outcome.receipt?.state ?? null,
      lines: this.#log.lines,
    });
    const { runId, authToken: token } = this.#ctx;
    if (abortOf(this.#signal)?.kind === "lease lost") return result;
    await signalOnceStored(this.#temporal, run, { runId, workflowRunId: ticket.workflowRunId, token });
    return result;
  }

  /** Blocks the task of a failed run that only a person can help. False: Paperclip treats the failure as it does any. */
  async #blockTask(outcome: Outcome): Promise<boolean> {
    const { issueId, scheduledRetryAttempt: repeats } = this.#ctx.context;
    const { failure } = outcome;
    if (!this.#recovery || failure == null || typeof issueId !== "string") return false;
    if (!waitsForPerson(outcome, typeof repeats === "number" ? repeats : 0)) return false;
    const { code, message, nextStep } = failure;
    const task = { issueId, agentId: this.#ctx.agent.id, code, message, nextStep };
    const blocked = await blockTask(task, this.#settings.boardApiKey);
    const state = blocked
      ? "the task is blocked until somebody has done the next step and comments on it"
      : "Paperclip may hold the task until an operator reconciles this run; AGENT_RUNS_BOARD_API_KEY avoids that";
    await this.#log.status("note", `${state}. Next step: ${nextStep}`);
    return blocked;
  }

  async #logGaps({ attempts = [] }: Outcome): Promise<void> {
    for (const { attempt, receipt } of attempts) {
      for (const { afterSequence, frames } of receipt?.gaps ?? []) {
        const size = frames == null ? "an unknown number of" : `${frames}`;
        const message = `${size} pieces of output after line ${afterSequence} of attempt ${attempt} are missing`;
        await this.#log.status("gap", message, { attempt, after: afterSequence, frames: frames ?? null });
      }
    }
  }

  async #failWithoutOutcome(error: unknown, ticket: Ticket): Promise<AdapterExecutionResult> {
    const ended = error instanceof EndedWithoutOutcome;
    const reason = ended ? error.message : `run ${ticket.runId} cannot be followed: ${serverMessage(error)}`;
    await this.#log.status("failure", reason);
    if (ended && error.neverRan) {
      const nextStep = "Deploy the same version of adapter and worker, then wake the agent again.";
      const message = `the worker could not read the request: ${reason}`;
      return failedResult({ code: "invalid_request", message, nextStep, neverStarted: true }, this.#recovery);
    }
    const message = `${reason}; whether its agent still works is not known, and the agent's next run ends it first`;
    const nextStep = "Read the Temporal history and the transcript, check the agent's work, then wake it again.";
    return failedResult({ code: "agent_run_failed", message, nextStep }, this.#recovery);
  }

  async #failUnconfirmed(): Promise<AdapterExecutionResult> {
    const message = "no worker confirmed in time that the agent has stopped; Temporal keeps the request";
    await this.#log.status("failure", message);
    const nextStep = "Check that a worker is running (`agent-runs list`); the agent stops as soon as one is.";
    return failedResult({ code: "cancel_unconfirmed", message, nextStep }, this.#recovery);
  }

  /** Leaves the run open: Paperclip drops this result. The agent is stopped only if Paperclip reports a cancelled run. */
  async #detach(run?: Run): Promise<AdapterExecutionResult> {
    await waitForRelease(this.#ctx.signal);
    if (run !== undefined) void this.#stopIfCancelled(run);
    const message = "Paperclip's server lost this run; it is open and the task's next wake can join it";
    return failedResult({ code: "controller_lease_lost", message, neverStarted: run === undefined }, this.#recovery);
  }

  async #stopIfCancelled(run: Run): Promise<void> {
    const { runId, authToken } = this.#ctx;
    if (abortOf(this.#ctx.signal)?.kind !== "cancel" && !(await wasCancelled(runId, authToken))) return;
    await stopAgent(this.#temporal, run, "Run cancelled", graceOf(this.#ctx.config), {}).catch(() => undefined);
  }

  async #progress(phase: "adapter_startup" | "finalize", message: string): Promise<void> {
    await ignoreFailure(this.#ctx.onRuntimeProgress?.({ phase, message }));
  }
}

/** An operator's cancel or the loss of the lease, whenever it comes. */
class AbortWatch {
  readonly aborted: Promise<Abort>;
  readonly release: () => void;
  at: number | undefined;
  abort: Abort | undefined;

  constructor(signal: AbortSignal) {
    let resolveAborted: (abort: Abort) => void = () => undefined;
    this.aborted = new Promise((resolve) => {
      resolveAborted = resolve;
    });
    const onAbort = () => {
      this.at = Date.now();
      this.abort = abortOf(signal);
      if (this.abort !== undefined) resolveAborted(this.abort);
    };
    signal.addEventListener("abort", onAbort, { once: true });
    if (signal.aborted) onAbort();
    this.release = () => signal.removeEventListener("abort", onAbort);
  }
}

/** Resolves when `work` has settled. */
async function waitSettled(work: Promise<unknown>): Promise<void> {
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

/** Waits for a callback of the host's, whose failure is ignored: it means nothing for the run. */
async function ignoreFailure(work: Promise<unknown> | undefined): Promise<void> {
  await work?.catch(() => undefined);
}

function nameOf(error: unknown): string {
  return error instanceof Error
    ? `${error.name} in ${error.stack?.split("\n")[1]?.trim().split("/").pop() ?? "?"}`
    : "?";
}
