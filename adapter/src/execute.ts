/**
 * One wake of an agent: prepare, attach, copy the transcript, return the outcome. All state is in Temporal and in the
 * transcript store, so this can be lost at any moment; the next wake of the task joins the run.
 *
 * Nothing is created before the request is complete. From the attach on, this ends only with the run's own outcome, an
 * operator's cancel, or the loss of Paperclip's lease, which leaves the run open. An outage of Temporal or of the
 * transcript service is a pause, reported in the log.
 */

import type { Outcome } from "../generated/contracts.ts";
import {
  type Abort,
  abortOf,
  CANCEL_ANSWER_MS,
  confirmationTimeout,
  RELEASE_TIMEOUT_MS,
  shutdownSignal,
} from "./abort.ts";
import {
  attach,
  attachWhenFree,
  type Busy,
  findUncertainStart,
  type Progress,
  type Ticket,
  type Wake,
} from "./attach.ts";
import { ConfigurationError, InvalidRequest } from "./errors.ts";
import { failureComment } from "./failure-comment.ts";
import { OutageLog, RunLog } from "./log.ts";
import { EndedWithoutOutcome, fetchOutcome, requestCancel } from "./outcome.ts";
import { signalOnceStored, wasDelivered } from "./outcome-delivery.ts";
import { type AdapterExecutionContext, type AdapterExecutionResult, type JsonObject, objectOf } from "./paperclip.ts";
import { PaperclipApi } from "./paperclip-api.ts";
import { type PaperclipHelpers, paperclipHelpers } from "./paperclip-helpers.ts";
import { Questions } from "./questions.ts";
import { type Prepared, prepare } from "./request.ts";
import { cancelledBeforeStart, failedResult, type PluginFailure, resultOf } from "./result.ts";
import { sealerFrom } from "./sealing.ts";
import { type LogFormat, logFormatFor, type Settings, settingsFrom } from "./settings.ts";
import { blockTask, isRepeated } from "./task.ts";
import { attribute, type CallOptions, type Run, serverMessage, type Temporal, temporalFor } from "./temporal.ts";
import { linkTo, mint, runName } from "./tokens.ts";
import { follow, type LogCall, TranscriptIncomplete } from "./transcript.ts";
import { Aborted, sleep, withLinkedSignal, yieldToEventLoop } from "./waits.ts";
import { type Carried, carriedFolder, NotReturned, NotSent, withWorkspace } from "./workspace/carried.ts";
import type { Limits } from "./workspace/tree.ts";

/** For the last lines of a cancelled run, so that the answer comes in time. */
const LAST_LINES_MS = CANCEL_ANSWER_MS - 3000;
const LAST_LINES_LEAST_MS = 2000;
const WAITING = "waiting for the agent";
/** Between two reads of the phase of a run. */
const PHASE_POLL_MS = 5000;

export interface Parts {
  settings: Settings;
  temporal: Temporal;
  prepared: Prepared;
  helpers: PaperclipHelpers;
  logFormat: LogFormat;
  /** Of the workspace, where the service has decided that it is carried. */
  limits?: Limits;
}

/** Runs one wake. Rejects only if Paperclip's own dispatch gate refuses it. */
export async function execute(ctx: AdapterExecutionContext): Promise<AdapterExecutionResult> {
  const createParts = async () => {
    const settings = settingsFrom(process.env, objectOf(ctx.config));
    const sealer = await sealerFrom(settings);
    await yieldToEventLoop(); // each of these takes some ms the first time
    const helpers = await paperclipHelpers();
    const { ctx: decided, limits } = await withWorkspace(ctx, settings);
    const prepared = await prepare(decided, settings, sealer, helpers);
    await yieldToEventLoop();
    const logFormat = logFormatFor(settings, ctx.agent.adapterType, helpers.version);
    return { settings, temporal: temporalFor(settings), prepared, helpers, logFormat, limits };
  };
  return await executeWith(ctx, createParts);
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
): Promise<AdapterExecutionResult> {
  const log = new RunLog(ctx.onLog);
  try {
    const parts = await createParts().catch((error: unknown) => wrongRequest(error));
    if ("code" in parts) return await fail(ctx, log, parts);
    const signals = [ctx.signal, onShutdown()];
    return await withLinkedSignal(signals, ({ signal }) => new Execution(ctx, parts, log, signal).run());
  } finally {
    await log.close();
  }
}

