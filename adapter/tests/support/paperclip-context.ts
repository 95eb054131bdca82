/** A fake of Paperclip's side of one execution, which records every call in order. */

import { randomUUID } from "node:crypto";
import { workflowIdOf } from "../../src/attach.ts";
import { executeWith, type Parts } from "../../src/execute.ts";
import type { AdapterExecutionContext, InvocationMeta } from "../../src/paperclip.ts";
import { type Temporal, temporalFor } from "../../src/temporal.ts";
import {
  type DevServer,
  preparedOf,
  type Request,
  type Services,
  type Standin,
  settingsOf,
  temporalOf,
} from "./stack.ts";

const MARK = "[agent-runs] ";

export interface FakeHost {
  context: AdapterExecutionContext;
  calls: string[];
  /** The messages of its progress. */
  progress: string[];
  chunks: { stream: string; chunk: string }[];
  metas: InvocationMeta[];
  abort(reason: string): void;
  /** Our status lines with this text, without their mark. */
  statuses(text?: string): string[];
  /** The agent's texts that were logged. */
  agentLines(): string[];
}

/** @param request has the ids and the configuration; its task's context is not used after the preparation. */
export function fakeHost(request: Request, changes: Partial<AdapterExecutionContext> = {}): FakeHost {
  const stop = new AbortController();
  const host: FakeHost = {
    calls: [],
    progress: [],
    chunks: [],
    metas: [],
    abort: (reason) => stop.abort(new Error(reason)),
    statuses: (text = "") =>
      host.chunks
        .filter(({ chunk }) => chunk.startsWith(MARK) && chunk.includes(text))
        .map(({ chunk }) => chunk.slice(MARK.length).trimEnd()),
    agentLines: () =>
      host.chunks
        .filter(({ chunk }) => chunk.startsWith("{"))
        .flatMap(({ chunk }) => JSON.parse(chunk).part.text ?? []),
    context: {
      runId: request.runId,
      agent: request.agent,
      runtime: request.runtime,
      config: request.config,
      context: {},
      authToken: "token",
      signal: stop.signal,
      async onLog(stream, chunk) {
        host.chunks.push({ stream, chunk });
      },
      async onMeta(meta) {
        host.calls.push("onMeta");
        host.metas.push(meta);
      },
      async onDispatch() {
        host.calls.push("onDispatch");
      },
      async onRuntimeProgress({ phase, message }) {
        host.calls.push(phase);
        host.progress.push(message);
      },
      async onCancellationReady() {
        host.calls.push("onCancellationReady");
      },
      ...changes,
    },
  };
  return host;
}

/** The parts of an execution against real services. */
export function partsFor(
  request: Request,
  { server, worker }: { server: Pick<DevServer, "address">; worker: Partial<Standin> & Pick<Standin, "queue"> },
  changes: { onBusy?: "wait" | "refuse"; transcriptsUrl?: string; temporal?: Temporal } = {},
): () => Promise<Parts> {
  const settings = { ...settingsOf(server, worker), onBusy: changes.onBusy ?? "wait" };
  if ("transcriptsUrl" in changes) settings.transcriptsUrl = changes.transcriptsUrl;
  return async () => ({
    settings,
    temporal: changes.temporal ?? temporalFor(settings),
    prepared: { ...(await preparedOf(request)), notes: ["a note"] },
    helpers: {},
    logFormat: "events",
  });
}

/** Wakes an agent: starts an execution of the request against real services. */
export function wakeAgent(
  request: Request,
  services: Services,
  changes: Parameters<typeof partsFor>[2] = {},
  host = fakeHost(request),
) {
  return { host, result: executeWith(host.context, partsFor(request, services, changes)) };
}

/** The description of the agent's newest run. */
export async function describeRun(request: Request, { server, worker }: Services) {
  return await temporalOf(server, worker.queue).getHandle(workflowIdOf(request.agent.id)).describe();
}

/** A request of the same agent with a run id of its own. */
export function sameAgent(request: Request, changes: Partial<Request> = {}): Request {
  return { ...request, runId: randomUUID(), ...changes };
}
