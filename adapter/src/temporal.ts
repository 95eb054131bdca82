/**
 * The connection to Temporal, one for each set of settings, and the one call that the SDK does not offer: a start whose
 * request id is Paperclip's run id.
 *
 * Nothing is connected before the first call, and a lost connection comes back by itself. The SDK's own retries are off:
 * `patiently` retries instead, because it can be given up at any time and tells the run's log what it waits for.
 * Source: @temporalio/client 1.24, whose call context never takes its listener off an abort signal, hence a signal of
 * its own for every call.
 */

import { Connection, WorkflowClient, type WorkflowHandle } from "@temporalio/client";
import common from "@temporalio/common";
import proto from "@temporalio/proto";
import { BackOff, GivenUp, linked, type Outage } from "./waiting.ts";

const { defineSearchAttributeKey, TypedSearchAttributes } = common;

/** What of the settings this room needs. */
export interface TemporalSettings {
  temporal: { address: string; namespace: string; tls: boolean; apiKey?: string };
  taskQueue: string;
}

/** gRPC's status codes, as far as they mean something here. */
export const Code = {
  CANCELLED: 1,
  UNKNOWN: 2,
  INVALID_ARGUMENT: 3,
  DEADLINE_EXCEEDED: 4,
  NOT_FOUND: 5,
  ALREADY_EXISTS: 6,
  PERMISSION_DENIED: 7,
  FAILED_PRECONDITION: 9,
  UNIMPLEMENTED: 12,
  UNAUTHENTICATED: 16,
} as const;

/** What repeating does not mend. Anything else that gRPC may answer is taken for an outage. */
const FINAL: ReadonlySet<number> = new Set([
  ...[Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.ALREADY_EXISTS, Code.PERMISSION_DENIED],
  ...[Code.FAILED_PRECONDITION, Code.UNIMPLEMENTED, Code.UNAUTHENTICATED],
]);
const NAMESPACE = /\bnamespace\b/i;
const ANSWER_MS = 10_000;
/** gRPC's own pauses between connections grow to two minutes otherwise. */
const RECONNECT = { "grpc.initial_reconnect_backoff_ms": 250, "grpc.max_reconnect_backoff_ms": 5000 };
const WORKFLOW = "AgentRunWorkflow";

/** A handle of one run of the workflow. */
export type Run = WorkflowHandle;

/** What may be mended while a run goes on: its outcome is worth waiting for. */
export const CREDENTIALS: ReadonlySet<number> = new Set([Code.PERMISSION_DENIED, Code.UNAUTHENTICATED]);

/** Gives a call up, and hears of trouble. */
export interface Talk {
  signal?: AbortSignal;
  outage?: Outage;
  /** Codes that are sat out like an outage. */
  sitOut?: ReadonlySet<number>;
}

/** What the server said to a start. */
export type StartAnswer =
  | { kind: "held"; workflowRunId: string; open: boolean }
  | { kind: "busy"; holder: string; workflowRunId: string };

export interface StartOptions {
  workflowId: string;
  requestId: string;
  taskQueue: string;
  input: unknown;
  memo: { [name: string]: unknown };
  /** Keyword attributes; absent values are left out, long ones are cut. */
  searchAttributes: { [name: string]: string | null | undefined };
  summary: string;
}

/** A workflow client that can start by request id. */
export class AgentRunClient extends WorkflowClient {
  /**
   * Starts the workflow, or says whose it is. The same request id gets the same run, open or closed.
   *
   * Rejects with gRPC's error when the server refuses for another reason or does not answer.
   */
  async startOrAttach(start: StartOptions): Promise<StartAnswer> {
    const pairs = Object.entries(start.searchAttributes)
      .filter((pair): pair is [string, string] => Boolean(pair[1]))
      .map(([name, value]) => ({ key: defineSearchAttributeKey(name, "KEYWORD"), value: cut(value, 200) }));
    const request = await this.createStartWorkflowRequest({
      workflowType: WORKFLOW,
      headers: {},
      options: {
        workflowId: start.workflowId,
        taskQueue: start.taskQueue,
        args: [start.input],
        memo: start.memo,
        typedSearchAttributes: new TypedSearchAttributes(pairs),
        staticSummary: start.summary,
        workflowIdReusePolicy: "ALLOW_DUPLICATE",
        workflowIdConflictPolicy: "FAIL",
      },
    });
    try {
      const answer = await this.workflowService.startWorkflowExecution({ ...request, requestId: start.requestId });
      const running = proto.temporal.api.enums.v1.WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING;
      return { kind: "held", workflowRunId: answer.runId, open: answer.status === running };
    } catch (error) {
      const holder = holderOf(error);
      if (holder === undefined) throw error;
      return holder;
    }
  }
}

/** A connection and what is asked over it. */
export interface Temporal {
  client: AgentRunClient;
  connection: Connection;
  address: string;
  taskQueue: string;
}

const connections = new Map<string, Temporal>();