/** Whether the host knows recovery evidence (2026.916 and later). */
function knowsRecovery(ctx: AdapterExecutionContext): boolean {
  return ctx.onCancellationReady !== undefined;
}

async function fail(ctx: AdapterExecutionContext, log: RunLog, failure: PluginFailure) {
  await log.status(failure.message, "stderr");
  const comment = isRepeated(failure, ctx) ? undefined : await failureComment({ runId: ctx.runId, ...failure }, ctx);
  return failedResult(failure, knowsRecovery(ctx), comment);
}

function wrongRequest(error: unknown): PluginFailure {
  const ours = error instanceof InvalidRequest || error instanceof ConfigurationError;
  const message = ours ? error.message : `the request could not be prepared: ${nameOf(error)}`;
  const nextStep =
    "Correct the named field, in the agent's configuration or in Paperclip's environment, then wake the agent again.";
  return { code: "invalid_request", message, nextStep, neverStarted: true };
}

/** How following a run ended. */
type Ending = Ended | "unconfirmed" | "lease lost";
type Ended = { outcome: Outcome; cancelledAt: Date | undefined };

class Execution {
  readonly #ctx: AdapterExecutionContext;
  readonly #settings: Settings;
  readonly #temporal: Temporal;
  readonly #prepared: Prepared;
  readonly #helpers: PaperclipHelpers;
  readonly #logFormat: LogFormat;
  readonly #limits: Limits | undefined;
  readonly #log: RunLog;
  readonly #recovery: boolean;
  /** Of this execution alone, so that listeners end with it. */
  readonly #signal: AbortSignal;
  readonly #aborted: Promise<TimedAbort>;
  readonly #outage: OutageLog;
  #carried: Carried | undefined;

  constructor(ctx: AdapterExecutionContext, parts: Parts, log: RunLog, signal: AbortSignal) {
    this.#ctx = ctx;
    this.#settings = parts.settings;
    this.#temporal = parts.temporal;
    this.#prepared = parts.prepared;
    this.#helpers = parts.helpers;
    this.#logFormat = parts.logFormat;
    this.#limits = parts.limits;
    this.#log = log;
    this.#recovery = knowsRecovery(ctx);
    this.#signal = signal;
    this.#aborted = whenAborted(signal);
    this.#outage = new OutageLog(log, "Temporal answers again");
  }

