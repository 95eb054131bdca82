/**
 * The connection to Temporal, one for each set of settings, and the one call that the SDK does not offer: a start whose
 * request id is Paperclip's run id. It carries the trace that the host works in, if the host has an OpenTelemetry tracer, so
 * that the run's spans belong to it; without one the worker begins a trace.
 *
 * Nothing is connected before the first call, and a lost connection is restored by gRPC. The SDK's own retries are off:
 * `callUntilAnswered` retries instead, because it can be aborted at any time and reports outages to the run's log.
 * Source: @temporalio/client 1.24, whose call context never removes its listener from an abort signal, hence a signal of
 * its own for every call.
 */

import {
  Connection,
  defaultPayloadConverter,
  WorkflowClient,
  type WorkflowHandle,
  type WorkflowStartInput,
} from "@temporalio/client";
import proto from "@temporalio/proto";
import type { Settings } from "./settings.ts";
import { BackOff, type OutageListener, throwIfAborted, withLinkedSignal } from "./waits.ts";

/** Of gRPC. */
export const Code = {
  INVALID_ARGUMENT: 3,
  DEADLINE_EXCEEDED: 4,
  NOT_FOUND: 5,
  ALREADY_EXISTS: 6,
  PERMISSION_DENIED: 7,
  FAILED_PRECONDITION: 9,
  UNIMPLEMENTED: 12,
  UNAUTHENTICATED: 16,
} as const;

/** Errors that a retry does not fix. Every other status of gRPC is treated as an outage. */
const FINAL_CODES: ReadonlySet<number> = new Set([
  ...[Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.ALREADY_EXISTS, Code.PERMISSION_DENIED],
  ...[Code.FAILED_PRECONDITION, Code.UNIMPLEMENTED, Code.UNAUTHENTICATED],
]);
const LOGIN_CODES: ReadonlySet<number> = new Set([Code.PERMISSION_DENIED, Code.UNAUTHENTICATED]);
const NAMESPACE = /\bnamespace\b/i;
const TASK_FAILED = /\bworkflow task (in failed state|failure)\b/i;
const CALL_TIMEOUT_MS = 10_000;
/** Without these, gRPC's own pauses between connections grow to two minutes. */
const RECONNECT_OPTIONS = { "grpc.initial_reconnect_backoff_ms": 250, "grpc.max_reconnect_backoff_ms": 5000 };
export const WORKFLOW_TYPE = "AgentRunWorkflow";
/** Where @opentelemetry/api of any 1.x version keeps what an SDK has registered; there is nothing to import then. */
const OPEN_TELEMETRY = Symbol.for("opentelemetry.js.api.1");
/** The header of Temporal's own interceptors. */
const TRACE_HEADER = "_tracer-data";

interface OpenTelemetry {
  context?: { active(): unknown };
  propagation?: { inject(context: unknown, carrier: Record<string, string>): void };
}

interface Execution {
  workflowId: string;
  workflowRunId: string;
}

/** A handle of exactly one workflow execution. */
export type Run = WorkflowHandle & Execution & { readonly client: Temporal };

/** How a call is aborted, what is retried, and who hears of outages. */
export interface CallOptions {
  signal?: AbortSignal;
  outage?: OutageListener;
  /** A refused login counts as an outage: an operator can fix it while a run is open. */
  retryLogin?: boolean;
  /** The signal counts between calls only: a call that was sent is always waited for. */
  betweenCalls?: boolean;
}

/** The answer to a start: the run of this request id, or of another one, the holder's. */
export interface StartAnswer {
  workflowRunId: string;
  holder?: string;
}

export type StartOptions = WorkflowStartInput["options"];
type TemporalSettings = Pick<Settings, "temporal" | "taskQueue">;

/** A workflow client that can start by request id, with the task queue for new runs. */
export class Temporal extends WorkflowClient {
  readonly address: string;
  readonly taskQueue: string;

  /** Nothing is connected yet. */
  constructor(settings: TemporalSettings) {
    const { address, namespace, ...login } = settings.temporal;
    const options = { address, ...login, interceptors: [], channelArgs: RECONNECT_OPTIONS };
    super({ connection: Connection.lazy(options), namespace });
    this.address = address;
    this.taskQueue = settings.taskQueue;
  }

  /**
   * Starts the workflow, or reports who has it. The same request id gets the same run, open or closed.
   *
   * Rejects with gRPC's error when the server refuses for another reason or does not answer.
   */
  async startOrAttach(requestId: string, options: StartOptions): Promise<StartAnswer> {
    const input = { workflowType: WORKFLOW_TYPE, headers: traceHeaders(), options };
    const request = { ...(await this.createStartWorkflowRequest(input)), requestId };
    try {
      const answer = await this.workflowService.startWorkflowExecution(request);
      return { workflowRunId: answer.runId };
    } catch (error) {
      const holder = holderOf(error);
      if (holder === undefined) throw error;
      return holder;
    }
  }

  /** A handle of exactly this run, never of a later one of the same agent. */
  runOf({ workflowId, workflowRunId }: Execution): Run {
    const handle = this.getHandle(workflowId, workflowRunId, { followRuns: false });
    return Object.assign(handle, { workflowRunId, client: this });
  }

  /** One call with a timeout in milliseconds, aborted with `signal`. Rejects with `Aborted`, or as the call does. */
  async callOnce<T>(
    call: () => Promise<T>,
    { signal, timeout = CALL_TIMEOUT_MS }: { signal?: AbortSignal; timeout?: number } = {},
  ): Promise<T> {
    throwIfAborted(signal);
    try {
      return await withLinkedSignal([signal], (controller) =>
        this.withDeadline(Date.now() + timeout, () => this.withAbortSignal(controller.signal, call)),
      );
    } catch (error) {
      throwIfAborted(signal);
      throw error;
    }
  }