/** The shared connection for these settings; made at the first call, without asking the server. */
export function temporalFor(settings: TemporalSettings): Temporal {
  const { address, namespace, tls, apiKey } = settings.temporal;
  const key = JSON.stringify([address, namespace, tls, apiKey ?? null, settings.taskQueue]);
  let temporal = connections.get(key);
  if (temporal === undefined) {
    const connection = Connection.lazy({ address, tls, apiKey, interceptors: [], channelArgs: RECONNECT });
    const client = new AgentRunClient({ connection, namespace });
    temporal = { client, connection, address, taskQueue: settings.taskQueue };
    connections.set(key, temporal);
  }
  return temporal;
}

/** Ends every connection. For tests: a host keeps them as long as it lives. */
export async function disconnect(): Promise<void> {
  const open = [...connections.values()];
  connections.clear();
  await Promise.all(open.map(({ connection }) => connection.close()));
}

/** Exactly this run, never a later one of the same agent. */
export function runOf(temporal: Temporal, workflowId: string, workflowRunId: string): Run {
  return temporal.client.getHandle(workflowId, workflowRunId, { followRuns: false });
}

/** One call with a time limit, given up with `signal`. Rejects with `GivenUp`, or as the call does. */
export async function once<T>(
  temporal: Temporal,
  call: () => Promise<T>,
  { signal, within = ANSWER_MS }: { signal?: AbortSignal; within?: number } = {},
): Promise<T> {
  if (signal?.aborted) throw new GivenUp(signal.reason);
  try {
    return await linked([signal], (controller) =>
      temporal.connection.withDeadline(Date.now() + within, () =>
        temporal.connection.withAbortSignal(controller.signal, call),
      ),
    );
  } catch (error) {
    if (signal?.aborted) throw new GivenUp(signal.reason);
    throw error;
  }
}

/** A call that is repeated until Temporal answers it. Rejects with `GivenUp`, or with an answer that will not change. */
export async function patiently<T>(temporal: Temporal, call: () => Promise<T>, talk: Talk = {}): Promise<T> {
  const backOff = new BackOff();
  for (;;) {
    try {
      const answer = await once(temporal, call, { signal: talk.signal });
      talk.outage?.recovered();
      return answer;
    } catch (error) {
      if (!isOutage(error, talk)) throw error;
      talk.outage?.failed(away(temporal, error));
      await backOff.wait(talk.signal);
    }
  }
}

/** Whether Temporal was away, slow, starting or restarting, so that the same call may succeed later. */
export function isOutage(error: unknown, { sitOut }: Pick<Talk, "sitOut"> = {}): boolean {
  const code = codeOf(error);
  if (code === undefined) return false;
  // a server that starts does not know its namespaces yet
  if (code === Code.NOT_FOUND) return NAMESPACE.test(saidBy(error));
  return !FINAL.has(code) || sitOut?.has(code) === true;
}

/** Whether Temporal does not know this run (any more). */
export function isUnknownRun(error: unknown): boolean {
  return codeOf(error) === Code.NOT_FOUND && !isOutage(error);
}

/** The gRPC status behind an error of the SDK; undefined when the error is not the server's. */
export function codeOf(error: unknown): number | undefined {
  for (let at = error, depth = 0; at instanceof Error && depth < 8; at = at.cause, depth++) {
    const code = (at as { code?: unknown }).code;
    if (typeof code === "number") return code;
    if (at.name === "WorkflowNotFoundError") return Code.NOT_FOUND;
  }
  return undefined;
}

/** What the server said, in one bounded line without what was sent. */
export function saidBy(error: unknown): string {
  let said = error instanceof Error ? error.message : "unknown error";
  for (let at = error, depth = 0; at instanceof Error && depth < 8; at = at.cause, depth++) {
    const details = (at as { details?: unknown }).details;
    if (typeof details === "string" && details) said = details;
  }
  return cut(said.replace(/\s+/g, " "), 200);
}

export function away(temporal: Temporal, error: unknown): string {
  return `Temporal does not answer at ${temporal.address} (${saidBy(error)}); the run is not lost, trying again`;
}

/** The first value of a search attribute, if there is one. */
export function attribute(found: { searchAttributes?: unknown }, name: string): string | undefined {
  return attributes(found, name)[0];
}

/** All values of a search attribute. */
export function attributes(found: { searchAttributes?: unknown }, name: string): string[] {
  const values = (found.searchAttributes as { [name: string]: unknown } | undefined)?.[name];
  return Array.isArray(values) ? values.filter((value) => typeof value === "string") : [];
}

function holderOf(error: unknown): StartAnswer | undefined {
  if (codeOf(error) !== Code.ALREADY_EXISTS) return undefined;
  const metadata = (error as { metadata?: { get(name: string): unknown[] } }).metadata;
  for (const packed of metadata?.get("grpc-status-details-bin") ?? []) {
    for (const detail of proto.google.rpc.Status.decode(packed as Uint8Array).details) {
      if (!detail.type_url?.endsWith("WorkflowExecutionAlreadyStartedFailure") || !detail.value) continue;
      const held = proto.temporal.api.errordetails.v1.WorkflowExecutionAlreadyStartedFailure.decode(detail.value);
      return { kind: "busy", holder: held.startRequestId, workflowRunId: held.runId };
    }
  }
  return undefined;
}

function cut(text: string, limit: number): string {
  return text.length > limit ? text.slice(0, limit) : text;
}