  async run(): Promise<AdapterExecutionResult> {
    for (const note of this.#prepared.notes) await this.#log.status(`warning: ${note}`, "stderr");
    await this.#ctx.onCancellationReady?.();
    const early = abortOf(this.#signal);
    if (early !== undefined) return await this.#endUnstarted(early);
    await this.#reportInvocation();
    await this.#ctx.onDispatch?.();
    await yieldToEventLoop();
    const ticket = await this.#attach();
    return "workflowRunId" in ticket ? await this.#followRun(ticket) : ticket;
  }

  // before the attach

  /** An error of Paperclip's is no reason to fail. */
  async #reportInvocation(): Promise<void> {
    const { notes, wakeText } = this.#prepared;
    const { cwd } = objectOf(objectOf(this.#ctx.context).paperclipWorkspace);
    const { agent } = objectOf(this.#ctx.config);
    // Paperclip does not hold tasks of a type that it knows as a conversation; internal, hence only where it knows recovery
    const adapterType = (!this.#recovery && this.#ctx.agent.adapterType) || this.#settings.reportAs;
    await ignoreFailure(
      this.#ctx.onMeta?.({
        adapterType,
        command: typeof agent === "string" && agent.trim() ? agent.trim() : "opencode",
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
    const delivered: Wake["delivered"] = (runIds, id) => wasDelivered(runIds, id, this.#ctx.authToken);
    const options = { signal: this.#signal, outage: this.#outage };
    const progress: Progress = { uncertain: false };
    this.#log.phase = WAITING;
    const onBusy = (busy: Busy) => {
      void this.#log.status(`${busyMessage(busy)}; waiting for its end`);
      void this.#reportQueued(busy.task);
    };
    const wake: Wake = { ...this.#prepared.wake, delivered };
    try {
      const outage = new OutageLog(this.#log, "the workspace service answers again");
      const [settings, helpers, log, limits] = [this.#settings, this.#helpers, this.#log, this.#limits];
      const parts = { settings, helpers, log, outage, limits };
      this.#carried = await carriedFolder(this.#ctx, parts, this.#signal);
      const out = this.#carried?.out;
      if (out) wake.beforeStart = () => out(this.#ctx.runId);
      const ticket =
        this.#settings.onBusy === "wait"
          ? await attachWhenFree(this.#temporal, wake, onBusy, options, progress)
          : await attach(this.#temporal, wake, options, progress);
      return ticket.kind === "busy" ? await this.#refuseBusy(ticket) : ticket;
    } catch (error) {
      const abort = abortOf(this.#signal);
      if (abort === undefined || !(error instanceof Aborted)) return await this.#failRefused(error, progress);
      if (abort.kind === "lease lost") return await this.#detach(!progress.uncertain);
      if (progress.uncertain) {
        const ticket = await findUncertainStart(this.#temporal, wake.start, { outage: this.#outage });
        if (ticket !== undefined) return ticket;
      }
      return await this.#endUnstarted(abort);
    }
  }

  /** Names the task that has the agent, unless this run has begun before Paperclip answers. */
  async #reportQueued(task: string | null): Promise<void> {
    const api = new PaperclipApi(this.#ctx.authToken);
    const { body } =
      task === null ? { body: {} as JsonObject } : await api.request(`/issues/${encodeURIComponent(task)}`);
    const name = body.identifier ?? (task === null ? "another run of the agent" : `task ${task}`);
    if (this.#log.phase === WAITING) await this.#progress("adapter_startup", `Queued behind ${name}`);
  }

  async #refuseBusy(busy: Busy): Promise<AdapterExecutionResult> {
    const message = busyMessage(busy);
    const nextStep = "Wait for the named run to end or cancel it, then wake the agent again.";
    const failure = { code: "k8s_concurrent_run_blocked", message, nextStep, neverStarted: true };
    return await fail(this.#ctx, this.#log, { ...failure, family: "transient_upstream" });
  }

  async #failRefused(error: unknown, progress: Progress): Promise<AdapterExecutionResult> {
    if (error instanceof InvalidRequest || error instanceof ConfigurationError)
      return await fail(this.#ctx, this.#log, wrongRequest(error));
    if (error instanceof NotSent) {
      const message = `the workspace could not be sent: ${error.message}`;
      const nextStep = "Correct what the message names, then wake the agent again.";
      const failure = { code: "workspace_not_sent", message, nextStep, neverStarted: true };
      const family = error.transient ? "transient_upstream" : undefined;
      return await fail(this.#ctx, this.#log, { ...failure, family });
    }
    const message = `Temporal at ${this.#temporal.address} refused the run: ${serverMessage(error)}`;
    const nextStep =
      "Start a worker, which registers search attributes, or check TEMPORAL_*, then wake the agent again.";
    const neverStarted = !progress.uncertain;
    return await fail(this.#ctx, this.#log, { code: "temporal_refused", message, nextStep, neverStarted });
  }

  async #endUnstarted(abort: Abort): Promise<AdapterExecutionResult> {
    if (abort.kind === "lease lost") return await this.#detach(true);
    await this.#log.status(`${abort.reason}: nothing had been started`);
    return cancelledBeforeStart(abort.reason, new Date(), this.#recovery);
  }

  // while the run is open

  async #followRun(ticket: Ticket): Promise<AdapterExecutionResult> {
    const run = this.#temporal.runOf(ticket);
    await this.#logTicket(ticket);
    const following = new AbortController();
    let ending: Ending;
    try {
      ending = await this.#follow(ticket, run, following.signal);
    } catch (error) {
      return await this.#failWithoutOutcome(error, ticket);
    } finally {
      following.abort();
    }
    if (ending === "lease lost") return await this.#detach(false, run);
    if (ending === "unconfirmed") return await this.#failUnconfirmed();
    return await this.#returnOutcome(ticket, run, ending);
  }

  async #logTicket(ticket: Ticket): Promise<void> {
    const { kind, runId, closed } = ticket;
    const page = await this.#pageOf(ticket);
    if (page) await this.#log.status(`the run's page: ${page}`);
    const state = closed ? "which has ended" : "which is open";
    const joined = `joined run ${runId}, ${state}; its whole output follows from the first line`;
    await this.#log.status(kind === "started" ? `run ${runId} started` : joined);
    this.#log.phase = "queued";
  }

  /** Link to the run's page; undefined when nobody serves one. */
  async #pageOf({ runId }: Ticket): Promise<string | undefined> {
    const base = this.#settings.transcriptsUrl;
    return base && (await linkTo(base, runName(this.#ctx.agent.id, runId), this.#settings));
  }

  /** Follows the run to its end, or until this process has to release it. */
  async #follow(ticket: Ticket, run: Run, signal: AbortSignal): Promise<Ending> {
    const options = { signal, outage: this.#outage, retryLogin: true };
    const outcome = fetchOutcome(run, options);
    const ended = ignoreFailure(outcome);
    await yieldToEventLoop();
    const reading = this.#copyTranscript(ticket, outcome, signal);
    reading.catch(() => undefined); // handled where it is awaited
    const questions = new Questions(run, ticket, this.#prepared.sealAnswer, this.#ctx, this.#log, options);
    void this.#watchPhases(run, questions, ended, signal);
    const abort = await Promise.race([this.#aborted, ended]);
    if (abort?.kind === "lease lost") return "lease lost";
    if (abort !== undefined && !(await this.#stopAgent(run, abort.reason, outcome, options))) return "unconfirmed";
    const known = await outcome;
    await questions.close();
    await this.#drainTranscript(reading);
    const last = abortOf(this.#signal);
    if (last?.kind === "lease lost") return "lease lost";
    return { outcome: known, cancelledAt: last && new Date() };
  }

  /** False: no worker confirmed it in time; the request stays, so the next worker stops the agent. */
  async #stopAgent(run: Run, reason: string, outcome: Promise<Outcome>, options: CallOptions): Promise<boolean> {
    this.#log.phase = "being stopped";
    await this.#log.status(`${reason}: the agent is being stopped`);
    const request = requestCancel(run, reason, options);
    const confirmed = Promise.all([request, outcome]).then(() => true);
    const late = sleep(confirmationTimeout(this.#ctx.config), options.signal).then(() => false);
    return await Promise.race([confirmed, late]);
  }

  /** Waits for the transcript: after a cancel only until its answer is due, after a lost lease not at all. */
  async #drainTranscript(reading: Promise<void>): Promise<void> {
    if ((await Promise.race([reading, this.#answerDue()])) !== "cancel") return;
    const message = "the answer to the cancel does not wait for them; the transcript has them";
    await this.#log.status(`the last lines are missing here: ${message}`, "stderr");
  }

  /** Resolves some seconds before a cancel has to be answered, and at once when the lease is lost. */
  async #answerDue(): Promise<Abort["kind"]> {
    const { kind, at } = await this.#aborted;
    if (kind === "cancel") await sleep(Math.max(at + LAST_LINES_MS - Date.now(), LAST_LINES_LEAST_MS));
    return kind;
  }

  /** Resolves also when it could not be read to its end; the log then has a gap. */
  async #copyTranscript(ticket: Ticket, outcome: Promise<Outcome>, signal: AbortSignal): Promise<void> {
    const base = this.#settings.transcriptsUrl;
    const { model } = objectOf(this.#ctx.config);
    if (base === undefined) {
      const remedy = "set AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL to the transcript service's address";
      return await this.#log.status(`the agent's output is not shown here: ${remedy}`);
    }
    let attempt = 1;
    const write = async (call: LogCall) => {
      if (call.attempt !== attempt) {
        attempt = call.attempt;
        await this.#log.status(`attempt ${attempt}`);
      }
      if (call.session) await this.#log.session(call.session, typeof model === "string" ? model : "");
      await this.#log.call(call);
    };
    const run = runName(this.#ctx.agent.id, ticket.runId);
    const token = () => mint(run, this.#settings);
    const toolAtWork = (tool: string) =>
      void this.#progress("adapter_startup", tool ? `The agent uses ${tool}` : "The agent is working", tool);
    const outage = new OutageLog(this.#log, "the transcript service answers again");
    const attempts = outcome.then((known) => known.attempts?.length ?? 1);
    try {
      await follow({ base, run, format: this.#logFormat, token, write, toolAtWork, outage }, attempts, signal);
    } catch (error) {
      if (error instanceof Aborted || error instanceof EndedWithoutOutcome) return;
      const message =
        error instanceof TranscriptIncomplete ? error.message : `the output cannot be shown: ${nameOf(error)}`;
      await this.#log.status(`${message}; the transcript store has it`, "stderr");
    }
  }

  /** Puts on the task what the agent asks, and logs the phase while it writes nothing. Outages are reported elsewhere. */
  async #watchPhases(run: Run, questions: Questions, ended: Promise<void>, signal: AbortSignal): Promise<void> {
    await withLinkedSignal([signal], async (open) => {
      void ended.then(() => open.abort());
      for (let calls = -1; ; calls = this.#log.calls) {
        const phase = await this.#phaseOf(run, open.signal);
        await questions.tend(phase);
        if (calls === this.#log.calls) await this.#logPhase(phase);
        await sleep(PHASE_POLL_MS, open.signal);
      }
    }).catch(() => undefined);
  }

  async #phaseOf(run: Run, signal: AbortSignal): Promise<string | undefined> {
    const described = await this.#temporal.callOnce(() => run.describe(), { signal }).catch(() => undefined);
    return described && attribute(described, "RunPhase");
  }

  async #logPhase(phase: string | undefined): Promise<void> {
    if (phase === undefined || phase === this.#log.phase || this.#log.phase === "being stopped") return;
    this.#log.phase = phase;
    await this.#log.status(`the run is ${phase}`);
    await this.#progress("adapter_startup", `The run is ${phase}`);
  }

  // after the run

  async #returnOutcome(ticket: Ticket, run: Run, { outcome, cancelledAt }: Ended): Promise<AdapterExecutionResult> {
    await this.#progress("finalize", "The run has ended");
    // where a place is known in time, the transcript service has named it there
    const gaps = (outcome.attempts ?? []).flatMap(({ receipt }) => receipt?.gaps ?? []).length;
    if (gaps > 0) await this.#log.status(`output is missing in ${gaps} place(s), which the run's page names`, "stderr");
    const unreturned = ticket.carried ? await this.#takeBack(ticket) : undefined;
    if (abortOf(this.#signal)?.kind === "lease lost") return await this.#detach(false, run);
    const page = await this.#pageOf(ticket);
    const taskBlocked = cancelledAt === undefined && (await this.#blockTask(outcome));
    const code = outcome.errorCode ?? "succeeded";
    const message = outcome.errorMessage ? `${code}: ${outcome.errorMessage}` : code;
    const notes = [outcome.resultJson?.notes ?? []].flat().filter((note) => !this.#prepared.notes.includes(`${note}`));
    for (const note of notes) await this.#log.status(`warning: ${note}`, "stderr");
    await this.#log.status(message);
    const failure = outcome.failure ?? unreturned;
    if (unreturned) await this.#log.status(unreturned.message, "stderr");
    const said = failure && cancelledAt === undefined && (taskBlocked || !isRepeated(outcome, this.#ctx));
    const comment = said ? await failureComment({ runId: ticket.runId, page, ...failure }, this.#ctx) : undefined;
    const { runId, authToken } = this.#ctx;
    const last = abortOf(this.#signal); // a cancel of this very moment, too, holds the task until it is acknowledged
    if (last?.kind !== "lease lost") signalOnceStored(run, runId, authToken);
    return resultOf(outcome, {
      ...{ recovery: this.#recovery, page, taskBlocked, comment, unreturned },
      joinedRunId: ticket.runId === runId ? undefined : ticket.runId,
      cancelledAt: last?.kind === "cancel" ? (cancelledAt ?? new Date()) : undefined,
      workflow: { id: ticket.workflowId, runId: ticket.workflowRunId },
    });
  }

  /** Why the local folder lacks what the agent has done; undefined if it does not. After a cancel until its answer is due. */
  async #takeBack({ runId }: Ticket): Promise<PluginFailure | undefined> {
    this.#log.phase = "over; its workspace comes back";
    const stop = new AbortController();
    void this.#answerDue().then(() => stop.abort());
    try {
      if (this.#carried === undefined) throw new NotReturned("this wake has no folder to take it into");
      await this.#carried.back(runId, stop.signal);
    } catch (error) {
      const reason = error instanceof NotReturned ? error.message : "the answer to the cancel does not wait for it";
      const message = `the workspace did not come back whole: ${reason}`;
      const nextStep = `Write what the agent left into a folder with \`agent-runs workspace ${runId} --into DIR\`, and take over what is missing.`;
      return { code: "workspace_not_returned", message, nextStep };
    }
  }

  /** False: Paperclip treats the failure as it does any. */
  async #blockTask(outcome: Outcome): Promise<boolean> {
    if (!this.#recovery) return false; // this Paperclip holds no tasks
    const blocked = await blockTask(outcome, this.#ctx, this.#settings.boardApiKey);
    if (blocked === undefined) return false;
    const state = blocked
      ? "the task is blocked until somebody has done the next step and comments on it"
      : "Paperclip may hold the task until an operator reconciles this run; AGENT_RUNS_BOARD_API_KEY avoids that";
    await this.#log.status(`${state}. Next step: ${outcome.failure?.nextStep}`);
    return blocked;
  }

  async #failWithoutOutcome(error: unknown, ticket: Ticket): Promise<AdapterExecutionResult> {
    const unknown = `run ${ticket.runId} cannot be followed: ${serverMessage(error)}`;
    const reason = error instanceof EndedWithoutOutcome ? error.message : unknown;
    const message = `${reason}; whether its agent still works is not known, and the agent's next run ends it first`;
    const nextStep = "Read the Temporal history and the transcript, check the agent's work, then wake it again.";
    return await fail(this.#ctx, this.#log, { code: "agent_run_failed", message, nextStep });
  }

  async #failUnconfirmed(): Promise<AdapterExecutionResult> {
    const message = "no worker confirmed in time that the agent has stopped; Temporal keeps the request";
    const nextStep = "Check that a worker is running (`agent-runs list`); the agent stops as soon as one is.";
    return await fail(this.#ctx, this.#log, { code: "cancel_unconfirmed", message, nextStep });
  }

  /** Leaves the run open: Paperclip drops this result. The agent is stopped only if Paperclip reports a cancelled run. */
  async #detach(neverStarted: boolean, run?: Run): Promise<AdapterExecutionResult> {
    await sleep(RELEASE_TIMEOUT_MS, this.#ctx.signal).catch(() => undefined);
    if (run !== undefined) void this.#stopIfCancelled(run);
    const message = "Paperclip's server lost this run; it is open and the task's next wake can join it";
    return failedResult({ code: "controller_lease_lost", message, neverStarted }, this.#recovery);
  }

  /** A lost lease may hide a cancel that came before this execution had opted in to cancellation. */
  async #stopIfCancelled(run: Run): Promise<void> {
    const { runId, authToken, signal } = this.#ctx;
    const isCancelled = async () => (await new PaperclipApi(authToken).run(runId)).body.status === "cancelled";
    if (abortOf(signal)?.kind !== "cancel" && !(await isCancelled())) return;
    await requestCancel(run, "Run cancelled").catch(() => undefined);
  }

  async #progress(phase: "adapter_startup" | "finalize", message: string, tool = ""): Promise<void> {
    await ignoreFailure(this.#ctx.onRuntimeProgress?.({ phase, message, currentToolName: tool || null }));
  }
}

function busyMessage({ runId, task, phase, since, note }: Busy): string {
  const state = `${task ? ` on task ${task}` : ""} (${phase} since ${since.toISOString()})`;
  return `the agent is held by run ${runId}${state}${note ? `; ${note}` : ""}`;
}

type TimedAbort = Abort & { at: number };

/** Resolves when `signal` is aborted, with why and when. */
function whenAborted(signal: AbortSignal): Promise<TimedAbort> {
  return new Promise((resolve) => {
    const onAbort = () => {
      const abort = abortOf(signal);
      if (abort !== undefined) resolve({ ...abort, at: Date.now() });
    };
    signal.addEventListener("abort", onAbort, { once: true });
    onAbort();
  });
}

/** Waits for the end of something whose failure means nothing here, such as a callback of the host's. */
async function ignoreFailure(work: unknown): Promise<undefined> {
  await Promise.resolve(work).catch(() => undefined);
}

function nameOf(error: unknown): string {
  if (!(error instanceof Error)) return "?";
  return `${error.name} in ${error.stack?.split("\n")[1]?.trim().split("/").pop() ?? "?"}`;
}