  /** Repeats a call until Temporal answers it. Rejects with `Aborted`, or with an error that a retry does not fix. */
  async callUntilAnswered<T>(call: () => Promise<T>, options: CallOptions = {}): Promise<T> {
    const { signal, outage, betweenCalls } = options;
    const backOff = new BackOff();
    for (;;) {
      throwIfAborted(signal);
      try {
        const answer = await this.callOnce(call, betweenCalls ? {} : { signal });
        outage?.recovered();
        return answer;
      } catch (error) {
        if (!isOutage(error, options)) throw error;
        outage?.failed(this.outageMessage(error));
        await backOff.wait(signal);
      }
    }
  }

  outageMessage(error: unknown): string {
    return `Temporal does not answer at ${this.address} (${serverMessage(error)}); the run is not lost, retrying`;
  }
}

const clients = new Map<string, Temporal>();

/** The shared client for these settings. */
export function temporalFor(settings: TemporalSettings): Temporal {
  const key = JSON.stringify([settings.temporal, settings.taskQueue]);
  const temporal = clients.get(key) ?? new Temporal(settings);
  clients.set(key, temporal);
  return temporal;
}

/** Closes every connection. For tests: a host keeps them as long as its process runs. */
export async function disconnect(): Promise<void> {
  const open = [...clients.values()];
  clients.clear();
  await Promise.all(open.map(({ connection }) => connection.close()));
}

/** Whether Temporal was unreachable, slow, starting or restarting, so that the same call may succeed later. */
export function isOutage(error: unknown, { retryLogin = false }: CallOptions = {}): boolean {
  const code = codeOf(error);
  if (code === undefined) return false;
  // a server that starts does not know its namespaces yet
  if (code === Code.NOT_FOUND) return NAMESPACE.test(serverMessage(error));
  // no update is taken while the worker's version cannot read the run, or when the run's task with it fails: it may close
  if (TASK_FAILED.test(serverMessage(error))) return true;
  return !FINAL_CODES.has(code) || (retryLogin && LOGIN_CODES.has(code));
}

/** Whether Temporal does not know this run, or has deleted it after its retention. */
export function isUnknownRun(error: unknown): boolean {
  return codeOf(error) === Code.NOT_FOUND && !isOutage(error);
}

/** The gRPC status behind an error of the SDK; undefined when the error is not the server's. */
export function codeOf(error: unknown): number | undefined {
  for (const { code, name } of causesOf(error)) {
    if (typeof code === "number") return code;
    if (name === "WorkflowNotFoundError") return Code.NOT_FOUND;
  }
  return undefined;
}

/** The innermost text of an error, the server's if there is one, in one line of at most 300 characters. */
export function serverMessage(error: unknown): string {
  const causes = causesOf(error);
  const texts = [...causes.map(({ message }) => message), ...causes.map(({ details }) => details)];
  const message = texts.findLast((text) => typeof text === "string" && text !== "") ?? "unknown error";
  return String(message).replace(/\s+/g, " ").slice(0, 300);
}

/** The error and the errors behind it, with what gRPC adds to one. */
function causesOf(error: unknown): (Error & { code?: unknown; details?: unknown })[] {
  const causes: Error[] = [];
  for (let at = error; at instanceof Error && causes.length < 8; at = at.cause) causes.push(at);
  return causes;
}

export function attribute(described: { searchAttributes?: unknown }, name: string): string | undefined {
  return attributes(described, name)[0];
}

/** All values of a search attribute. */
export function attributes(described: { searchAttributes?: unknown }, name: string): string[] {
  const values = (described.searchAttributes as { [name: string]: unknown } | undefined)?.[name];
  return Array.isArray(values) ? values.filter((value) => typeof value === "string") : [];
}

function holderOf(error: unknown): StartAnswer | undefined {
  if (codeOf(error) !== Code.ALREADY_EXISTS) return undefined;
  const metadata = (error as { metadata?: { get(name: string): unknown[] } }).metadata;
  for (const packed of metadata?.get("grpc-status-details-bin") ?? []) {
    for (const detail of proto.google.rpc.Status.decode(packed as Uint8Array).details) {
      if (!detail.type_url?.endsWith("WorkflowExecutionAlreadyStartedFailure") || !detail.value) continue;
      const held = proto.temporal.api.errordetails.v1.WorkflowExecutionAlreadyStartedFailure.decode(detail.value);
      return { holder: held.startRequestId, workflowRunId: held.runId };
    }
  }
  return undefined;
}

/** Headers of a start, none without a current span. */
function traceHeaders(): WorkflowStartInput["headers"] {
  const { context, propagation } = (globalThis as { [OPEN_TELEMETRY]?: OpenTelemetry })[OPEN_TELEMETRY] ?? {};
  if (context === undefined || propagation === undefined) return {};
  const carrier: Record<string, string> = {};
  try {
    propagation.inject(context.active(), carrier);
  } catch {
    return {}; // a tracer that fails is no reason to start no run
  }
  // not the host's baggage, which may hold anything: histories last
  const { traceparent, tracestate } = carrier;
  if (traceparent === undefined) return {};
  return { [TRACE_HEADER]: defaultPayloadConverter.toPayload({ traceparent, tracestate }) };
}
